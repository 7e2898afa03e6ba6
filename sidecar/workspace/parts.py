"""Counts of a document's parts: its Markdown sections, or its top-level blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.count import Method
from sidecar.counting.incremental import count_text
from sidecar.text.outline import Part, find_parts

if TYPE_CHECKING:
    from sidecar.workspace.counter_choice import CounterChoice
    from sidecar.workspace.documents import Snapshot

Known = dict[tuple[str, int, int], int]
"""By tokenizer, hash and length of the text: a part that did not change is not counted again."""


class CountedPart(msgspec.Struct, frozen=True):
    """A part of a document, its tokens, and how they were counted."""

    part: Part
    tokens: int
    method: Method


def counted_parts(
    taken: Snapshot, choice: CounterChoice, known: Mapping[tuple[str, int, int], int]
) -> tuple[tuple[CountedPart, ...], Known]:
    """The outline with counts, and what is known by them the next time. Blocking."""
    tokenizer, now = choice.tokenizer, Known()
    base = tokenizer.base
    found = []
    for part in find_parts(taken.text, taken.uri, taken.language_id):
        if choice.whole is not None and part.end - part.start == taken.characters:
            found.append(CountedPart(part, choice.whole.tokens, choice.whole.method))
            continue
        text = taken.text[part.start : part.end]
        key = (base.name, hash(text), len(text))
        counted = known.get(key)
        now[key] = count_text(text, base) if counted is None else counted
        tokens = tokenizer.scale(now[key])
        found.append(CountedPart(part, tokens, tokenizer.method))
    return tuple(found), now
