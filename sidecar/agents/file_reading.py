"""Reading other programs' files without a trace: heads, and new bytes by whole lines."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import IO

CHUNK = 256 << 10
"""Bytes read at once; a chunk grows to hold one line. Larger ones are no faster to read."""
LONGEST_LINE = 64 << 20
"""Bytes; a longer line is passed over without being held in memory."""
HEAD = 1 << 20
_TAIL = 32 << 10
_NO_TRACE = getattr(os, "O_NOATIME", 0)
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO would wait for a writer
)


def open_quietly(path: str) -> IO[bytes]:
    """A file for reading, unbuffered; its access time stays where the system allows it.

    A `.zst` file is decompressed as it is read. Raises OSError; also for a device or a FIFO.
    """
    try:
        number = os.open(path, _FLAGS | _NO_TRACE)
    except PermissionError:  # the file of another user: only its owner may leave the time alone
        if not _NO_TRACE:
            raise
        number = os.open(path, _FLAGS)
    plain = os.fdopen(number, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        plain.close()
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return _decompressed(plain) if path.endswith(".zst") else plain


def _decompressed(plain: IO[bytes]) -> IO[bytes]:
    from sidecar.agents.compressed import open_decompressed

    return open_decompressed(plain)


def first_lines(path: str, most: int = HEAD) -> Iterator[bytes]:
    """The first whole lines of a file, read only as far as they are asked for; `most` bytes."""
    with open_quietly(path) as file:
        rest, read = b"", 0
        while read < most and (data := file.read(min(_TAIL, most - read))):
            read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def chunks(file: IO[bytes], size: int = CHUNK) -> Iterator[tuple[bytes, int]]:
    """Whole lines from where `file` stands, about `size` bytes at once, and the bytes passed over.

    What follows the last line feed is left for another time. A line over `LONGEST_LINE` comes as
    an empty chunk with its length.
    """
    held: list[bytes] = []
    while data := file.read(size):
        end, length = data.rfind(b"\n") + 1, sum(map(len, held))
        if end:
            whole, held = b"".join((*held, memoryview(data)[:end])), [data[end:]]
            data = b""  # not kept while the lines are worked on
            yield whole, 0
        elif length + len(data) <= LONGEST_LINE:
            held.append(data)
        else:
            passed, rest = _pass_line(file, length + len(data), size)
            held = [rest]
            if passed:
                yield b"", passed


def _pass_line(file: IO[bytes], passed: int, size: int) -> tuple[int, bytes]:
    """How long the line is that `passed` bytes of were read, and what came after it.

    The length is 0 where the line has no end yet.
    """
    while data := file.read(size):
        end = data.find(b"\n") + 1
        if end:
            file.seek(end - len(data), os.SEEK_CUR)
            return passed + end, b""
        passed += len(data)
    return 0, b""
