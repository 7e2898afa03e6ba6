"""Reads agents' files: compressed, damaged or still being written.

Two processes that append to a file, or a crash, leave lines such as `{…}{…}`, the start of a record
with a whole one behind it, or a run of NUL bytes before a record. Records are objects that are not
inside another object. The last object of a cut record, at the line's end or before the next record,
may be either: it is a record if its first member has the same name as the cut record's.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.operating_system import NO_ATIME, open_to_read
from sidecar.typed import CONTROLS, object_span

_OBJECT = re.compile(rb'\{\s*"([^"]*)')
"""Matches the start of an object up to the end of its first member's name."""
_BEFORE = b" \t\r\n?\xef\xbb\xbf"
"""What may precede the first record: spaces, a byte order mark, and NUL bytes (replaced by `?`)."""
_SEPARATOR = re.compile(rb"[\s,?\xef\xbb\xbf]*")
_INNER = re.compile(rb"\s*[,}\]]")
"""Matches what follows a value inside a list or an object."""
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_CUT = 2
"""Decoding a cut record fails at most this many bytes away from the start of the next one."""
_ATTEMPT, _MOST_WORK, _MOST_PER_BYTE = 400, 1_000_000, 16
"""Limits for hostile lines: the work of an attempt, and the most work per line and per byte."""
_MEMBER = re.compile(
    r'\s*[{,]\s*("(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")\s*:\s*', re.DOTALL
)
_VALUE_END = re.compile(r"\s*[,}\]]")
_JSON = json.JSONDecoder(strict=False)
_DEPTH = 8


def whole_objects(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each record in a line."""
    text = _without_flaws(line)
    position, failed_at, work = 0, -9, _MOST_WORK + _MOST_PER_BYTE * len(line)
    next_record, cut_name = len(text) - len(text.lstrip(_BEFORE)), b""
    while work > 0 and (found := _OBJECT.search(text, position)):
        start, name = found.start(), found[1]
        try:
            is_whole, length = object_span(memoryview(text)[start:])
        except RecursionError:
            return
        end = start + length
        work -= _ATTEMPT + length
        is_behind_cut = abs(start - failed_at) <= _CUT
        if not is_whole:
            if is_behind_cut or start > failed_at:
                cut_name = name
            position, failed_at = start + 1, max(failed_at, end)
            continue
        separator = _SEPARATOR.match(text, end)
        following = separator.end() if separator else end
        if start == next_record or is_behind_cut:
            is_record = True
        elif end == failed_at and text[following : following + 1] in (b"", b"{"):
            # It is the last member of a cut record, or a record in the place of a member.
            is_record = name == cut_name
        else:
            is_record = not _INNER.match(text, end)
        if is_record:
            yield start, end
            next_record = following
        position = end


def _without_flaws(line: bytes) -> bytes:
    """Return a line of the same length without what msgspec rejects inside a record."""
    text = _HALF_PAIR.sub(rb"\\u00", line.translate(CONTROLS))
    return text.replace(b"NaN", b"0.0").replace(b"Infinity", b"10000000")


def leading_members(head: bytes) -> bytes:
    """Return a record with the members that are complete in the start of a record.

    A list that is cut is empty. The result is empty if `head` is not the start of an object.
    """
    members = _leading_members(head.decode("utf-8", "replace"), 0)
    return json.dumps(members).encode() if members else b""


def _leading_members(text: str, position: int, depth: int = 0) -> dict[str, Any]:
    members: dict[str, Any] = {}
    while found := _MEMBER.match(text, position):
        name, position = json.loads(found[1], strict=False), found.end()
        try:
            members[name], position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            if text.startswith("[", position):
                members[name] = []
            elif text.startswith("{", position) and depth < _DEPTH:
                members[name] = _leading_members(text, position, depth + 1)
            break
        if not _VALUE_END.match(text, position):  # a number that is cut
            del members[name]
    return members


T = TypeVar("T")
CHUNK = 256 << 10
LONGEST_LINE = 64 << 20
"""The maximum line length in bytes. Only the start of a longer line is read."""
HEAD = 1 << 20
_LINE_HEAD = 64 << 10
_TAIL = 32 << 10


def open_quietly(path: str) -> IO[bytes]:
    """Open a file for unbuffered reading, without changing its access time if possible.

    `.zst` and `.zstd` files are decompressed on the fly.

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
    return _open_compressed(plain) if path.endswith((".zst", ".zstd")) else plain


def _open_compressed(plain: IO[bytes]) -> IO[bytes]:
    from sidecar.agents.compressed import open_decompressed  # zstd is rarely needed

    return open_decompressed(plain)


def cached_until_changed(read: Callable[[str], T]) -> Callable[[str | Path], T | None]:
    """Cache what a function reads from a file, until the file is modified.

    The returned function returns None if the file cannot be read.
    """

    @lru_cache(maxsize=32)
    def read_version(path: str, _stamp: FileStamp) -> T:
        return read(path)

    def read_current(path: str | Path) -> T | None:
        stamp = stamp_of(path)
        with suppress(OSError):
            return None if stamp is None else read_version(str(path), stamp)
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
