"""Counts a conversation for one model: its messages, and their sum from the last reported size on.

Counts are added up together with their error bands.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from functools import reduce
from itertools import accumulate, pairwise
from operator import add, sub
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec

from sidecar.config.settings import Truncation
from sidecar.counting import fitting, message_tokens
from sidecar.counting.calibration import ConversationCalibration, Sample
from sidecar.counting.count_result import Measure, Method
from sidecar.counting.tokenizer_interface import Tokenizer, measure_text
from sidecar.messages.messages import Turn

MARKS = 12
"""The markup formula can miss up to this many of the markup tokens around a reply."""
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
OTHER_PERCENT = 60.0
"""Error band (±%) of a count that was made with another model's tokenizer."""


class Counter:
    """Counts text, messages and tools for one model.

    Results are deterministic. The methods block while they count.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        """Create a counter.

        Args:
            model: The model to count for, which is also the key for stored counts.
            tokenizer: The local tokenizer.
            server: The name of a server whose counts replace some of the local counts.
        """
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = message_tokens.priming_tokens(model)
        """Tokens that every request contains in addition to its messages and tools."""

    @property
    def tokenizer(self) -> str:
        """The tokenizer name to display. This is the server's name if there is a server."""
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        """The local tokenizer's name. When it changes, everything is recounted."""
        return self._tokenizer.name

    def is_like(self, other: Counter) -> bool:
        """Return whether this counter can reuse another counter's counts for the same model."""
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> Counter:
        """Return a copy for a conversation whose text is counted by `server`."""
        return Counter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        """Count text without message markup."""
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn, counted: int | None = None) -> Measure:
        """Count a message, including the markup of the model's chat template.

        Args:
            turn: The message.
            counted: A server's count of the message's text, which replaces the tokenizer's.
        """
        return message_tokens.count_message(turn, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Count tool schemas in the format that the model receives."""
        return message_tokens.count_tools(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """Return text, shortened if it exceeds `max_tokens`."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text


class Sums(NamedTuple):
    """Token totals grouped by counting method."""

    exact: int = 0
    endpoint: int = 0
    estimate: int = 0
    """The estimated token count, to which the conversation's calibration is applied."""
    calibrated: int = 0
    """The part of `estimate` that has already been calibrated."""
    error: float = 0.0
    """The error band of `estimate` in tokens, excluding the `unmeasured` part."""
    unmeasured: int = 0
    """Tokens in `estimate` and `documents` whose error band is unknown."""

    documents: int = 0
    """Estimated tokens of documents, which are calibrated separately."""
    document_estimate: int = 0
    """The part of `documents` that has not been calibrated."""
    document_error: float = 0.0
    """The error band of `documents` in tokens, excluding the `unmeasured` part."""

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(sub, self, other))

    def tokens(self, factor: float = 1.0) -> int:
        """Return the total number of tokens, with `estimate` multiplied by `factor`."""
        return self.exact + self.endpoint + self.documents + round(self.estimate * factor)


def sums_of(measure: Measure) -> Sums:
    """Convert a count to `Sums`."""
    if measure.method == "exact":
        return Sums(exact=measure.tokens)
    if measure.method == "endpoint":
        return Sums(endpoint=measure.tokens)
    error, unsure = measure.error_percent, measure.tokens - measure.counted
    return Sums(
        endpoint=measure.counted,
        estimate=unsure,
        calibrated=unsure if measure.method == "calibrated" else 0,
        error=0.0 if error is None else measure.tokens * error / 100,
        unmeasured=unsure if error is None else 0,
    )


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the total of several sums."""
    return reduce(Sums.plus, parts, Sums())


def document_sums(measure: Measure) -> Sums:
    """Convert a document's count to `Sums`."""
    if measure.method in ("exact", "endpoint"):
        return sums_of(measure)
    tokens, error = measure.tokens, measure.error_percent
    return Sums(
        documents=tokens,
        document_estimate=tokens if measure.method == "estimate" else 0,
        document_error=0.0 if error is None else tokens * error / 100,
        unmeasured=tokens if error is None else 0,
    )


def restored_measure(measure: Measure, counter: Counter) -> Measure:
    """Return a saved count, marked as an estimate if the tokenizer has changed."""
    if counter.tokenizer == measure.tokenizer:
        return measure
    return Measure(measure.tokens, "estimate", counter.tokenizer, OTHER_PERCENT)


def factor_of(calibration: ConversationCalibration | None) -> float:
    """Return the calibration's factor, or 1 if there is no calibration."""
    return 1.0 if calibration is None else calibration.factor


def has_samples(calibration: ConversationCalibration | None) -> TypeGuard[ConversationCalibration]:
    """Return whether there are reports for the model or another model of the same generation."""
    return calibration is not None and (calibration.samples > 0 or calibration.factor != 1.0)


