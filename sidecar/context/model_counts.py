"""A conversation's counts for one model: each turn's count and the last reported size."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.context.counter import Counter, Sums, sums_of
from sidecar.context.protocol import FitResult
from sidecar.context.sections import RestoredPart
from sidecar.counting.count import Measure
from sidecar.messages.turns import Turn

if TYPE_CHECKING:
    from sidecar.counting.calibration import ConversationCalibration


LARGEST_KEPT = 16
"""The number of turns that `TurnCounts.largest` returns.

This is more than the number of turns displayed, because calibration can change their order.
"""
CHAT_MARKS = 8
"""Maximum difference between an endpoint's count of a chat and the reported usage, in tokens.

The two sizes differ by the markup that ends the reply and starts the next message.
"""


PREAMBLE = 24
"""Maximum number of tokens that a template adds before the first message."""


class TurnCounts:
    """The token count of each turn for one model. `between` takes constant time."""

    def __init__(self, measures: Sequence[Measure] = ()) -> None:
        self._measures: list[Measure] = []
        self._upto: list[Sums] = [Sums()]
        for measure in measures:
            self.add(measure)

    def copy(self) -> TurnCounts:
        made = TurnCounts()
        made._measures, made._upto = self._measures.copy(), self._upto.copy()
        return made

    def __len__(self) -> int:
        return len(self._measures)

    def __getitem__(self, index: int) -> Measure:
        return self._measures[index]

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(self._measures)

    def add(self, measure: Measure) -> None:
        self._measures.append(measure)
        self._upto.append(self._upto[-1].plus(sums_of(measure)))

    def count_missing(
        self, turns: Sequence[Turn], counter: Counter, restored: Sequence[Measure] = ()
    ) -> None:
        """Count the turns that have no count yet.

        Args:
            turns: All turns of the conversation.
            counter: The counter for the model.
            restored: The leading turns' saved counts.
        """
        for measure in restored[len(self._measures) :]:
            self.add(RestoredPart(measure).measure(counter))
        for index in range(len(self._measures), len(turns)):
            self.add(counter.message(turns[index]))

    def between(self, start: int, end: int | None = None) -> Sums:
        """Return the total of the turns from `start` up to but not including `end`."""
        stop = len(self._measures) if end is None else end
        return self._upto[stop].minus(self._upto[min(start, stop)])

    def recount_tail(self, start: int, measures: Sequence[Measure]) -> None:
        """Replace the counts of all turns from `start` on."""
        del self._measures[start:], self._upto[start + 1 :]
        for measure in measures:
            self.add(measure)

    def largest(self) -> list[tuple[int, int]]:
        """Return the indices and sizes of the largest turns, largest first."""
        sizes = ((measure.tokens, -index) for index, measure in enumerate(self._measures))
        return [(-index, tokens) for tokens, index in heapq.nlargest(LARGEST_KEPT, sizes)]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split a total into integers in proportion to `weights`.

    The integers add up to the total. If all weights are 0, the total is split equally. A
    negative total is treated as 0.
    """
    if not weights:
        return []
    given = weights if any(weights) else [1] * len(weights)
    running = list(accumulate(given, initial=0))
    cut = [max(0, total) * part // running[-1] for part in running]
    return [after - before for before, after in pairwise(cut)]


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """The last reported size of a conversation. The counts of later turns are added to it."""

    kind: Literal["usage", "chat"]
    """`usage` if a vendor reported the size with a reply; `chat` if an endpoint counted it."""
    base: int
    """The reported tokens. With `usage`, this is the prompt plus the output that the client sends
    back with the next request.
    """
    covers: int
    """The number of turns included in `base`."""
    fixed: Sums
    """The combined count of the system prompt, the tools and the sections in the reported prompt.
    """
    prompt: int = 0
    """The reported size of the prompt without the reply, in tokens."""
    prompt_covers: int = 0
    """The number of turns in the reported prompt."""
    reasoning: int = 0
    """Output tokens that are not sent back, and therefore not part of `base`."""
    pending: bool = False
    """Whether `base` includes a reply that has not been appended yet."""
    cached: int = 0
    """Prompt tokens in the vendor's cache."""
    adjust: Sums = Sums()
    """The change in size caused by pruning."""
    reply_estimate: Sums = Sums()
    """An estimated correction for a cut-off reply. It is added to `base`."""

    def rebased(self, change: Sums) -> Anchor:
        """Return a copy with `change` added to `fixed`, the count of all parts except the turns."""
        return msgspec.structs.replace(self, fixed=self.fixed.plus(change))

    @property
    def with_sections(self) -> bool:
        """Whether `base` includes the sections. An endpoint's count of the chat excludes them."""
        return self.kind == "usage"


class Sample(msgspec.Struct, frozen=True):
    """A calibration sample: the estimated and the reported size of a prompt."""

    estimated: int
    reported: int
    margin: float | None = None
    """The estimate's error band in tokens, or None if unknown."""
    section_tokens: int = 0
    """The sections' estimated size. `reported` includes the sections, but `estimated` does not."""
    section_error: float = 0.0
    has_same_sections: bool = True
    """Whether the sections are unchanged since the last report."""

    def apply_to(self, calibration: ConversationCalibration) -> None:
        """Apply this sample to a calibration."""
        calibration.update(
            self.estimated,
            self.reported,
            self.margin,
            excluded=self.section_tokens,
            excluded_margin=self.section_error,
            is_excluded_unchanged=self.has_same_sections,
        )


class UsageUpdate(msgspec.Struct, frozen=True):
    """The effects of applying reported usage to a conversation."""

    sample: Sample | None = None
    """The calibration sample, or None if the report is unsuitable."""
    compacted: bool = False
    """Whether the reported prompt was so small that the client must have compacted it."""


class ChatTotal(msgspec.Struct, frozen=True):
    """An endpoint's token count of the system prompt, the tools and the first `covers` turns."""

    tokens: int
    covers: int
    fixed: Sums


class ModelCounts:
    """A conversation's counts for one model, and the last reported size."""

    def __init__(self) -> None:
        self.turns = TurnCounts()
        self.anchor: Anchor | None = None
        self.chat: ChatTotal | None = None
        self.counter: Counter | None = None

    def copy(self) -> ModelCounts:
        made = copy(self)
        made.turns = self.turns.copy()
        return made

    def with_reports_only(self, change: Sums) -> ModelCounts:
        """Return counts for another tokenizer. Only reported token counts are kept.

        Args:
            change: The change in the combined count of the system prompt and the tools.
        """
        made = ModelCounts()
        made.anchor = self.anchor and self.anchor.rebased(change)
        return made

    def priming(self, tokens: int) -> Sums:
        """Convert the number of priming tokens, which every request contains, to `Sums`."""
        if self.chat is None and self.turns.between(0).endpoint:
            return Sums(estimate=tokens, error=PREAMBLE)
        return Sums(exact=tokens)

    def sum_turns(self, priming: Sums, upto: int | None = None) -> Sums:
        """Return the size of the first `upto` turns, ignoring reported usage."""
        return priming.plus(self.turns.between(0, upto))

    def total(self, fixed: Sums, sections: Sums, priming: Sums, upto: int | None = None) -> Sums:
        """Return the next request's size. If `upto` is given, later turns are ignored.

        The result is the last reported size plus the counts of later turns and of other changes.
        Without a report, everything is counted.

        Args:
            fixed: The combined count of the system prompt and the tools.
            sections: The sections' count.
            priming: Tokens that a request contains in addition to messages, tools and sections.
            upto: The number of turns. It must not be smaller than the number in the report.
        """
        anchor = self.anchor
        if anchor is None:
            return fixed.plus(sections).plus(self.sum_turns(priming, upto))
        now = fixed.plus(sections) if anchor.with_sections else fixed
        since = self.turns.between(anchor.covers, upto)
        total = Sums(endpoint=anchor.base).plus(anchor.reply_estimate).plus(anchor.adjust)
        total = total.plus(now.minus(anchor.fixed))
        return total.plus(since) if anchor.with_sections else total.plus(since).plus(sections)

    def share_chat(self, total: int, first: int, fixed: Sums, priming: int, tokenizer: str) -> None:
        """Distribute the growth of an endpoint's total among the new turns.

        Args:
            total: The endpoint's count of all turns, the system prompt and the tools, in tokens.
            first: The index of the first new turn. Ignored if an earlier total is known.
            fixed: The combined count of the system prompt and the tools.
            priming: Tokens that a request contains in addition to messages and tools.
            tokenizer: The endpoint's tokenizer name.
        """
        last = self.chat
        if last is not None:
            first = last.covers
            grown = total - last.tokens - fixed.minus(last.fixed).tokens()
        else:
            grown = total - fixed.tokens() - priming - self.turns.between(0, first).tokens()
        parts = shares(grown, [measure.tokens for measure in self.turns.measures[first:]])
        counted = [Measure(tokens, "endpoint", tokenizer, 0.0) for tokens in parts]
        self.turns.recount_tail(first, counted)
        self.chat = ChatTotal(total, len(self.turns.measures), fixed)

    def counts_same_chat(self, before: ChatTotal | None, total: int, end: int) -> bool:
        """Return whether an endpoint counted the same chat for which a vendor reported usage.

        If the endpoint has also counted the reported prompt, that count must equal the reported
        size. Otherwise, the endpoint's count and the report must cover the same turns, and their
        sizes must be almost equal.
        """
        anchor = self.anchor
        if anchor is None or anchor.kind == "chat":
            return True
        if before is not None and before.covers == anchor.prompt_covers:
            return before.tokens == anchor.prompt
        estimated = anchor.reply_estimate
        difference = total - anchor.base - estimated.tokens()
        return anchor.covers == end and abs(difference) <= CHAT_MARKS + abs(estimated.error)


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
