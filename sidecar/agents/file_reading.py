"""Reads agents' files, and converts the values in them. All session readers use this module.

Files may be compressed, damaged or still being written. Two processes that append to a file, or a
crash, leave lines such as `{…}{…}`, the start of a record with a whole one behind it, or a run of
NUL bytes before a record. Records are objects that are not inside another object. The last object
of a cut record, at the line's end or before the next record, may be either: it is a record if its
first member has the same name as the cut record's.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec

from sidecar import typed
from sidecar.config import toml
from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.messages.vendor_usage import Usage, usage_from_parts, usage_from_prompt
from sidecar.operating_system import NO_ATIME, open_to_read
from sidecar.typed import CONTROLS, object_span

T = TypeVar("T")
CHUNK = 256 << 10
LONGEST_LINE = 64 << 20
"""The maximum line length in bytes. Only the start of a longer line is read."""
HEAD = 1 << 20
_LINE_HEAD = 64 << 10
_TAIL = 32 << 10
_MAX_SETTINGS_BYTES = 1 << 20


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


def decode_file(path: str, kind: type[T]) -> T:
    """Decode a JSON file.

    Raises:
        OSError: The file is missing, or it does not contain valid JSON for `kind`.
    """
    with open_quietly(path) as file:
        return decode_document(file.read(), kind)


def try_decode_file(path: str | Path, kind: type[T]) -> T | None:
    """Decode a JSON file, or return None if it is missing or invalid."""
    with suppress(OSError):
        return decode_file(str(path), kind)
    return None


def try_decode_settings(path: str | Path, kind: type[T]) -> T | None:
    """Decode settings in JSON, TOML or YAML, or return None if the file is missing or invalid.

    The file may contain comments. YAML is read as by `read_nested_yaml`.
    """
    value = _read_settings(path)
    with suppress(msgspec.DecodeError):
        return None if value is None else typed.decode_leniently(msgspec.json.encode(value), kind)
    return None


@cached_until_changed
def _read_settings(path: str) -> object:
    with open_quietly(path) as file:
        text = file.read(_MAX_SETTINGS_BYTES).decode("utf-8-sig", "replace")
    if path.endswith(".toml"):
        with suppress(toml.InvalidTomlError):
            return toml.parse(text)
        return None
    if path.endswith((".yml", ".yaml")) and not text.lstrip().startswith("{"):
        # Imported here, because few agents have such settings, and its patterns take 10 ms.
        from sidecar.text.prompt_markdown import read_nested_yaml

        return read_nested_yaml(text)
    with suppress(ValueError, msgspec.DecodeError):
        return typed.decode(without_comments(text), object)
    return None


_COMMENTS = re.compile(
    r'("(?:[^"\\]|\\.)*+")|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*+[}\]])', re.DOTALL
)


def without_comments(text: str) -> str:
    """Remove the comments and trailing commas from JSON."""
    return _COMMENTS.sub(lambda found: found[1] or "", text)


def read_setting(path: str | Path, names: Sequence[str]) -> object:
    """Return the value of a setting in a JSON, TOML or YAML file, or None if it is not set.

    Args:
        path: The file, which may be missing or malformed.
        names: The setting's name on each level. A list on the way stands for its last item that has
            the value.
    """
    return _value_in(_read_settings(path), names)


def _value_in(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        found = (_value_in(one, names) for one in reversed(value))
        return next((one for one in found if one is not None), None)
    if not names:
        return value
    return _value_in(value.get(names[0]), names[1:]) if isinstance(value, dict) else None


def decode_document(data: bytes, kind: type[T]) -> T:
    """Decode a JSON document.

    Raises:
        OSError: The data is not valid JSON for `kind`.
    """
    try:
        return typed.decode_leniently(data, kind)
    except msgspec.DecodeError as error:
        raise OSError("not a complete session file") from error


class Record(msgspec.Struct, gc=False):
    """Base class for records in agents' files. Undeclared fields are ignored."""


class CamelRecord(Record, rename="camel"):
    """A record with camelCase field names."""


TokenCount = Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None


Number = float | None
"""A JavaScript number, which may have a fractional part. None means that the number is missing."""


def json_digest(*values: msgspec.Raw) -> str | None:
    """Return a digest of JSON values, or None if all of them are missing."""
    found = [bytes(value) for value in values]
    return blake2b(b"\0".join(found), digest_size=8).hexdigest() if any(found) else None


def token_count(number: object) -> int:
    """Convert a number, or a string with one, to a token count.

    The result is 0 if the number is missing or implausible.
    """
    try:
        value = 0.0 if isinstance(number, bool) else float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0
    return int(value) if 0 < value <= 10**12 else 0


def reported_usage(
    prompt: object,
    output: object,
    read: object = None,
    written: object = None,
    reasoning: object = None,
    *,
    written_1h: object = None,
    includes_cached: bool = True,
) -> Usage:
    """Build a call's usage from numbers that may be missing or implausible.

    Args:
        prompt: The number of prompt tokens.
        output: The number of output tokens, including reasoning.
        read: The number of tokens read from the cache.
        written: The number of tokens written to the cache.
        reasoning: The number of reasoning tokens.
        written_1h: The part of `written` that is cached for an hour.
        includes_cached: Whether `prompt` includes the tokens read from and written to the cache.
    """
    convert = usage_from_prompt if includes_cached else usage_from_parts
    return convert(*map(token_count, (prompt, read, written, written_1h, output, reasoning)))


def parse_iso_time(text: str | None) -> datetime | None:
    """Parse an ISO 8601 time, or return None if it is invalid. The default time zone is UTC.

    The text may also be a number of milliseconds since 1970.
    """
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return time_from_ms(float(text)) if text.isdecimal() else None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time_from_ms(milliseconds: float | None) -> datetime | None:
    """Convert milliseconds since 1970 to a time, or return None if the value is out of range."""
    if not milliseconds or not 0 < milliseconds < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def parse_time(stamp: object) -> datetime | None:
    """Parse an ISO 8601 time, or a number of seconds or milliseconds since 1970.

    Returns None if the value is invalid.
    """
    if isinstance(stamp, int | float):
        return time_from_ms(stamp if stamp > 1e11 else stamp * 1000)
    return parse_iso_time(stamp if isinstance(stamp, str) else None)


def time_from_ns(nanoseconds: int) -> datetime:
    """Convert nanoseconds since 1970 to a time."""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


def parse_usd(amount: Number) -> Decimal | None:
    """Convert a cost in USD that an agent reported.

    Returns None if the cost is missing, implausible or 0. Agents report 0 for unknown prices.
    """
    return Decimal(repr(amount)) if amount is not None and 0 < amount < 1e6 else None


def credits_to_usd(credits: float | None) -> Decimal | None:
    """Convert GitHub AI credits to USD. A credit is worth $0.01. None and 0 are unknown."""
    return Decimal(repr(credits)) / 100 if credits and credits > 0 else None


def nano_credits_to_usd(number: float | str | None) -> Decimal | None:
    """Convert billionths of GitHub AI credits to USD."""
    return credits_to_usd(float(number) / 10**9) if number else None


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
