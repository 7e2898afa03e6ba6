"""Converts positions, and computes text lengths in code units, in all of LSP's encodings.

JSON may contain lone surrogates. A lone surrogate is three code units in utf-8, and one code unit
in utf-16 and utf-32. A byte that is not UTF-8 is decoded as a lone surrogate from U+DC80 to U+DCFF,
which is one code unit in all encodings.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Encoding = Literal["utf-8", "utf-16", "utf-32"]


class Position(msgspec.Struct, frozen=True, order=True):
    """A zero-based line, and a character offset in code units of the negotiated encoding."""

    line: int
    character: int


class Range(msgspec.Struct, frozen=True):
    """A half-open range of positions. `end` is the position after the last character."""

    start: Position
    end: Position


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTE = re.compile("[\udc80-\udcff]")


def units(text: str, encoding: Encoding) -> int:
    """Return the text's length in code units. Takes constant time for ASCII and utf-32."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(_encode_utf8(text))


def index_of_unit(text: str, offset: int, encoding: Encoding) -> int:
    """Return the index of the character that contains the code unit at `offset`.

    Returns `len(text)` if the offset is at or after the end of the text.
    """
    if encoding == "utf-32" or text.isascii():
        return min(offset, len(text))
    # Each character has at least one code unit, so later characters cannot affect the result.
    text = text[: offset + 1]
    if encoding == "utf-16":
        return _index_utf16(text, offset)
    return _index_utf8(text, offset)


def _index_utf16(text: str, offset: int) -> int:
    head = text.encode("utf-16-le", "surrogatepass")[: 2 * offset]
    decoded = head.decode("utf-16-le", "surrogatepass")
    in_a_pair = decoded != "" and decoded[-1] != text[len(decoded) - 1]
    return len(decoded) - in_a_pair


def _encode_utf8(text: str) -> bytes:
    """Encode text so that its length is the number of code units in utf-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _BYTE.sub("?", text).encode("utf-8", "surrogatepass")


def _index_utf8(text: str, offset: int) -> int:
    data = _encode_utf8(text)
    offset = min(offset, len(data))
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return len(data[:offset].decode("utf-8", "surrogatepass"))


def join_surrogates(text: str) -> str:
    """Replace each surrogate pair with the character that it encodes."""
    if not has_surrogates(text) or not _PAIR.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def without_lone_surrogates(text: str) -> str:
    """Replace each lone surrogate with U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_undecoded_bytes(text: str) -> bool:
    """Return whether text contains bytes that are not UTF-8, decoded as lone surrogates."""
    return has_surrogates(text) and _BYTE.search(text) is not None


def has_surrogates(text: str) -> bool:
    """Return whether text contains a surrogate."""
    try:
        text.encode()  # this check is ten times faster than a regular expression
    except UnicodeEncodeError:
        return True
    return False
