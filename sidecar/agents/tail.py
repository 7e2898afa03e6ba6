"""Reading other programs' files without a trace: heads, newest lines, new bytes by whole lines."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import IO

CHUNK = 256 << 10
"""Bytes read at once; a chunk grows to hold one line. Larger ones are no faster to read."""
_BACKWARDS = 1 << 20
"""The same where a file is read from its end."""
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
    from sidecar.agents.compressed import reading

    return reading(plain)


def first_lines(path: str, most: int = HEAD) -> Iterator[bytes]:
    """The first whole lines of a file, read only as far as they are asked for; `most` bytes."""
    with open_quietly(path) as file:
        rest, read = b"", 0
        while read < most and (data := file.read(min(_TAIL, most - read))):
            read += len(data)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def lines_with(data: bytes, needle: bytes) -> Iterator[bytes]:
    """The lines of `data`, which ends with a line feed, that hold `needle`."""
    find, rfind = data.find, data.rfind
    at = find(needle)
    while at >= 0:
        end = find(b"\n", at)
        yield data[rfind(b"\n", 0, at) + 1 : end]
        at = find(needle, end)


def lines_with_any(data: bytes, *needles: bytes) -> Iterator[bytes]:
    """The lines of `data`, which ends with a line feed, that hold one of the needles."""
    ends: dict[int, int] = {}
    for needle in needles:
        at = data.find(needle)
        while at >= 0:
            end = data.find(b"\n", at)
            ends[data.rfind(b"\n", 0, at) + 1] = end
            at = data.find(needle, end)
    for start in sorted(ends):
        yield data[start : ends[start]]


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


def lines_backwards(file: IO[bytes], *, most: int | None = None) -> Iterator[bytes]:
    """The whole lines of a file from the newest on, as far as they lie in its last `most` bytes.

    What follows the last line feed is half written and left out.
    """
    end = file.seek(0, os.SEEK_END)
    stop = 0 if most is None else max(0, end - most)
    step, rest, seen_end = _TAIL, b"", False
    while end > stop:
        start = max(stop, end - step)
        file.seek(start)
        lines = (_read(file, end - start) + rest).split(b"\n")
        rest = lines[0]
        if not seen_end and len(lines) > 1:
            lines.pop()
            seen_end = True
        # The first may lack its beginning, which lies in what is read next.
        yield from reversed(lines if start == 0 and seen_end else lines[1:])
        end, step = start, min(step * 4, _BACKWARDS)


def _read(file: IO[bytes], count: int) -> bytes:
    """`count` bytes, or fewer at the end of the file."""
    data = file.read(count)
    while 0 < len(data) < count:
        more = file.read(count - len(data))
        if not more:
            break
        data += more
    return data
