"""Recovers records from lines that are not exactly one JSON object.

Two processes that append to a file, or a crash, leave lines such as `{…}{…}`, the start of a record
with a whole one behind it, or a run of NUL bytes before a record. Records are objects that are not
inside another object. The last object of a cut record, at the line's end or before the next record,
may be either: it is a record if its first member has the same name as the cut record's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

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
