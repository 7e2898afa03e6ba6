"""Counts of a document's parts: its Markdown sections, or its top-level blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.count import Method
from sidecar.counting.incremental import count_text
from sidecar.text.outline import outline
from sidecar.text.outline_lines import Part

if TYPE_CHECKING:
    from sidecar.workspace.documents import Snapshot
    from sidecar.workspace.gauges import Gauge

Known = dict[tuple[str, int, int], int]
"""By tokenizer, hash and length of the text: a part that did not change is not counted again."""


class CountedPart(msgspec.Struct, frozen=True):
    """A part of a document, its tokens, and how they were counted."""

    part: Part
    tokens: int
    method: Method


def counted_parts(
    taken: Snapshot, gauge: Gauge, known: Mapping[tuple[str, int, int], int]
) -> tuple[tuple[CountedPart, ...], Known]:
    """The outline with counts, and what is known by them the next time. Blocking."""
    tokenizer, now = gauge.tokenizer, Known()
    basis = tokenizer.basis
    found = []
    for part in outline(taken.text, taken.uri, taken.language_id):
        if gauge.whole is not None and part.end - part.start == taken.characters:
            found.append(CountedPart(part, gauge.whole.tokens, gauge.whole.method))
            continue
        text = taken.text[part.start : part.end]
        key = (basis.name, hash(text), len(text))
        counted = known.get(key)
        now[key] = count_text(text, basis) if counted is None else counted
        tokens = tokenizer.scale(now[key])
        found.append(CountedPart(part, tokens, tokenizer.method))
    return tuple(found), now