def measure_of(sums: Sums, tokenizer: str, calibration: ConversationCalibration | None) -> Measure:
    """Combine sums into one count, and give it the least reliable of their methods.

    Args:
        sums: The token totals to combine.
        tokenizer: The tokenizer name to put in the count.
        calibration: The calibration to apply to the estimated tokens.
    """
    tokens = max(0, sums.tokens(factor_of(calibration)))
    if not sums.estimate and not sums.documents:
        method: Method = "endpoint" if sums.endpoint else "exact"
        return Measure(tokens, method, tokenizer, 0.0)
    margin = abs(sums.error)
    if has_samples(calibration) and sums.estimate:
        method = "estimate" if sums.document_estimate else "calibrated"
        if sums.unmeasured:
            part = abs(sums.estimate * calibration.factor)
            return Measure(
                tokens, method, tokenizer, _error_of_whole(calibration.error_percent, part, tokens)
            )
        margin *= calibration.factor * calibration.band_factor
    else:
        sure = sums.calibrated == sums.estimate and not sums.document_estimate
        method = "calibrated" if sure else "estimate"
        if sums.unmeasured:
            return Measure(tokens, method, tokenizer, None)
    return Measure(
        tokens, method, tokenizer, _error_percent(margin + abs(sums.document_error), tokens)
    )


def with_hidden_tokens(measure: Measure, calibration: ConversationCalibration | None) -> Measure:
    """Add the tokens that the client adds to each prompt, unless a server counted the prompt."""
    if calibration is None or calibration.hidden is None or measure.method == "endpoint":
        return measure
    around, margin = calibration.hidden
    tokens = measure.tokens + round(around)
    error = measure.error_percent
    if error is not None:
        error = _error_percent(measure.tokens * error / 100 + margin, tokens)
    return Measure(tokens, "calibrated", measure.tokenizer, error)


def with_reply_markup(measure: Measure) -> Measure:
    """Widen the error band to allow for unknown markup around the last reported reply."""
    if measure.error_percent is None or measure.method in ("exact", "endpoint"):
        return measure
    error = round(measure.error_percent + _error_percent(MARKS, measure.tokens), 2)
    return msgspec.structs.replace(measure, error_percent=error)


def _error_percent(margin: float, tokens: int) -> float:
    return _round_error(100 * margin / max(1, tokens))


def _round_error(error_percent: float) -> float:
    return max(0.01, round(error_percent, 2)) if error_percent > 0 else 0.0


def _error_of_whole(error_percent: float | None, part: float, whole: int) -> float | None:
    if error_percent is None:
        return None
    return _round_error(min(error_percent, error_percent * part / max(1, whole)))


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
            self.add(restored_measure(measure, counter))
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


class UsageUpdate(msgspec.Struct, frozen=True):
    """The effects of applying reported usage to a conversation."""

    sample: Sample | None = None
    """The calibration sample, or None if the report is unsuitable."""
    compacted: bool = False
    """Whether the reported prompt was so small that the client must have compacted it."""


class ModelCounts:
    """A conversation's counts for one model, and the last reported size."""

    def __init__(self) -> None:
        self.turns = TurnCounts()
        self.anchor: Anchor | None = None
        self.chat: Anchor | None = None
        """The endpoint's last count of the whole chat."""
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

    def share_chat(
        self, total: int, first: int, fixed: Sums, priming: int, tokenizer: str
    ) -> Anchor:
        """Distribute the growth of an endpoint's total among the new turns, and keep the total.

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
            grown = total - last.base - fixed.minus(last.fixed).tokens()
        else:
            grown = total - fixed.tokens() - priming - self.turns.between(0, first).tokens()
        parts = shares(grown, [measure.tokens for measure in self.turns.measures[first:]])
        counted = [Measure(tokens, "endpoint", tokenizer, 0.0) for tokens in parts]
        self.turns.recount_tail(first, counted)
        self.chat = Anchor(kind="chat", base=total, covers=len(self.turns), fixed=fixed)
        return self.chat

    def counts_same_chat(self, before: Anchor | None, chat: Anchor) -> bool:
        """Return whether an endpoint counted the same chat for which a vendor reported usage.

        If the endpoint has also counted the reported prompt, that count must equal the reported
        size. Otherwise, the endpoint's count and the report must cover the same turns, and their
        sizes must be almost equal.
        """
        anchor = self.anchor
        if anchor is None or anchor.kind == "chat":
            return True
        if before is not None and before.covers == anchor.prompt_covers:
            return before.base == anchor.prompt
        estimated = anchor.reply_estimate
        difference = chat.base - anchor.base - estimated.tokens()
        return anchor.covers == chat.covers and abs(difference) <= CHAT_MARKS + abs(estimated.error)
