"""Estimates that learn from every exact or reported count: `real / estimated`, with its error.

Conversations: one factor for each (model, tokenizer generation, what made the estimate), learned
from what prompts have *grown* by between two reports, so that a hidden system prompt or a template
does not look like a wrong factor. Documents: one factor for each kind of text (`document_key`),
learned from growth only and from endpoints; one for mixed files is known to make estimates worse.

What stands around the texts and was never seen (a client's own system prompt and tools) is learned
for each model and client from the first two reports of a conversation, and kept for the next one.
Pure. What is kept holds numbers and model names only, never text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import msgspec

from sidecar import typed
from sidecar.counting.calibration_factors import OUTLIER, HiddenTokens, LearnedFactor
from sidecar.counting.calibration_table import CalibrationTable
from sidecar.models.families import UNKNOWN, generation_of
from sidecar.models.names import parse
from sidecar.text.printable import printable

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

VERSION = 4
"""Of what is kept: estimates of an earlier version were others, and their factors do not hold."""
WHOLE = 0.25
"""Weight of a whole prompt, in which a template hides, beside its growth."""
SMALLEST = 16
"""Tokens under which growth teaches nothing: rounding and templates are all of it."""
NEARLY = 0.9
"""Share of what a prompt grew by that is of one kind: documents of that kind learn from it then."""
APART_SURE = 0.1
"""Of an estimate: what is taken off a whole prompt beside it may be off by so much at most."""


class Calibrations:
    """All that was learned, by model; shared by the conversations of a process."""

    def __init__(self) -> None:
        self._learned: CalibrationTable[LearnedFactor] = CalibrationTable()
        self._hidden: CalibrationTable[HiddenTokens] = CalibrationTable()
        self._lock = Lock()
        """One thread learns while another takes over what a file holds."""
        self._is_draft = False
        """A draft learns each sample once more when its change is in force; only that is logged."""
        self.lessons = 0
        """How often something was learned: what rests on factors holds while it is the same."""

    def copy(self) -> Calibrations:
        """The same knowledge, to learn on apart from this."""
        made = Calibrations()
        made._is_draft = True
        made._learned = CalibrationTable(self._learned.entries)
        made._hidden = CalibrationTable(self._hidden.entries)
        return made

    def frozen(self) -> Calibrations:
        """The same knowledge with what is not written yet, for a worker that writes it."""
        made = Calibrations()
        made.lessons = self.lessons
        made._learned, made._hidden = self._learned.copy(), self._hidden.copy()
        return made

    def learned(self, key: str) -> LearnedFactor | None:
        """What was learned for a key."""
        return self._learned.entries.get(key)

    def start(self, key: str) -> float:
        """The factor of a key's generation, pooled over its models; 1 where there is none."""
        generation = _generation(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # unknown models have nothing in common
        known = self._learned.entries
        same = [one for name, one in known.items() if _generation(name) == generation]
        real, estimated = sum([one.real for one in same]), sum([one.estimated for one in same])
        return LearnedFactor(real=real, estimated=estimated).factor() if same else 1.0

    def hidden(self, key: str) -> HiddenTokens | None:
        """What is hidden around a client's texts, by model and client."""
        return self._hidden.entries.get(key)

    def learn_hidden(self, key: str, tokens: float) -> None:
        """Note what was hidden in one conversation."""
        with self._lock:
            self.lessons += 1
            self._hidden.learn(self.lessons, key, partial(_after_hidden, tokens))

    def learn(
        self,
        key: str,
        estimated: float,
        real: float,
        weight: float = 1.0,
        doubt: float | None = None,
        *,
        also: Iterable[str] = (),
    ) -> None:
        """Note one sample for a key, and for `also`: narrower keys that it is a sample of too.

        `doubt`: half of the estimate's own band, in tokens.
        """
        with self._lock:
            for name in (key, *also):
                self.lessons += 1
                sample = estimated, real, weight, self.start(name), doubt
                self._learned.learn(self.lessons, name, partial(_after_sample, sample))
            factor = self._learned.entries[key].factor(self.start(key))
        if not self._is_draft:
            model = printable(key.split(" ", 2)[-1])
            _log.debug(
                "calibration: estimated=%.0f real=%.0f factor=%.3f model=%s",
                *(estimated, real, factor, model),
            )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers and model names."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """What `to_dict` gives, and the number of the last lesson in it: for `written`."""
        with self._lock:
            learned, hidden, number = self._learned.entries, self._hidden.entries, self.lessons
        entries = {key: msgspec.to_builtins(one) for key, one in learned.items()}
        around = {key: msgspec.to_builtins(one) for key, one in hidden.items()}
        return {"version": VERSION, "learned": entries, "hidden": around}, number

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """What `to_dict` gave; entries that are not sound are left out. Never raises."""
        found = cls()
        if not isinstance(data, dict) or data.get("version") != VERSION:
            return found
        found._learned = CalibrationTable(_read(data.get("learned"), LearnedFactor))
        found._hidden = CalibrationTable(_read(data.get("hidden"), HiddenTokens))
        return found

    def take(self, other: Calibrations) -> bool:
        """Take over what was written by this or another process, and learn on top of it what was
        learned here since this last wrote. Whether that is anything new."""
        with self._lock:
            is_new = self._learned.merge(other._learned.entries)
            is_new |= self._hidden.merge(other._hidden.entries)
            self.lessons += is_new
            return is_new

    def written(self, number: int) -> None:
        """All lessons up to one are where other processes read them."""
        with self._lock:
            self._learned.written(number)
            self._hidden.written(number)


def _after_sample(
    sample: tuple[float, float, float, float, float | None], known: LearnedFactor | None
) -> LearnedFactor:
    one = copy(known) if known else LearnedFactor()
    one.learn(*sample)
    return one


def _after_hidden(tokens: float, known: HiddenTokens | None) -> HiddenTokens:
    return known.after(tokens) if known else HiddenTokens(tokens)


def _read(entries: object, form: type[T]) -> dict[str, T]:
    """Those that are sound."""
    found: dict[str, T] = {}
    for key, value in entries.items() if isinstance(entries, dict) else ():
        try:
            one = typed.convert(value, form)
        except msgspec.ValidationError:
            continue
        numbers = [number for part in msgspec.structs.astuple(one) for number in _numbers(part)]
        if isinstance(key, str) and all(0 <= number < 1e15 for number in numbers):
            found[key] = one
    return found


def _numbers(part: float | tuple[float, ...]) -> tuple[float, ...]:
    return part if isinstance(part, tuple) else (part,)


def key_of(model: str, tokenizer: str) -> str:
    """What a model's factor is kept under: its generation, what made the estimate, its name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def document_key(model: str, tokenizer: str, kind: str) -> str:
    """What the factor of a model's texts of one kind is kept under."""
    return key_of(model, f"{tokenizer}#{kind}")


def newest_key(model: str, tokenizer: str, kind: str) -> str:
    """What the band of conversations whose newest text is of a kind is kept under."""
    return key_of(model, f"{tokenizer}+{kind}")


def _generation(key: str) -> str:
    """Generation and what made the estimate: what a key shares with others of its generation."""
    return " ".join(key.split(" ")[:2])


def only_kind(grown: Sequence[tuple[str | None, int]], tokens: int) -> str | None:
    """The kind that nearly all of the newest `tokens` of a prompt are of; None where they are
    mixed, or more than is known."""
    sums: dict[str | None, int] = {}
    left = tokens
    for kind, size in reversed(grown):
        sums[kind] = sums.get(kind, 0) + min(size, left)
        left -= min(size, left)
    return next((kind for kind, size in sums.items() if size >= NEARLY * tokens), None)


class ConversationCalibration:
    """What reported usage teaches about one conversation's estimates.

    Estimates and reports are of whole prompts, in tokens. A report comes after the estimate of the
    same prompt; what was learned is shared with later conversations of the same model.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str, client: str = "") -> None:
        """`client`: who sends the texts, and stands what is hidden around them."""
        self._shared = shared
        self._model, self._tokenizer, self._client = model, tokenizer, client
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int, float] | None = None
        self._first: tuple[int, int] | None = None
        """The first report, until a second one tells what was hidden in it."""

    @property
    def factor(self) -> float:
        """Real tokens for one that was estimated; the generation's, or 1, before any sample."""
        learned = self._shared.learned(self._key)
        start = self._shared.start(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """Reports learned from, of earlier conversations too."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """Half of the 95 % band of recent predictions; None while not measured."""
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    def spread(self, kind: str | None = None) -> float:
        """Half of the band of what comes next, to the one that its estimate has of itself.

        `kind`: of the texts that come next; one that no report has held yet is as uncertain as
        it ever was.
        """
        learned = self._shared.learned(self._key)
        spread = learned.spread() if learned else 1.0
        if kind is None:
            return spread
        of_kind = self._shared.learned(newest_key(self._model, self._tokenizer, kind))
        return max(spread, of_kind.spread() if of_kind else 1.0)

    @property
    def hidden(self) -> tuple[float, float] | None:
        """Tokens around the texts that were never seen, and half of their band; None: unknown."""
        found = self._shared.hidden(self._constant)
        return (found.tokens, found.half_width) if found else None

    @property
    def _constant(self) -> str:
        return f"{self._key} @ {self._client}"

    def switched(self, model: str, tokenizer: str) -> ConversationCalibration:
        """The one for another model: its own factor, its generation's, or 1, and no report yet.
        Itself where it is the same model."""
        if key_of(model, tokenizer) == self._key:
            return self
        return ConversationCalibration(self._shared, model, tokenizer, self._client)

    def copy(self) -> ConversationCalibration:
        """The same knowledge, to learn on apart from this."""
        made = copy(self)
        made._shared = self._shared.copy()
        return made

    def learn(
        self,
        estimated: int,
        reported: int,
        kind: str | None = None,
        doubt: float | None = None,
        *,
        apart: int = 0,
        apart_doubt: float = 0.0,
        steady: bool = True,
        marks: float = 0.0,
        grown: Sequence[tuple[str | None, int]] = (),
    ) -> None:
        """Note the reported number of a prompt beside what it was estimated at.

        `kind`: what kind of text came last.
        `doubt`: half of the band of the whole estimate, in tokens.
        `apart`: tokens of the prompt that are not in `estimated` and are no lesson for it, with
        half of their band; `steady`: they are those of the last report.
        `marks`: tokens of its growth that are no text's.
        `grown`: kinds and estimates of what was added, oldest first; documents of a kind learn from
        it where nearly all of the growth is of that kind.

        A prompt that shrank, or the first one, teaches a factor only where it is known what is
        hidden in it, and documents nothing: what is hidden is in both of two prompts that are
        compared, and in one alone it looks like a wrong estimate.
        """
        alone = reported - apart
        if estimated <= 0 or alone <= 0:
            return
        is_sure = apart_doubt <= APART_SURE * estimated
        before, self._last = self._last, (estimated, reported, doubt or 0.0)
        if before is not None and steady and estimated >= before[0] and reported >= before[1]:
            more, really = estimated - before[0], reported - before[1] - marks
            if more >= SMALLEST:
                new = None if doubt is None else max(0.0, doubt - before[2])
                kinds = self._kinds(kind, only_kind(grown, more))
                self._shared.learn(self._key, more, really, 1.0, new, also=kinds)
                self._find_hidden()
        elif is_sure and self.hidden is not None:
            self._whole(estimated, alone, *self.hidden)
        if before is None and is_sure:
            self._first = estimated, alone

    def _find_hidden(self) -> None:
        """What the first report held beside the texts, once a second one shows the factor."""
        if self._first is not None:
            estimated, reported = self._first
            tokens = max(0.0, reported - self.factor * estimated)
            self._shared.learn_hidden(self._constant, round(tokens, 1))
            self._first = None

    def _whole(self, estimated: int, alone: int, hidden: float, doubt: float) -> None:
        """A sample of a whole prompt without what is hidden in it, where that is known well enough
        and the prompt has it."""
        expected, real = self.factor * estimated, alone - hidden
        is_likely = expected / OUTLIER <= real <= expected * OUTLIER
        if is_likely and estimated >= SMALLEST and doubt <= APART_SURE * estimated:
            self._shared.learn(self._key, estimated, real, WHOLE)

    def _kinds(self, newest: str | None, only: str | None) -> Iterator[str]:
        """What else learns from growth: its newest kind's band, and documents of its only kind."""
        if newest is not None:
            yield newest_key(self._model, self._tokenizer, newest)
        if only is not None:
            yield document_key(self._model, self._tokenizer, only)

    def replied(self, estimated: int, output: int) -> None:
        """Note a reply that goes back with the next prompt, beside its reported tokens.

        Both of the reply's texts alone, without what a template puts around them, and without
        reasoning that is not sent back.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        before, reported, doubt = self._last
        self._last = (before + estimated, reported + output, doubt)
        if estimated >= SMALLEST:
            self._shared.learn(self._key, estimated, output, 1.0)
