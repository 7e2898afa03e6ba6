"""Factors learned from exact or reported counts, `real / estimated`, each with its error.

Conversations have one factor per model, tokenizer generation and estimator. It is learned from how
much prompts *grow* between two reports, so that a hidden system prompt or a template does not look
like a wrong factor. Documents have one factor per kind of text (`document_key`), learned from
growth and from endpoints; a single factor for mixed files is known to make estimates worse.

The tokens around the texts that are never seen (a client's own system prompt and tools) are learned
per model and client from the first two reports of a conversation, and kept for the next one.

A factor is a ratio of sums in which older samples fade: long turns weigh more than short ones, and
one odd sample cannot distort it. Errors are predictive: what each sample was off by, with the
factor before it was learned. A band is what 95 of 100 recent samples stayed within, as a multiple
of the estimate's own band, so that it keeps to the kind of text. It narrows with samples that
confirm it, and is as wide as ever for a new kind.

Pure. Only numbers and model names are kept, never text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from sidecar import typed
from sidecar.models.families import UNKNOWN, generation_of
from sidecar.models.names import parse
from sidecar.text.printable import printable

FADE = 0.95
"""Share of a sample's weight that is left when the next one comes: half after 14 samples."""
TRUST = 300.0
"""Tokens of evidence for the initial factor (1, or its generation's)."""
OUTLIER = 2.0
"""A sample that is off by more than this factor counts as off by this much."""
LOWEST, HIGHEST = 0.25, 4.0
"""No vocabulary differs more than this from another."""
RECENT = 24
"""How many samples a band is made of."""
NARROWEST = 0.8
"""Narrowest band that samples can confirm, as a share of the estimate's own; from 3 samples on.
Narrower ones held for only 93 % of the turns of held-out conversations."""
SPREAD_MARGIN = 1.2
"""How much wider a band is than recent samples needed: the largest of 24 says little."""
HIDDEN_SHARE = 0.25
"""Share of the hidden tokens that may differ next time, after one report."""
HIDDEN_LEAST = 24.0
"""Smallest half-width of the hidden tokens' band."""


class LearnedFactor(msgspec.Struct, omit_defaults=True):
    """The factor of one key; its sums fade."""

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    misses: tuple[float, ...] = ()
    """Errors of recent predictions, as shares of the predicted numbers."""
    strays: tuple[float, ...] = ()
    """The same errors as shares of the estimates' own bands."""

    def factor(self, start: float = 1.0) -> float:
        """Return real tokens per estimated token."""
        ratio = (self.real + TRUST * start) / (self.estimated + TRUST)
        return min(max(ratio, LOWEST), HIGHEST)

    @property
    def error_percent(self) -> float | None:
        """The error that 95 of 100 recent predictions stayed within; None before the first."""
        return round(100 * _quantile_95(self.misses), 1) if self.misses else None

    def spread(self) -> float:
        """Return the half-width of the next prediction's band, relative to the estimate's own."""
        known = len(self.strays)
        least = max(NARROWEST, 1 / (1 + known / 12))
        needed = _quantile_95(self.strays) * (SPREAD_MARGIN + 1 / (known + 1))
        return max(least, needed) if known else 1.0

    def update(
        self,
        estimated: float,
        real: float,
        weight: float = 1.0,
        start: float = 1.0,
        doubt: float | None = None,
    ) -> None:
        """Add a sample.

        Args:
            estimated: The estimate, in tokens.
            real: The real number of tokens.
            weight: The sample's weight.
            start: The initial factor.
            doubt: Half of the estimate's own band, in tokens; None if it tells nothing.
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


def _quantile_95(shares: tuple[float, ...]) -> float:
    """Return the order statistic that 95 of 100 further values stay within."""
    rank = min(len(shares), math.ceil(0.95 * (len(shares) + 1)))
    return sorted(shares)[rank - 1] if shares else 0.0


class HiddenTokens(msgspec.Struct, frozen=True):
    """Tokens around a client's texts that are never seen."""

    tokens: float
    doubt: float = 0.0
    """Largest error so far, fading."""
    samples: int = 1

    def with_sample(self, tokens: float) -> HiddenTokens:
        """Return a copy that includes the number of another conversation."""
        doubt = max(0.8 * self.doubt, abs(tokens - self.tokens))
        return HiddenTokens((self.tokens + tokens) / 2, doubt, self.samples + 1)

    @property
    def half_width(self) -> float:
        """Half of the band, in tokens."""
        share = HIDDEN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(HIDDEN_LEAST, share, 1.5 * self.doubt)


