"""One model's counts of a conversation: a count for each turn, and the last reported number."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.context.counter import Counter, Sums, sums_of
from sidecar.context.protocol import FitResult
from sidecar.context.sections import RestoredPart
from sidecar.counting.count import Measure
from sidecar.counting.text_features import Kind, kind_of
from sidecar.messages.content import read_message
from sidecar.messages.turns import Turn, own_text

if TYPE_CHECKING:
    from sidecar.counting.calibration import ConversationCalibration


LARGEST_KEPT = 16
"""How many of the largest turns to keep: more than are shown, because counts may change."""
CHAT_MARKS = 8
"""How many tokens an endpoint's count of a chat may exceed the reported usage by.

The difference is markup that closes the reply and opens the next message.
"""


PREAMBLE = 24
"""Tokens that a template may add before a conversation, such as a begin-of-text token."""
MARKS_RATE = 0.1
"""Weight of a report when learning the template's markup. The first one counts half."""
CORRECTION = 16.0
"""Largest difference in tokens between the real markup of a message and the formula's."""

Grown = tuple[tuple[Kind | None, int], ...]
"""Kinds and tokens of added text, oldest first. The kind is None for anything but text."""

_UNREAD = frozenset({"picture", "file"})


class TurnCounts:
    """The counts of a conversation's turns for one model.

    Adding a turn, the total, and the sum from any turn on take constant time.
    """

    def __init__(self, measures: Sequence[Measure] = ()) -> None:
        self._measures: list[Measure] = []
        self._upto: list[Sums] = [Sums()]
        self._largest: list[tuple[int, int]] = []
        """A heap of (tokens, -index), so that of equal turns the earlier one comes first."""
        for measure in measures:
            self.add(measure)

    def copy(self) -> TurnCounts:
        made = TurnCounts()
        made._measures, made._upto = self._measures.copy(), self._upto.copy()
        made._largest = self._largest.copy()
        return made

    def __len__(self) -> int:
        return len(self._measures)

    def __getitem__(self, index: int) -> Measure:
        return self._measures[index]

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(self._measures)

    def add(self, measure: Measure) -> None:
        entry = (measure.tokens, -len(self._measures))
        if len(self._largest) < LARGEST_KEPT:
            heapq.heappush(self._largest, entry)
        else:
            heapq.heappushpop(self._largest, entry)
        self._measures.append(measure)
        self._upto.append(self._upto[-1].plus(sums_of(measure)))

    def count_missing(
        self, turns: Sequence[Turn], counter: Counter, restored: Sequence[Measure] = ()
    ) -> None:
        """Count the turns that have no count. The first ones may have `restored` counts instead."""
        for measure in restored[len(self._measures) :]:
            self.add(RestoredPart(measure).measure(counter))
        for index in range(len(self._measures), len(turns)):
            self.add(counter.message(turns[index]))

    def between(self, start: int, end: int | None = None) -> Sums:
        """Return the sum of the turns from `start` to before `end`, by default the last."""
        stop = len(self._measures) if end is None else end
        return self._upto[stop].minus(self._upto[min(start, stop)])

    def recount_tail(self, start: int, measures: Sequence[Measure]) -> None:
        """Replace the counts of the turns from `start` on."""
        del self._measures[start:], self._upto[start + 1 :]
        self._largest = [entry for entry in self._largest if -entry[1] < start]
        heapq.heapify(self._largest)
        for measure in measures:
            self.add(measure)

    def largest(self) -> list[tuple[int, int]]:
        """Return turn and tokens of the largest turns, largest first."""
        return [(-index, tokens) for tokens, index in sorted(self._largest, reverse=True)]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights` into whole tokens that add up exactly.

    If all weights are 0, the shares are equal. A negative `total` counts as 0.
    """
    if not weights:
        return []
    given = weights if any(weights) else [1] * len(weights)
    running = list(accumulate(given, initial=0))
    cut = [max(0, total) * part // running[-1] for part in running]
    return [after - before for before, after in pairwise(cut)]


def kinds_of_turns(turns: Iterable[tuple[Turn, int]]) -> Grown:
    return tuple(part for turn, tokens in turns for part in _kinds_of(turn, tokens))


def newest_kind(turns: Sequence[Turn]) -> Kind:
    """Return the kind of the longer of the last two turns' texts."""
    return kind_of(max(map(own_text, turns[-2:]), key=len, default=""))


def _kinds_of(turn: Turn, tokens: int) -> Grown:
    message = read_message(turn)
    calls = [block.arguments for block in message.flat() if block.kind == "call"]
    texts = [text for text in (*message.texts, *calls) if text]
    if not texts or any(block.kind in _UNREAD for block in message.flat()):
        return ((None, tokens),)
    return tuple(zip(map(kind_of, texts), shares(tokens, list(map(len, texts))), strict=True))


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a server reported. Counts of later turns are added to it."""

    kind: Literal["usage", "chat"]
    """`usage`: reported with a reply. `chat`: an endpoint's count of the chat."""
    base: int
    """The reported tokens. For `usage`, the prompt and the output that is sent back."""
    covers: int
    """Number of turns that `base` includes."""
    fixed: Sums
    """The count of system prompt, tools and sections at the time of the report."""
    prompt: int = 0
    """Tokens of the prompt alone."""
    prompt_covers: int = 0
    """Number of turns in the prompt."""
    reasoning: int = 0
    """Output tokens that are not sent back and are not part of `base`."""
    pending: bool = False
    """Whether the included reply has not been appended yet."""
    cached: int = 0
    """Cached tokens of the prompt."""
    adjust: Sums = Sums()
    """Tokens that pruning has removed from the covered turns."""
    reply_estimate: Sums = Sums()
    """Estimated part of a cut-off reply. It is added to `base`."""

    def rebased(self, change: Sums) -> Anchor:
        """Return the anchor after system prompt, tools and sections were counted again."""
        return msgspec.structs.replace(self, fixed=self.fixed.plus(change))

    @property
    def with_sections(self) -> bool:
        """Whether `base` includes the sections, which an endpoint's count of the chat does not."""
        return self.kind == "usage"


class Sample(msgspec.Struct, frozen=True):
    """A prompt's estimated and reported tokens."""

    estimated: int
    reported: int
    kind: Kind | None = None
    """Kind of the newest text."""
    doubt: float | None = None
    """Error band of the estimate in tokens, or None if unknown."""
    section_tokens: int = 0
    """Estimated tokens of the sections, which the report includes."""
    section_error: float = 0.0
    """Error band of the sections in tokens."""
    has_same_sections: bool = True
    """Whether the sections are unchanged since the last report."""
    expected: Sums | None = None
    """The expected prompt, if an earlier report allows a prediction."""
    markup: float = 0.0
    """Tokens of known markup in the growth since the last report."""
    grown: Grown = ()
    """The growth since the last report; empty if unknown."""

    def apply_to(
        self, calibration: ConversationCalibration, counts: ModelCounts | None = None
    ) -> None:
        """Update the calibration, and the conversation's counts, with this sample."""
        if counts is not None and self.expected is not None:
            counts.learn_request_markup(self.reported - self.expected.tokens(calibration.factor))
        calibration.update(
            self.estimated,
            self.reported,
            self.kind,
            self.doubt,
            excluded=self.section_tokens,
            excluded_margin=self.section_error,
            is_excluded_unchanged=self.has_same_sections,
            template_tokens=self.markup,
            added=self.grown,
        )


class UsageUpdate(msgspec.Struct, frozen=True):
    """What a reported number says about the estimates."""

    sample: Sample | None = None
    """A sample for the calibration, or None if the sent prompt is not known."""
    compacted: bool = False
    """Whether the prompt was much smaller than expected, because the client compacted it."""


class ChatTotal(msgspec.Struct, frozen=True):
    """An endpoint's count of a chat with this number of turns."""

    tokens: int
    covers: int
    fixed: Sums


class ModelCounts:
    """One model's counts of a conversation."""

    def __init__(self) -> None:
        self.turns = TurnCounts()
        self.anchor: Anchor | None = None
        self.chat: ChatTotal | None = None
        self.correction = 0.0
        """Tokens of markup around each message beyond the formula, learned from a server's
        counts."""
        self.excess: tuple[int, int] | None = None
        """Number of turns in the last reported prompt, and by how much it exceeded its own
        count."""
        self.markup = 0.0
        """Tokens of markup per request beyond the expected ones, learned from reports."""
        self.reports = 0
        """Number of reports that `marks` was learned from."""
        self.counter: Counter | None = None
        """The counter that made these counts, or None before the first count."""

    def copy(self) -> ModelCounts:
        made = ModelCounts()
        made.turns, made.anchor, made.chat = self.turns.copy(), self.anchor, self.chat
        made.correction, made.excess = self.correction, self.excess
        made.markup, made.reports = self.markup, self.reports
        made.counter = self.counter
        return made

    def with_reports_only(self, change: Sums) -> ModelCounts:
        """Return counts for another tokenizer, with the reported numbers and no others.

        `change` is the change of the system prompt's and tools' tokens.
        """
        made = ModelCounts()
        made.markup, made.reports = self.markup, self.reports
        made.anchor = self.anchor and self.anchor.rebased(change)
        return made

    def learn_request_markup(self, tokens: float) -> None:
        """Learn from the difference between a reported and an expected prompt."""
        learned = self.markup + tokens * max(MARKS_RATE, 0.5 / (self.reports + 1))
        self.set_markup(learned, self.reports + 1)

    def set_markup(self, markup: float, reports: int) -> None:
        """Set the markup that was learned from a number of reports."""
        most = 2 * CORRECTION  # for the reply, and for the message after it
        self.markup, self.reports = min(max(markup, -most), most), reports

    def priming(self, tokens: int) -> Sums:
        """Return the tokens that each request has once; an estimate unless reported."""
        if self.chat is None and self.turns.between(0).endpoint:
            return Sums(estimate=tokens, error=PREAMBLE)
        return Sums(exact=tokens)

    def sum_turns(self, priming: Sums, upto: int | None = None) -> Sums:
        """Return the sum of the first `upto` turns without reported numbers."""
        return priming.plus(self.turns.between(0, upto))

    def learn_message_markup(self, own: Sums) -> None:
        """Learn the markup around messages from the growth between two prompts.

        Args:
            own: The count of the reported prompt, with the server's counts of texts.
        """
        anchor, before = self.anchor, self.excess
        if anchor is None or not anchor.prompt:
            return
        covers, over = anchor.prompt_covers, anchor.prompt - own.tokens()
        self.excess = covers, over
        if before is None or covers <= before[0]:
            return
        if all(self.turns[index].counted for index in range(before[0], covers)):
            learned = self.correction + (over - before[1]) / (covers - before[0])
            self.correction = min(max(learned, -CORRECTION), CORRECTION)

    def total(self, fixed: Sums, sections: Sums, priming: Sums, upto: int | None = None) -> Sums:
        """Return the size of the next request with the first `upto` turns, by default all.

        This is the reported number, plus the counts of later turns and of other changes.

        Args:
            fixed: The count of system prompt and tools.
            sections: The count of the sections.
            priming: Tokens of a request besides all of these.
            upto: Number of turns, at least as many as the report covers.
        """
        anchor = self.anchor
        if anchor is None:
            return fixed.plus(sections).plus(self.sum_turns(priming, upto))
        now = fixed.plus(sections) if anchor.with_sections else fixed
        since = self.turns.between(anchor.covers, upto)
        if anchor.with_sections and since.estimate:
            since = since.plus(Sums(endpoint=round(self.markup)))
        total = Sums(endpoint=anchor.base).plus(anchor.reply_estimate).plus(anchor.adjust)
        total = total.plus(now.minus(anchor.fixed))
        return total.plus(since) if anchor.with_sections else total.plus(since).plus(sections)

    def share_chat(self, total: int, first: int, fixed: Sums, priming: int, tokenizer: str) -> None:
        """Distribute the growth of an endpoint's count among the new turns.

        Args:
            total: The endpoint's count of all turns, system prompt and tools, in tokens.
            first: The first new turn, if no earlier total is known.
            fixed: The count of system prompt and tools.
            priming: Tokens of a request besides these.
            tokenizer: The name of the endpoint's tokenizer.
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
        """Return whether an endpoint's total describes the chat that usage was reported for.

        It does if the endpoint's count of the reported prompt was exact or, if that is unknown,
        if both numbers for the same turns are close.
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
    """Turns that replace all current turns."""

    turns: list[Turn]
    measures: list[Measure]
    origins: list[int]
    """For each turn, the former index of the turn or of the one it replaces; ascending."""
    changes: bool
    """Whether the turns differ from the former ones."""
    cached_lost: int


class Plan(msgspec.Struct, frozen=True):
    """A pruning plan, and the layout it was made for."""

    result: FitResult
    edit: Edit
    layout: int


class UndoState(msgspec.Struct, frozen=True):
    """The state before an edit, for `undo`."""

    model: str
    turns: list[Turn]
    measures: tuple[Measure, ...]
    anchor: Anchor | None
    compacted: bool
    edited_length: int
    edited_total: Sums
    edited_anchor: Anchor | None

    def rebased(self, old: Anchor, new: Anchor, change: Sums) -> UndoState:
        """Return the state after system prompt, tools and sections were counted again."""
        anchor, edited = self.anchor, self.edited_anchor
        if anchor is not None and anchor.with_sections:
            anchor = anchor.rebased(change)
        edited = new if edited is old else edited
        return msgspec.structs.replace(self, anchor=anchor, edited_anchor=edited)

    def recounted(
        self, old: Anchor | None, now: ModelCounts, change: Sums, measures: tuple[Measure, ...]
    ) -> UndoState:
        """Return the state as counted by another tokenizer.

        Args:
            old: The edited turns' anchor by the former tokenizer.
            now: Their counts by the new tokenizer.
            change: Change of the count of system prompt, tools and sections.
            measures: Counts of the saved turns.
        """
        return msgspec.structs.replace(
            self,
            measures=measures,
            anchor=self.anchor and self.anchor.rebased(change),
            edited_total=now.turns.between(0, self.edited_length),
            edited_anchor=now.anchor if self.edited_anchor is old else self.edited_anchor,
        )


def edited_anchor(anchor: Anchor, edit: Edit, old: TurnCounts, new: TurnCounts) -> Anchor:
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
    """Return the counts from before an edit, with those of turns appended since."""
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
