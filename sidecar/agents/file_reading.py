"""Reads other programs' files line by line, without changing their access times if possible."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import IO, TYPE_CHECKING, TypeVar

from sidecar.agents.broken_lines import leading_members
from sidecar.operating_system import NO_ATIME, open_to_read

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
CHUNK = 256 << 10
LONGEST_LINE = 64 << 20
"""The maximum line length in bytes. Only the start of a longer line is read."""
HEAD = 1 << 20
_LINE_HEAD = 64 << 10
_TAIL = 32 << 10


def open_quietly(path: str) -> IO[bytes]:
    """Open a file for unbuffered reading, without changing its access time if possible.

    `.zst` files are decompressed on the fly.

    Raises:
        OSError: The file cannot be opened or is not a regular file.
    """
    try:
        number = open_to_read(path, NO_ATIME)
    except PermissionError:  # only the file's owner may use O_NOATIME
        if not NO_ATIME:
            raise
        number = open_to_read(path)
    plain = os.fdopen(number, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        plain.close()
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return _open_compressed(plain) if path.endswith(".zst") else plain


def _open_compressed(plain: IO[bytes]) -> IO[bytes]:
    from sidecar.agents.compressed import open_decompressed

    return open_decompressed(plain)


def cached_until_changed(read: Callable[[str], T]) -> Callable[[str | Path], T | None]:
    """Cache what a function reads from a file, until the file is modified.

    The returned function returns None if the file cannot be read.
    """

    @lru_cache(maxsize=32)
    def read_version(path: str, _mtime_ns: int) -> T:
        return read(path)

    def read_current(path: str | Path) -> T | None:
        try:
            return read_version(str(path), os.stat(path).st_mtime_ns)
        except OSError:
            return None

    return read_current


def first_lines(path: str, most: int = HEAD) -> Iterator[bytes]:
    """Yield the complete lines in the first `most` bytes of a file."""
    with open_quietly(path) as file:
        rest, read = b"", 0
        while read < most and (data := file.read(min(_TAIL, most - read))):
            read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def last_lines(path: str, most: int) -> list[bytes]:
    """Return the complete lines in the last `most` bytes of a file. Raises OSError."""
    with open_quietly(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - most)
        file.seek(start)
        lines = file.read(most).split(b"\n")[:-1]
    return lines[1:] if start else lines


def chunks(file: IO[bytes], size: int = CHUNK) -> Iterator[tuple[bytes, int]]:
    """Yield `(lines, skipped)` for each chunk of the file after the current position.

    `lines` contains complete lines, and `skipped` is 0. For a line longer than `LONGEST_LINE`,
    `skipped` is the line's length, and `lines` contains a record with the members that are complete
    in its first 64 KB. An incomplete last line is not yielded.
    """
    held: list[bytes] = []
    while data := file.read(size):
        end, length = data.rfind(b"\n") + 1, sum(map(len, held))
        if end:
            whole, held = b"".join((*held, memoryview(data)[:end])), [data[end:]]
            data = b""  # free this memory before the caller uses the lines
            yield whole, 0
        elif length + len(data) <= LONGEST_LINE:
            held.append(data)
        else:
            head, length = b"".join((*held, data)[:2])[:_LINE_HEAD], length + len(data)
            held, data = [], b""
            if skipped := _skip_line(file, length, size):
                head = leading_members(head)
                yield head and head + b"\n", skipped


def _skip_line(file: IO[bytes], length: int, size: int) -> int:
    """Skip the rest of a line. Returns the length of the whole line, or 0 if it is incomplete."""
    while data := file.read(size):
        end = data.find(b"\n") + 1
        if end:
            file.seek(end - len(data), os.SEEK_CUR)
            return length + end
        length += len(data)
    return 0
