"""Lengths and offsets in the code units of LSP's three position encodings.

Lone surrogates are legal (JSON can carry them): three units in utf-8, one in utf-16 and utf-32.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.text.positions import Encoding

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def units(text: str, encoding: Encoding) -> int:
    """The length of `text` in code units of `encoding`. Constant time for ASCII and utf-32."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def index_at(text: str, offset: int, encoding: Encoding) -> int:
    """The index in `text` of the code unit `offset`; at most `len(text)`.

    A unit in the middle of a character stands for that character's start.
    """
    if encoding == "utf-32" or text.isascii():
        return min(offset, len(text))
    # No character takes less than one unit: what is wanted lies in the first `offset` characters.
    text = text[: offset + 1]
    if encoding == "utf-16":
        return _index_utf16(text, offset)
    return _index_utf8(text, offset)


def _index_utf16(text: str, offset: int) -> int:
    head = text.encode("utf-16-le", "surrogatepass")[: 2 * offset]
    decoded = head.decode("utf-16-le", "surrogatepass")
    in_a_pair = decoded != "" and decoded[-1] != text[len(decoded) - 1]
    return len(decoded) - in_a_pair


def _index_utf8(text: str, offset: int) -> int:
    data = text.encode("utf-8", "surrogatepass")
    offset = min(offset, len(data))
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return len(data[:offset].decode("utf-8", "surrogatepass"))


def join_surrogates(text: str) -> str:
    """`text` with each high surrogate and the low one after it made into their one character."""
    if not has_surrogates(text) or not _PAIR.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def has_surrogates(text: str) -> bool:
    """Whether some surrogate is in `text`. Encoding it finds out ten times sooner than a search."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