T = TypeVar("T")

MOST_KEPT = 512
"""How many keys are kept; those that were updated least recently go first."""
MOST_UNWRITTEN = 1_024
"""Samples kept while the file cannot be written; the oldest go first."""


class _Update(NamedTuple, Generic[T]):
    """An update of one key's entry, which may not exist yet."""

    number: int
    key: str
    apply: Callable[[T | None], T]


class CalibrationTable(Generic[T]):
    """Immutable entries by key, and the samples that are not yet in the shared file.

    Servers and the command line share one file. Samples since the last write are applied again on
    top of what the file holds now, so that no process loses another's samples. Other threads may
    read `entries` at any time.
    """

    def __init__(self, entries: dict[str, T] | None = None) -> None:
        """Start with `entries`, the most recently updated one last."""
        self.entries = most_recent(entries or {})
        self._unwritten: list[_Update[T]] = []

    def copy(self) -> CalibrationTable[T]:
        """Return a table with the same entries and unwritten updates, to be changed separately."""
        made = CalibrationTable(self.entries)
        made._unwritten = self._unwritten
        return made

    def update(self, number: int, key: str, apply: Callable[[T | None], T]) -> None:
        """Update a key's entry; update numbers rise."""
        update = _Update(number, key, apply)
        self._unwritten = [*self._unwritten, update][-MOST_UNWRITTEN:]
        self.entries = most_recent(_after(self.entries, update))

    def merge(self, theirs: dict[str, T]) -> bool:
        """Take over the file's entries and apply the unwritten updates to them.

        Entries that the file has dropped stay.

        Returns:
            Whether anything changed.
        """
        merged = {key: one for key, one in self.entries.items() if key not in theirs} | theirs
        for update in self._unwritten:
            if update.key in theirs:
                merged = _after(merged, update)
            else:
                merged[update.key] = merged.pop(update.key, None) or update.apply(None)
        before, self.entries = self.entries, most_recent(merged)
        return before != self.entries

    def mark_written(self, number: int) -> None:
        """Forget the updates up to `number`: the file holds them."""
        self._unwritten = [update for update in self._unwritten if update.number > number]


def _after(entries: dict[str, T], update: _Update[T]) -> dict[str, T]:
    others = {key: one for key, one in entries.items() if key != update.key}
    return {**others, update.key: update.apply(entries.get(update.key))}


def most_recent(entries: dict[str, T]) -> dict[str, T]:
    """Return the entries that were updated last."""
    return dict(list(entries.items())[-MOST_KEPT:])


_log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

VERSION = 4
"""Format version: earlier estimates were different, so their factors do not hold."""
WHOLE = 0.25
"""Weight of a whole prompt, which includes a template, relative to its growth."""
SMALLEST = 16
"""Smaller growth, in tokens, is not used: rounding and templates dominate it."""
NEARLY = 0.9
"""Share of growth that must be of one kind before documents of that kind use it."""
APART_SURE = 0.1
"""Largest uncertainty of subtracted tokens, as a share of the prompt's estimate."""


