"""One model's counts of a conversation: of each turn, and the reported number that anchors them."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.context.counter import Counter, Sums, sums_of
from sidecar.context.results import FitResult
from sidecar.context.sections import RestoredPart
from sidecar.counting.count import Measure
from sidecar.counting.kinds import Kind, kind_of
from sidecar.messages.content import read_message
from sidecar.messages.turns import Turn, own_text

if TYPE_CHECKING:
    from sidecar.counting.calibration import ConversationCalibration


LARGEST_KEPT = 16
"""More than are shown, so that a turn that is counted anew leaves enough others."""
CHAT_MARKS = 8
"""Tokens by which an endpoint's count of a chat may exceed the same chat's reported usage: the
marks that close the reply and open the next one."""


PREAMBLE = 24
"""Tokens that a template may put before a conversation: a begin-of-text token, a system prompt of
its own. In doubt until a prompt was reported."""
MARKS_RATE = 0.1
"""How much one report says of the marks that its template puts beside texts: half of the first,
this much of each later one."""
CORRECTION = 16.0
"""No template puts so many more tokens around a message than its formula says."""

Grown = tuple[tuple[Kind | None, int], ...]
"""Kinds and tokens of what was added, oldest first; None for what is no text or is not known."""

_UNREAD = frozenset({"picture", "file"})


class TurnCounts:
    """The counts of a conversation's turns for one model, in their order.

    Adding a turn, the total and the sum from any turn on take the same time however long the
    conversation is.
    """

    def __init__(self, measures: Sequence[Measure] = ()) -> None:
        self._measures: list[Measure] = []
        self._upto: list[Sums] = [Sums()]
        self._largest: list[tuple[int, int]] = []
        """A heap of (tokens, -index); earlier turns win among equals."""
        for measure in measures:
            self.add(measure)

    def copy(self) -> TurnCounts:
        """The same counts, which grow apart from these."""
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
        """All of them, by turn."""
        return tuple(self._measures)

    def add(self, measure: Measure) -> None:
        """Note the count of the next turn."""
        entry = (measure.tokens, -len(self._measures))
        if len(self._largest) < LARGEST_KEPT:
            heapq.heappush(self._largest, entry)
        else:
            heapq.heappushpop(self._largest, entry)
        self._measures.append(measure)
        self._upto.append(self._upto[-1].plus(sums_of(measure)))

    def catch_up(
        self, turns: Sequence[Turn], counter: Counter, restored: Sequence[Measure] = ()
    ) -> None:
        """Count the turns that have no count yet; of the first ones only what was `restored` is
        known."""
        for measure in restored[len(self._measures) :]:
            self.add(RestoredPart(measure).measure(counter))
        for index in range(len(self._measures), len(turns)):
            self.add(counter.message(turns[index]))

    def between(self, start: int, end: int | None = None) -> Sums:
        """The sum of the turns from `start` to before `end` (all that follow by default)."""
        stop = len(self._measures) if end is None else end
        return self._upto[stop].minus(self._upto[min(start, stop)])

    def recount_tail(self, start: int, measures: Sequence[Measure]) -> None:
        """Give the turns from `start` on other counts, as when the endpoint has counted them."""
        del self._measures[start:], self._upto[start + 1 :]
        self._largest = [entry for entry in self._largest if -entry[1] < start]
        heapq.heapify(self._largest)
        for measure in measures:
            self.add(measure)

    def largest(self) -> list[tuple[int, int]]:
        """(turn, tokens) of the largest turns, most tokens first."""
        return [(-index, tokens) for tokens, index in sorted(self._largest, reverse=True)]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` shared in proportion to `weights`, in whole tokens that add up to it exactly.

    Where all weights are 0 the shares are equal. `total` below 0 counts as 0.
    """
    if not weights:
        return []
    given = weights if any(weights) else [1] * len(weights)
    running = list(accumulate(given, initial=0))
    cut = [max(0, total) * part // running[-1] for part in running]
    return [after - before for before, after in pairwise(cut)]


def grown_by(turns: Iterable[tuple[Turn, int]]) -> Grown:
    """The kinds of these turns, with what each was counted as."""
    return tuple(part for turn, tokens in turns for part in _kinds_of(turn, tokens))


def newest_kind(turns: Sequence[Turn]) -> Kind:
    """What kind of text came last: the longer one of two turns."""
    return kind_of(max(map(own_text, turns[-2:]), key=len, default=""))


def _kinds_of(turn: Turn, tokens: int) -> Grown:
    """A turn's texts, results and calls share its tokens by their lengths."""
    message = read_message(turn)
    calls = [block.arguments for block in message.flat() if block.kind == "call"]
    texts = [text for text in (*message.texts, *calls) if text]
    if not texts or any(block.kind in _UNREAD for block in message.flat()):
        return ((None, tokens),)
    return tuple(zip(map(kind_of, texts), shares(tokens, list(map(len, texts))), strict=True))


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a server gave for the conversation as it stood: all later counts add to it."""

    kind: Literal["usage", "chat"]
    """`usage`: reported with a reply. `chat`: the endpoint counted the chat."""
    base: int
    """Tokens of what it covers: for `usage` the prompt and the output that is sent back."""
    covers: int
    """How many turns it covers."""
    fixed: Sums
    """What was counted beside the turns when it was given; the difference to today's is added."""
    prompt: int = 0
    """Tokens of the prompt alone."""
    prompt_covers: int = 0
    """How many turns the prompt held."""
    reasoning: int = 0
    """Output that is not in `base`, because it is not sent back."""
    pending: bool = False
    """The reply that it covers has not been appended yet."""
    cached: int = 0
    """Tokens of the prompt that the vendor's cache held."""
    adjust: Sums = Sums()
    """What pruning has since taken from the turns that it covers."""
    reply_estimate: Sums = Sums()
    """To add to `base`: the part of a reply that was cut off that no report tells apart."""

    def rebased(self, change: Sums) -> Anchor:
        """The same where what was counted beside the turns turned out to be another number."""
        return msgspec.structs.replace(self, fixed=self.fixed.plus(change))

    @property
    def with_sections(self) -> bool:
        """Whether the sections were in the number: an endpoint counts the chat without them."""
        return self.kind == "usage"


class Sample(msgspec.Struct, frozen=True):
    """A prompt as this counter estimated it, and as it was reported; tokens."""

    estimated: int
    reported: int
    kind: Kind | None = None
    """What its newest text is."""
    doubt: float | None = None
    """Half of the band of the estimate; None where that was not measured."""
    apart: int = 0
    """The part of what was reported that was estimated apart from this: sections."""
    apart_doubt: float = 0.0
    """Half of the band of that part, in tokens."""
    steady: bool = True
    """Whether that part is the same text as at the last report."""
    expected: Sums | None = None
    """The whole of it as it was expected, where that rests on a report before it."""
    marks: float = 0.0
    """Tokens of its growth that are the template's, as far as they are known."""
    grown: Grown = ()
    """What it grew by; nothing where that is not known."""

    def teach(
        self, calibration: ConversationCalibration, ledger: ModelCounts | None = None
    ) -> None:
        """Have a conversation's calibration learn from it, and its counts, where it is in force."""
        if ledger is not None and self.expected is not None:
            ledger.exceeded(self.reported - self.expected.tokens(calibration.factor))
        calibration.update(
            self.estimated,
            self.reported,
            self.kind,
            self.doubt,
            excluded=self.apart,
            excluded_margin=self.apart_doubt,
            is_excluded_unchanged=self.steady,
            template_tokens=self.marks,
            added=self.grown,
        )


class UsageUpdate(msgspec.Struct, frozen=True):
    """What a reported number showed."""

    sample: Sample | None = None
    """For the calibration; None where the session does not know what was sent."""
    compacted: bool = False
    """The prompt was much smaller than expected: the client shortened its history."""


class ChatTotal(msgspec.Struct, frozen=True):
    """An endpoint's count of a whole chat of so many turns."""

    tokens: int
    covers: int
    fixed: Sums


class ModelCounts:
    """One model's counts of a conversation."""

    def __init__(self) -> None:
        self.counts = TurnCounts()
        self.anchor: Anchor | None = None
        self.chat: ChatTotal | None = None
        self.correction = 0.0
        """Tokens around each message beyond its formula, learned where a server counts texts."""
        self.unexplained: tuple[int, int] | None = None
        """For how many turns a prompt was last reported, and by what it exceeded its own count."""
        self.marks = 0.0
        """Tokens by which prompts have exceeded what was expected beside the texts: of the
        template, once a request. Learned from reports."""
        self.lessons = 0
        """How many reports `marks` was learned from."""
        self.counter: Counter | None = None
        """What has counted it; None while nothing was counted."""

    def copy(self) -> ModelCounts:
        """The same counts and anchor, apart from these."""
        made = ModelCounts()
        made.counts, made.anchor, made.chat = self.counts.copy(), self.anchor, self.chat
        made.correction, made.unexplained = self.correction, self.unexplained
        made.marks, made.lessons = self.marks, self.lessons
        made.counter = self.counter
        return made

    def anew(self, change: Sums) -> ModelCounts:
        """For another tokenizer: nothing counted, but what was reported.

        `change`: of what the system prompt and the tools take, which the anchor goes by.
        """
        made = ModelCounts()
        made.marks, made.lessons = self.marks, self.lessons
        made.anchor = self.anchor and self.anchor.rebased(change)
        return made

    def exceeded(self, tokens: float) -> None:
        """Learn from the tokens by which a reported prompt exceeded what was expected of it."""
        learned = self.marks + tokens * max(MARKS_RATE, 0.5 / (self.lessons + 1))
        self.take_marks(learned, self.lessons + 1)

    def take_marks(self, marks: float, lessons: int) -> None:
        """Take what so many reports have taught of the template."""
        most = 2 * CORRECTION  # around the reply, and around what comes after it
        self.marks, self.lessons = min(max(marks, -most), most), lessons

    def priming(self, tokens: int) -> Sums:
        """What a request carries once, `tokens` by formula: in doubt where all else is counted."""
        if self.chat is None and self.counts.between(0).endpoint:
            return Sums(estimate=tokens, error=PREAMBLE)
        return Sums(exact=tokens)

    def own(self, priming: Sums, upto: int | None = None) -> Sums:
        """The first `upto` turns as they were counted, without any reported number."""
        return priming.plus(self.counts.between(0, upto))

    def reported(self, own: Sums) -> None:
        """Learn what the template puts around a message from what two prompts have grown by.

        Args:
            own: the count of the prompt that the anchor was reported for, texts by the server.
        """
        anchor, before = self.anchor, self.unexplained
        if anchor is None or not anchor.prompt:
            return
        covers, over = anchor.prompt_covers, anchor.prompt - own.tokens()
        self.unexplained = covers, over
        if before is None or covers <= before[0]:
            return
        if all(self.counts[index].counted for index in range(before[0], covers)):
            learned = self.correction + (over - before[1]) / (covers - before[0])
            self.correction = min(max(learned, -CORRECTION), CORRECTION)

    def total(self, fixed: Sums, sections: Sums, priming: Sums, upto: int | None = None) -> Sums:
        """What the next request would carry of the first `upto` turns (all by default).

        The anchor's number, what was counted since, and what changed beside the turns since.

        Args:
            fixed: this counter's own count of system prompt and tools.
            sections: its count of the sections.
            priming: tokens that a request carries beside all of them.
            upto: how many turns; no fewer than the anchor covers.
        """
        anchor = self.anchor
        if anchor is None:
            return fixed.plus(sections).plus(self.own(priming, upto))
        now = fixed.plus(sections) if anchor.with_sections else fixed
        since = self.counts.between(anchor.covers, upto)
        if anchor.with_sections and since.estimate:
            since = since.plus(Sums(endpoint=round(self.marks)))
        total = Sums(endpoint=anchor.base).plus(anchor.reply_estimate).plus(anchor.adjust)
        total = total.plus(now.minus(anchor.fixed))
        return total.plus(since) if anchor.with_sections else total.plus(since).plus(sections)

    def share_chat(self, total: int, first: int, fixed: Sums, priming: int, tokenizer: str) -> None:
        """Share what the chat has grown by since its last count among the turns that are new.

        Args:
            total: the endpoint's count of all turns, system prompt and tools, in tokens.
            first: the first turn of this append, where no total is known from before it.
            fixed: this counter's own count of system prompt and tools.
            priming: tokens that a request carries beside them.
            tokenizer: whose counts these are from now on.
        """
        last = self.chat
        if last is not None:
            first = last.covers
            grown = total - last.tokens - fixed.minus(last.fixed).tokens()
        else:
            grown = total - fixed.tokens() - priming - self.counts.between(0, first).tokens()
        parts = shares(grown, [measure.tokens for measure in self.counts.measures[first:]])
        counted = [Measure(tokens, "endpoint", tokenizer, 0.0) for tokens in parts]
        self.counts.recount_tail(first, counted)
        self.chat = ChatTotal(total, len(self.counts.measures), fixed)

    def counts_same_chat(self, before: ChatTotal | None, total: int, end: int) -> bool:
        """Whether the endpoint's total speaks of the chat that the anchor was reported for.

        It does where the prompt that was reported is exactly what the endpoint had counted for
        it; where that is not known, where both numbers for the same turns are close.
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
    """Turns that take the place of all turns so far."""

    turns: list[Turn]
    measures: list[Measure]
    origins: list[int]
    """For each, the turn that it was, or whose place it took; never falling."""
    changes: bool
    """Whether anything differs from the turns so far."""
    cached_lost: int


class Plan(msgspec.Struct, frozen=True):
    """A pruning plan, and the layout of the conversation that it was made for."""

    result: FitResult
    edit: Edit
    layout: int


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
