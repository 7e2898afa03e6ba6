"""Counts a document's parts: its Markdown sections or top-level blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from sidecar.counting.count import Method
from sidecar.counting.incremental import count_text
from sidecar.text.outline import Part, find_parts

if TYPE_CHECKING:
    from sidecar.workspace.counter_choice import CounterChoice
    from sidecar.workspace.documents import Snapshot

PartCounts: TypeAlias = dict[tuple[str, int, int], int]
"""Uncalibrated counts by tokenizer name, text hash and text length."""


class CountedPart(msgspec.Struct, frozen=True):
    """A part of a document, its tokens, and how they were counted."""

    part: Part
    tokens: int
    method: Method


def count_parts(
    snapshot: Snapshot, choice: CounterChoice, before: Mapping[tuple[str, int, int], int]
) -> tuple[tuple[CountedPart, ...], PartCounts]:
    """Count the parts of a document. Blocking.

    Args:
        snapshot: The document.
        choice: How to count the document.
        before: Counts from the last call, which are reused for unchanged parts.
    """
    base, counts, counted = choice.tokenizer.base, PartCounts(), []
    for part in find_parts(snapshot.text, snapshot.uri, snapshot.language_id):
        if choice.whole is not None and part.end - part.start == snapshot.characters:
            measure = choice.whole
        else:
            text = snapshot.text[part.start : part.end]
            key = (base.name, hash(text), len(text))
            tokens = before.get(key)
            counts[key] = count_text(text, base) if tokens is None else tokens
            measure = choice.tokenizer.measure_base(counts[key], text)
        counted.append(CountedPart(part, measure.tokens, measure.method))
    return tuple(counted), counts