class Calibrations:
    """All calibrations by model, shared by the conversations of a process."""

    def __init__(self) -> None:
        self._learned: CalibrationTable[LearnedFactor] = CalibrationTable()
        self._hidden: CalibrationTable[HiddenTokens] = CalibrationTable()
        self._lock = Lock()
        """Guards updates while another thread merges the file."""
        self._is_draft = False
        """A draft's samples are added again when its change is applied; only that is logged."""
        self.version = 0
        """Rises with each update; results that depend on factors hold while it stays the same."""

    def copy(self) -> Calibrations:
        """Return a draft with the same knowledge, to be updated separately."""
        made = Calibrations()
        made._is_draft = True
        made._learned = CalibrationTable(self._learned.entries)
        made._hidden = CalibrationTable(self._hidden.entries)
        return made

    def frozen(self) -> Calibrations:
        """Return a copy with the unwritten updates, for the worker that writes them."""
        made = Calibrations()
        made.version = self.version
        made._learned, made._hidden = self._learned.copy(), self._hidden.copy()
        return made

    def learned(self, key: str) -> LearnedFactor | None:
        """Return the factor of a key."""
        return self._learned.entries.get(key)

    def start(self, key: str) -> float:
        """Return the initial factor: the generation's, pooled over its models, or 1."""
        generation = _generation(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # unknown models have nothing in common
        known = self._learned.entries
        same = [one for name, one in known.items() if _generation(name) == generation]
        real, estimated = sum([one.real for one in same]), sum([one.estimated for one in same])
        return LearnedFactor(real=real, estimated=estimated).factor() if same else 1.0

    def hidden(self, key: str) -> HiddenTokens | None:
        """Return the hidden tokens of a model and client."""
        return self._hidden.entries.get(key)

    def update_hidden(self, key: str, tokens: float) -> None:
        """Add the hidden tokens of one conversation."""
        with self._lock:
            self.version += 1
            self._hidden.update(self.version, key, partial(_after_hidden, tokens))

    def update(
        self,
        key: str,
        estimated: float,
        real: float,
        weight: float = 1.0,
        doubt: float | None = None,
        *,
        also: Iterable[str] = (),
    ) -> None:
        """Add a sample for a key.

        Args:
            key: From `key_of` or `document_key`.
            estimated: The estimate, in tokens.
            real: The real number of tokens.
            weight: The sample's weight.
            doubt: Half of the estimate's own band, in tokens.
            also: Narrower keys that the sample belongs to as well.
        """
        with self._lock:
            for name in (key, *also):
                self.version += 1
                sample = estimated, real, weight, self.start(name), doubt
                self._learned.update(self.version, name, partial(_after_sample, sample))
            factor = self._learned.entries[key].factor(self.start(key))
        if not self._is_draft:
            model = printable(key.split(" ", 2)[-1])
            _log.debug(
                "calibration: estimated=%.0f real=%.0f factor=%.3f model=%s",
                *(estimated, real, factor, model),
            )

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and model names for JSON."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """Return what `to_dict` returns and the version it includes, for `mark_written`."""
        with self._lock:
            learned, hidden, number = self._learned.entries, self._hidden.entries, self.version
        entries = {key: msgspec.to_builtins(one) for key, one in learned.items()}
        around = {key: msgspec.to_builtins(one) for key, one in hidden.items()}
        return {"version": VERSION, "learned": entries, "hidden": around}, number

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """Read what `to_dict` returned, skipping invalid entries. Never raises."""
        found = cls()
        if not isinstance(data, dict) or data.get("version") != VERSION:
            return found
        found._learned = CalibrationTable(_read(data.get("learned"), LearnedFactor))
        found._hidden = CalibrationTable(_read(data.get("hidden"), HiddenTokens))
        return found

    def take(self, other: Calibrations) -> bool:
        """Take over what this or another process wrote, and apply the unwritten updates to it.

        Returns:
            Whether anything changed.
        """
        with self._lock:
            is_new = self._learned.merge(other._learned.entries)
            is_new |= self._hidden.merge(other._hidden.entries)
            self.version += is_new
            return is_new

    def mark_written(self, number: int) -> None:
        """Note that other processes can read all updates up to `number`."""
        with self._lock:
            self._learned.mark_written(number)
            self._hidden.mark_written(number)


def _after_sample(
    sample: tuple[float, float, float, float, float | None], known: LearnedFactor | None
) -> LearnedFactor:
    one = copy(known) if known else LearnedFactor()
    one.update(*sample)
    return one


def _after_hidden(tokens: float, known: HiddenTokens | None) -> HiddenTokens:
    return known.with_sample(tokens) if known else HiddenTokens(tokens)


def _read(entries: object, form: type[S]) -> dict[str, S]:
    """Return the valid entries."""
    found: dict[str, S] = {}
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
    """Return the key of a model's factor: generation, estimator and name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def document_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the factor for a model's texts of one kind."""
    return key_of(model, f"{tokenizer}#{kind}")


def newest_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the band for conversations whose newest text is of one kind."""
    return key_of(model, f"{tokenizer}+{kind}")


def _generation(key: str) -> str:
    """Return the part of a key that models of a generation share."""
    return " ".join(key.split(" ")[:2])


def only_kind(grown: Sequence[tuple[str | None, int]], tokens: int) -> str | None:
    """Return the kind of nearly all of the newest `tokens`, or None."""
    sums: dict[str | None, int] = {}
    left = tokens
    for kind, size in reversed(grown):
        sums[kind] = sums.get(kind, 0) + min(size, left)
        left -= min(size, left)
    return next((kind for kind, size in sums.items() if size >= NEARLY * tokens), None)


class ConversationCalibration:
    """Calibrates one conversation's estimates with reported usage.

    Estimates and reports are of whole prompts, in tokens. A report follows the estimate of the same
    prompt; what it teaches is shared with later conversations of the same model.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str, client: str = "") -> None:
        """Start a conversation; `client` identifies the sender, and so what is hidden around its
        texts.
        """
        self._shared = shared
        self._model, self._tokenizer, self._client = model, tokenizer, client
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int, float] | None = None
        self._first: tuple[int, int] | None = None
        """The first report, kept until the second shows how much of it was hidden."""

    @property
    def factor(self) -> float:
        """Real tokens per estimated token; the generation's factor, or 1, before any sample."""
        learned = self._shared.learned(self._key)
        start = self._shared.start(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """How many reports were used, those of earlier conversations included."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """Half of the 95 % band of recent predictions; None before the first."""
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    def spread(self, kind: str | None = None) -> float:
        """Return the half-width of the next text's band, relative to its estimate's own band.

        Args:
            kind: The kind of the next text. A kind without reports is as uncertain as ever.
        """
        learned = self._shared.learned(self._key)
        spread = learned.spread() if learned else 1.0
        if kind is None:
            return spread
        of_kind = self._shared.learned(newest_key(self._model, self._tokenizer, kind))
        return max(spread, of_kind.spread() if of_kind else 1.0)

    @property
    def hidden(self) -> tuple[float, float] | None:
        """Unseen tokens around the texts, and half of their band; None while unknown."""
        found = self._shared.hidden(self._constant)
        return (found.tokens, found.half_width) if found else None

    @property
    def _constant(self) -> str:
        return f"{self._key} @ {self._client}"

    def for_model(self, model: str, tokenizer: str) -> ConversationCalibration:
        """Return the calibration for another model, without reports; itself for the same model."""
        if key_of(model, tokenizer) == self._key:
            return self
        return ConversationCalibration(self._shared, model, tokenizer, self._client)

    def copy(self) -> ConversationCalibration:
        """Return a copy with the same knowledge, to be updated separately."""
        made = copy(self)
        made._shared = self._shared.copy()
        return made

    def update(
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
        """Compare a prompt's estimate with the reported number.

        The first prompt, or one that shrank, updates the factor only where the hidden tokens are
        known, and never the factors of documents: hidden tokens are in both of two prompts that are
        compared, but in a single one they look like a wrong estimate.

        Args:
            estimated: The estimate of the prompt.
            reported: The reported number.
            kind: The kind of the newest text.
            doubt: Half of the band of the whole estimate, in tokens.
            apart: Tokens of the prompt that are not in `estimated` and do not calibrate it.
            apart_doubt: Half of their band.
            steady: Whether they are those of the last report.
            marks: Tokens of the growth that belong to no text.
            grown: Kinds and estimates of what was added, oldest first. Documents of a kind use the
                growth if nearly all of it is of that kind.
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
                self._shared.update(self._key, more, really, 1.0, new, also=kinds)
                self._find_hidden()
        elif is_sure and self.hidden is not None:
            self._whole(estimated, alone, *self.hidden)
        if before is None and is_sure:
            self._first = estimated, alone

    def _find_hidden(self) -> None:
        """Work out the hidden tokens of the first report, once a second one gives the factor."""
        if self._first is not None:
            estimated, reported = self._first
            tokens = max(0.0, reported - self.factor * estimated)
            self._shared.update_hidden(self._constant, round(tokens, 1))
            self._first = None

    def _whole(self, estimated: int, alone: int, hidden: float, doubt: float) -> None:
        """Use a whole prompt less its hidden tokens, where those are known well enough."""
        expected, real = self.factor * estimated, alone - hidden
        is_likely = expected / OUTLIER <= real <= expected * OUTLIER
        if is_likely and estimated >= SMALLEST and doubt <= APART_SURE * estimated:
            self._shared.update(self._key, estimated, real, WHOLE)

    def _kinds(self, most_recent: str | None, only: str | None) -> Iterator[str]:
        """Yield the other keys that use the growth.

        They are the band of its newest kind, and the factor of its only kind.
        """
        if most_recent is not None:
            yield newest_key(self._model, self._tokenizer, most_recent)
        if only is not None:
            yield document_key(self._model, self._tokenizer, only)

    def add_reply(self, estimated: int, output: int) -> None:
        """Compare a reply's estimate with its reported tokens, before the next prompt includes it.

        Args:
            estimated: The estimate of the texts alone, without a template.
            output: The reported tokens, without reasoning that is not sent back.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        before, reported, doubt = self._last
        self._last = (before + estimated, reported + output, doubt)
        if estimated >= SMALLEST:
            self._shared.update(self._key, estimated, output, 1.0)
