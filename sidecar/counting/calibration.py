"""Estimates that learn from every exact or reported count: `real / estimated`, with its error.

Conversations: one factor for each (model, tokenizer generation, what made the estimate), learned
from what prompts have *grown* by between two reports, so that a hidden system prompt or a template
does not look like a wrong factor. Documents: one factor for each kind of text (`document_key`); one
for mixed files is known to make estimates worse.

A factor is a ratio of sums in which older samples fade: long turns weigh more than short ones, and
one odd sample cannot throw it off. The error is predictive: what each sample was off by, by the
factor as it stood before the sample was learned. A band is what 95 of 100 of the recent samples
were within, in units of the band that the estimate has of itself, so that it keeps to the kind of
text; it narrows with the samples that confirm it, and is as wide as ever for a kind that is new.
What stands around the texts and was never seen (a client's own system prompt and tools) is learned
for each model and client from the first two reports of a conversation, and kept for the next one.
Pure. What is kept holds numbers and model names only, never text.
"""

from __future__ import annotations

import math
from copy import copy
from typing import Any, TypeVar

import msgspec

from sidecar import typed
from sidecar.models.families import UNKNOWN, generation_of
from sidecar.models.names import parse

T = TypeVar("T", bound=msgspec.Struct)

VERSION = 2
"""Of what is kept: estimates of an earlier version were others, and their factors do not hold."""
FADE = 0.95
"""What is left of a sample's weight when the next one comes: half after 14 samples."""
TRUST = 300.0
"""Tokens of evidence that a factor starts with (1, or its generation's)."""
OUTLIER = 2.0
"""A sample further than this factor from what was expected is taken for this far off."""
LOWEST, HIGHEST = 0.25, 4.0
"""No vocabulary differs more than this from another."""
WHOLE = 0.25
"""Weight of a whole prompt, in which a template and hidden prompts hide, beside its growth."""
SMALLEST = 16
"""Tokens under which growth teaches nothing: rounding and templates are all of it."""
MOST_KEPT = 512
RECENT = 24
"""Samples that a band is made of."""
NARROWEST = 0.5
"""Of a band, to what the estimate has of itself; reached after 3 samples that were near enough."""
HIDDEN_SHARE = 0.25
"""Of what is hidden around the texts, may be another share the next time; known from one report."""
HIDDEN_LEAST = 24.0
"""Tokens that it may always be off by."""
APART_SURE = 0.1
"""Of an estimate: what is taken off a whole prompt beside it may be off by so much at most."""


class Learned(msgspec.Struct, omit_defaults=True):
    """What was learned for one key; all fading sums."""

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    misses: tuple[float, ...] = ()
    """What the recent predictions were off by, as shares of what was predicted."""
    strays: tuple[float, ...] = ()
    """The same as shares of the bands that their estimates had."""

    def factor(self, start: float = 1.0) -> float:
        """Real tokens for one that was estimated."""
        ratio = (self.real + TRUST * start) / (self.estimated + TRUST)
        return min(max(ratio, LOWEST), HIGHEST)

    @property
    def error_percent(self) -> float | None:
        """What 95 of 100 recent predictions were within; None while none was measured."""
        return round(100 * _within(self.misses), 1) if self.misses else None

    def spread(self) -> float:
        """Half of the band of what is predicted, to the one that the estimate has of itself."""
        known = len(self.strays)
        least = max(NARROWEST, 1 / (1 + known / 3))
        return max(least, _within(self.strays) * (1 + 1 / (known + 1))) if known else 1.0

    def learn(
        self,
        estimated: float,
        real: float,
        weight: float = 1.0,
        start: float = 1.0,
        doubt: float | None = None,
    ) -> None:
        """Note one sample: what the estimate said, and what it really was.

        `doubt`: half of the estimate's own band, in tokens; None where that says nothing.
        """
        factor = self.factor(start)
        expected = factor * estimated
        off = abs(expected - real)
        self.misses = (*self.misses, round(off / max(1.0, expected), 4))[-RECENT:]
        if doubt is not None:
            self.strays = (*self.strays, round(off / max(2.0, doubt * factor), 3))[-RECENT:]
        taken = min(max(real, expected / OUTLIER), expected * OUTLIER)
        self.real = FADE * self.real + weight * taken
        self.estimated = FADE * self.estimated + weight * estimated
        self.samples += 1


def _within(shares: tuple[float, ...]) -> float:
    """The order statistic that 95 of 100 further ones are within; the largest of a few."""
    rank = min(len(shares), math.ceil(0.95 * (len(shares) + 1)))
    return sorted(shares)[rank - 1] if shares else 0.0


class Hidden(msgspec.Struct, frozen=True):
    """What stands around a client's texts that was never seen, in tokens."""

    tokens: float
    doubt: float = 0.0
    """What it was off by at most, fading."""
    samples: int = 1

    def after(self, tokens: float) -> Hidden:
        """With what another conversation showed."""
        doubt = max(0.8 * self.doubt, abs(tokens - self.tokens))
        return Hidden((self.tokens + tokens) / 2, doubt, self.samples + 1)

    @property
    def half_width(self) -> float:
        """Half of the band, in tokens."""
        share = HIDDEN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(HIDDEN_LEAST, share, 1.5 * self.doubt)


