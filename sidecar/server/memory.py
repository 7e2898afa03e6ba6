"""Memory that is no longer needed goes back to the system, where it would be kept.

Of documents that were closed glibc would keep it: each thread's own arena holds a little of what
lives on among much that was freed. With one arena for all of them (the GIL lets one thread allocate
at a time anyway) nearly everything is returned. Of libraries there are tables that are read once:
rs-bpe's of 30 MB, when a tokenizer is loaded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress

_M_ARENA_MAX = -8
_MADV_DONTNEED = 4
_LARGE = 4 << 20
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r--p .*\.so[.0-9]*\n((?:[A-Z]\w+:.*\n)+)")
_KILOBYTES = re.compile(r"(\w+): +(\d+) kB")


def use_one_arena() -> None:
    """To be called before there is a second thread."""
    _call("mallopt", _M_ARENA_MAX, 1)


def give_back() -> None:
    """Return what was freed, and what of libraries' tables was read.

    Blocking: some milliseconds, for which a thread that needs memory from the system waits.
    """
    _call("malloc_trim", 0)
    for start, length in library_tables():
        _call("madvise", start, length, _MADV_DONTNEED)


def library_tables() -> Iterator[tuple[int, int]]:
    """Addresses and bytes of libraries' large tables that are in memory as the file has them.

    They are read again from the system's cache where they are needed. Nothing of them may have
    been written to: that would be lost.
    """
    with suppress(OSError), open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        for found in _MAPPING.finditer(file.read()):
            size = {name: int(number) * 1024 for name, number in _KILOBYTES.findall(found[3])}
            written = any(size.get(name, 1) for name in ("Anonymous", "Private_Dirty", "Swap"))
            if size.get("Rss", 0) >= _LARGE and not written:
                start, end = int(found[1], 16), int(found[2], 16)
                yield start, end - start


def _call(name: str, *arguments: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):  # musl has neither of the first two
        getattr(ctypes.CDLL(None), name)(*map(ctypes.c_ssize_t, arguments))
