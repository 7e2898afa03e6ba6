"""Returns unused memory to the operating system.

glibc keeps the memory of closed documents because used and free memory are mixed in each
thread's arena. The process therefore uses a single arena, which costs little because of the
GIL, and trims the arena. Libraries also keep large tables in memory (30 MB for rs-bpe) that are
needed only while a tokenizer is loading.

Without this module, an idle server uses 1.2 times as much memory as pygls with tiktoken. After a
large document is closed, 18% of its memory remains in use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from sidecar.operating_system import call_libc

_M_ARENA_MAX = -8
_MADV_DONTNEED = 4
_LARGE = 4 << 20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r--p .*\.so[.0-9]*\n((?:[A-Z]\w+:.*\n)+)")
_KILOBYTES = re.compile(r"(\w+): +(\d+) kB")


def use_one_arena() -> None:
    """Make all threads share one glibc arena. Must be called before any thread is started."""
    call_libc("mallopt", _M_ARENA_MAX, 1)


def release_memory() -> None:
    """Return freed memory and library tables to the operating system.

    Blocks for a few milliseconds.
    """
    call_libc("malloc_trim", 0)
    for start, length in library_tables():
        call_libc("madvise", start, length, _MADV_DONTNEED)


def library_tables() -> Iterator[tuple[int, int]]:
    """Yield the addresses and sizes of large read-only tables that libraries keep in memory.

    The operating system reloads the tables from disk on access, so they must be unmodified.
    """
    with suppress(OSError), open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for found in _MAPPING.finditer(file.read()):
            size = {name: int(number) * 1024 for name, number in _KILOBYTES.findall(found[3])}
            written = any(size.get(name, 1) for name in ("Anonymous", "Private_Dirty", "Swap"))
            if size.get("Rss", 0) >= _LARGE and not written:
                start, end = int(found[1], 16), int(found[2], 16)
                yield start, end - start
