"""Edits of a conversation by pruning plans, and the counts that `undo` restores."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from sidecar.context.counter import Anchor, ModelCounts, Sums, TurnCounts
from sidecar.context.protocol import FitResult
from sidecar.counting.count import Measure
from sidecar.messages.turns import Turn


class Edit(msgspec.Struct, frozen=True):
    """An edit that replaces all turns of a conversation."""

    turns: list[Turn]
    measures: list[Measure]
    origins: list[int]
    """Each turn's index before the edit, in ascending order.

    A summary has the index of the first turn that it replaces.
    """
    changes: bool
    cached_lost: int


class Plan(msgspec.Struct, frozen=True):
    """A pruning plan, which is valid for one `layout` of the conversation."""

    result: FitResult
    edit: Edit
    layout: int


class UndoState(msgspec.Struct, frozen=True):
    """The state of a conversation before an edit. `undo` restores it."""

    model: str
    turns: list[Turn]
    measures: tuple[Measure, ...]
    anchor: Anchor | None
    compacted: bool
    edited_length: int
    edited_total: Sums
    edited_anchor: Anchor | None

    def rebased(self, old: Anchor, new: Anchor, change: Sums) -> UndoState:
        """Return a copy with `change` added to the count of everything except the turns.

        Args:
            old: The conversation's anchor before the change.
            new: The conversation's anchor after the change.
            change: The difference to add to `Anchor.fixed`.
        """
        anchor, edited = self.anchor, self.edited_anchor
        if anchor is not None and anchor.with_sections:
            anchor = anchor.rebased(change)
        edited = new if edited is old else edited
        return msgspec.structs.replace(self, anchor=anchor, edited_anchor=edited)

    def recounted(
        self, old: Anchor | None, now: ModelCounts, change: Sums, measures: tuple[Measure, ...]
    ) -> UndoState:
        """Return the state with counts from another tokenizer.

        Args:
            old: The anchor after the edit, counted with the previous tokenizer.
            now: The counts after the edit, counted with the new tokenizer.
            change: The change in the combined count of the system prompt and the tools.
            measures: The new tokenizer's counts of the turns that existed before the edit.
        """
        return msgspec.structs.replace(
            self,
            measures=measures,
            anchor=self.anchor and self.anchor.rebased(change),
            edited_total=now.turns.between(0, self.edited_length),
            edited_anchor=now.anchor if self.edited_anchor is old else self.edited_anchor,
        )


def edited_anchor(anchor: Anchor, edit: Edit, old: TurnCounts, new: TurnCounts) -> Anchor:
    """Adjust an anchor for an edit, given the counts of the turns before and after the edit."""
    covers = bisect_left(edit.origins, anchor.covers)
    change = new.between(0, covers).minus(old.between(0, anchor.covers))
    return msgspec.structs.replace(
        anchor,
        covers=covers,
        prompt_covers=bisect_left(edit.origins, anchor.prompt_covers),
        adjust=anchor.adjust.plus(change),
        cached=max(0, anchor.cached - edit.cached_lost),
    )


def restored_counts(counts: ModelCounts, saved: UndoState) -> ModelCounts:
    """Return the counts from before an edit, plus the counts of turns appended since."""
    restored = ModelCounts()
    restored.counter = counts.counter
    later = counts.turns.measures[saved.edited_length :]
    restored.turns = TurnCounts([*saved.measures, *later])
    anchor = counts.anchor
    if anchor is saved.edited_anchor or anchor is None:
        restored.anchor = saved.anchor
        return restored
    change = restored.turns.between(0, len(saved.measures)).minus(saved.edited_total)
    shift = len(saved.measures) - saved.edited_length
    restored.anchor = msgspec.structs.replace(
        anchor,
        covers=anchor.covers + shift,
        prompt_covers=anchor.prompt_covers + shift,
        adjust=anchor.adjust.plus(change),
    )
    return restored