class Calibrations:
    """All that was learned, by model; shared by the conversations of a process."""

    def __init__(self) -> None:
        self._learned: dict[str, Learned] = {}
        self._hidden: dict[str, Hidden] = {}
        self.lessons = 0
        """How many samples were learned: what rests on factors holds while it is the same."""
        self.touched: set[str] = set()
        """Keys that were learned for since this was made or read."""

    def copy(self) -> Calibrations:
        """The same knowledge, to learn on apart from this."""
        made = Calibrations()
        made._learned = dict(self._learned)  # entries are replaced, never changed
        made._hidden = dict(self._hidden)
        return made

    def learned(self, key: str) -> Learned | None:
        """What was learned for a key."""
        return self._learned.get(key)

    def start(self, key: str) -> float:
        """The factor of a key's generation, pooled over its models; 1 where there is none."""
        generation = _generation(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # unknown models have nothing in common
        same = [one for name, one in list(self._learned.items()) if _generation(name) == generation]
        real, estimated = sum([one.real for one in same]), sum([one.estimated for one in same])
        return Learned(real=real, estimated=estimated).factor() if same else 1.0

    def hidden(self, key: str) -> Hidden | None:
        """What is hidden around a client's texts, by model and client."""
        return self._hidden.get(key)

    def learn_hidden(self, key: str, tokens: float) -> None:
        """Note what was hidden in one conversation."""
        if key not in self._hidden and len(self._hidden) >= MOST_KEPT:
            del self._hidden[next(iter(self._hidden))]
        known = self._hidden.get(key)
        self._hidden[key] = known.after(tokens) if known else Hidden(tokens)
        self.touched.add(key)
        self.lessons += 1

    def learn(
        self, key: str, estimated: float, real: float, weight: float, doubt: float | None = None
    ) -> None:
        """Note one sample for a key; `doubt`: half of the estimate's own band, in tokens."""
        start = self.start(key)
        if key not in self._learned and len(self._learned) >= MOST_KEPT:
            del self._learned[next(iter(self._learned))]
        one = self._learned[key] = copy(self._learned.get(key, Learned(real=0.0)))
        one.learn(estimated, real, weight, start, doubt)
        self.touched.add(key)
        self.lessons += 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers and model names."""
        entries = {key: msgspec.to_builtins(one) for key, one in list(self._learned.items())}
        hidden = {key: msgspec.to_builtins(one) for key, one in list(self._hidden.items())}
        return {"version": VERSION, "learned": entries, "hidden": hidden}

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """What `to_dict` gave; entries that are not sound are left out. Never raises."""
        found = cls()
        if not isinstance(data, dict) or data.get("version") != VERSION:
            return found
        found._learned = _read(data.get("learned"), Learned)
        found._hidden = _read(data.get("hidden"), Hidden)
        return found

    def take(self, other: Calibrations) -> None:
        """Take over what another process has learned for keys that were not touched here."""
        for key, one in other._learned.items():
            if key not in self.touched:
                self._learned[key] = one
        for key, constant in other._hidden.items():
            if key not in self.touched:
                self._hidden[key] = constant


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


def _generation(key: str) -> str:
    """Generation and what made the estimate: what a key shares with others of its generation."""
    return " ".join(key.split(" ")[:2])


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
        of_kind = self._shared.learned(document_key(self._model, self._tokenizer, kind))
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

    def predict(self, estimated: int) -> int:
        """Tokens of a prompt that is estimated at so many: the last report and what is new."""
        if self._last is None or estimated < self._last[0]:
            around = self.hidden if self._last is None else None
            return max(0, round(self.factor * estimated + (around[0] if around else 0.0)))
        before, reported, _ = self._last
        return reported + round(self.factor * (estimated - before))

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
    ) -> None:
        """Note the reported number of a prompt beside what it was estimated at.

        `kind`: what kind of text it grew by; documents of that kind learn from it too.
        `doubt`: half of the band of the whole estimate, in tokens.
        `apart`: tokens of the prompt that are not in `estimated` and are no lesson for it, with
        half of their band; `steady`: they are those of the last report.
        `marks`: tokens of its growth that are no text's.

        A prompt that shrank, or the first one, is a sample if what is hidden cannot be most of it.
        """
        alone = reported - apart
        if estimated <= 0 or alone <= 0:
            return
        is_sure = apart_doubt <= APART_SURE * estimated
        before, self._last = self._last, (estimated, reported, doubt or 0.0)
        if before is not None and steady and estimated >= before[0] and reported >= before[1]:
            grown, really = estimated - before[0], reported - before[1] - marks
            if grown >= SMALLEST:
                new = None if doubt is None else max(0.0, doubt - before[2])
                self._sample(grown, really, 1.0, kind, new)
                self._find_hidden()
        elif is_sure and self._is_likely(estimated, alone):
            self._sample(estimated, alone, WHOLE, kind, None)
        if before is None and is_sure:
            self._first = estimated, alone

    def _find_hidden(self) -> None:
        """What the first report held beside the texts, once a second one shows the factor."""
        if self._first is not None:
            estimated, reported = self._first
            tokens = max(0.0, reported - self.factor * estimated)
            self._shared.learn_hidden(self._constant, round(tokens, 1))
            self._first = None

    def _sample(
        self, estimated: int, real: float, weight: float, kind: str | None, doubt: float | None
    ) -> None:
        self._shared.learn(self._key, estimated, real, weight, doubt)
        if kind is not None:
            of_kind = document_key(self._model, self._tokenizer, kind)
            self._shared.learn(of_kind, estimated, real, weight, doubt)

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

    def _is_likely(self, estimated: int, reported: int) -> bool:
        expected = self.factor * estimated
        likely = expected / OUTLIER <= reported <= expected * OUTLIER
        return likely and estimated >= SMALLEST
