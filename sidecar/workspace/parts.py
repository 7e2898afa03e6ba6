"""Counts of a document's parts: its Markdown sections, or its top-level blocks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
from cachetools import LRUCache

from sidecar.counting.incremental import count_text
from sidecar.text.outline import Part, outline

if TYPE_CHECKING:
    from sidecar.counting.count import Tokenizer

_lock = threading.Lock()
_counts: LRUCache[tuple[str, int, int], int] = LRUCache(maxsize=20_000)
"""By tokenizer, hash and length of the text: a section that did not change is not counted again."""


class CountedPart(msgspec.Struct, frozen=True):
    """A part of a document and its tokens."""

    part: Part
    tokens: int


def counted_parts(
    text: str, name: str, language: str, tokenizer: Tokenizer
) -> tuple[CountedPart, ...]:
    """The outline with counts; blocking, so run it off the event loop."""
    return tuple(
        CountedPart(part, count_part(text[part.start : part.end], tokenizer))
        for part in outline(text, name, language)
    )


def count_part(text: str, tokenizer: Tokenizer) -> int:
    """Tokens of one part, remembered by its hash."""
    key = (tokenizer.name, hash(text), len(text))
    with _lock:
        known = _counts.get(key)
    if known is not None:
        return known
    tokens = count_text(text, tokenizer)
    with _lock:
        _counts[key] = tokens
    return tokens
