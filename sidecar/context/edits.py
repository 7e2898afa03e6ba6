"""What it does to counts to put other turns in the place of a conversation's, and to undo that."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from sidecar.context.counter import Sums
from sidecar.context.model_counts import Anchor, ModelCounts, TurnCounts
from sidecar.counting.count import Measure
from sidecar.messages.turns import Turn


class Edit(msgspec.Struct, frozen=True):
    """Turns that take the place of all turns so far."""

    turns: list[Turn]
    measures: list[Measure]
    origins: list[int]
    """For each, the turn that it was, or whose place it took; never falling."""
    changes: bool
    """Whether anything differs from the turns so far."""
    cached_lost: int


class Saved(msgspec.Struct, frozen=True):
    """What an edit took the place of."""

    model: str
    turns: list[Turn]
    measures: tuple[Measure, ...]
    anchor: Anchor | None
    compacted: bool
    edited_length: int
    edited_total: Sums
    edited_anchor: Anchor | None

    def rebased(self, old: Anchor, new: Anchor, change: Sums) -> Saved:
        """The same where what was counted beside the turns turned out to be another number."""
        anchor, edited = self.anchor, self.edited_anchor
        if anchor is not None and anchor.with_sections:
            anchor = anchor.rebased(change)
        edited = new if edited is old else edited
        return msgspec.structs.replace(self, anchor=anchor, edited_anchor=edited)

    def recounted(
        self, old: Anchor | None, now: ModelCounts, change: Sums, measures: tuple[Measure, ...]
    ) -> Saved:
        """The same by another tokenizer.

        Args:
            old: the anchor of the turns of the edit by the tokenizer of before.
            now: their counts by this one.
            change: of what is counted beside the turns.
            measures: of the turns that were saved.
        """
        return msgspec.structs.replace(
            self,
            measures=measures,
            anchor=self.anchor and self.anchor.rebased(change),
            edited_total=now.counts.between(0, self.edited_length),
            edited_anchor=now.anchor if self.edited_anchor is old else self.edited_anchor,
        )


def edited_anchor(anchor: Anchor, edit: Edit, old: TurnCounts, new: TurnCounts) -> Anchor:
    """The anchor as it holds for the turns after an edit."""
    covers = bisect_left(edit.origins, anchor.covers)
    change = new.between(0, covers).minus(old.between(0, anchor.covers))
    return msgspec.structs.replace(
        anchor,
        covers=covers,
        prompt_covers=bisect_left(edit.origins, anchor.prompt_covers),
        adjust=anchor.adjust.plus(change),
        cached=max(0, anchor.cached - edit.cached_lost),
    )


def restored_ledger(ledger: ModelCounts, saved: Saved) -> ModelCounts:
    """The counts from before an edit, with those of the turns appended since."""
    restored = ModelCounts()
    restored.counter = ledger.counter
    later = ledger.counts.measures[saved.edited_length :]
    restored.counts = TurnCounts([*saved.measures, *later])
    anchor = ledger.anchor
    if anchor is saved.edited_anchor or anchor is None:
        restored.anchor = saved.anchor
        return restored
    change = restored.counts.between(0, len(saved.measures)).minus(saved.edited_total)
    shift = len(saved.measures) - saved.edited_length
    restored.anchor = msgspec.structs.replace(
        anchor,
        covers=anchor.covers + shift,
        prompt_covers=anchor.prompt_covers + shift,
        adjust=anchor.adjust.plus(change),
    )
    return restored
