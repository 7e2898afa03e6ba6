"""Calibration factors (real tokens per estimated token), each with its error.

A conversation has one factor per model, tokenizer generation and estimator. It is learned from how
much the prompt *grows* between two reports, so that a hidden system prompt or a template does not
look like a wrong factor. Documents have one factor per kind of text (`document_key`), learned from
growth and from endpoints; a single factor for mixed files makes estimates worse.

Hidden tokens (a client's own system prompt and tools) are learned per model and client from the
first two reports of a conversation, and used for the next one.

A factor is a ratio of sums in which older samples fade: long turns weigh more than short ones, and
one odd sample cannot distort it. Errors are predictive: each sample is compared with the factor
before it was learned. A band covers 95 of 100 recent samples, as a multiple of the estimate's own
band, because that depends on the kind of text. It narrows with samples that confirm it, and starts
at full width for a new kind.

Pure. Only numbers and model names are stored, never text.
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

DECAY = 0.95
"""Each new sample multiplies the weight of earlier ones by this; half is left after 14 samples."""
PRIOR_TOKENS = 300.0
"""Weight of the initial factor, in tokens."""
MAX_DEVIATION = 2.0
"""Samples are limited to this factor above or below their expectation."""
MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Limits of a factor. No two vocabularies differ by more."""
RECENT_SAMPLES = 24
"""How many samples determine an error band."""
MIN_BAND_FACTOR = 0.8
"""The narrowest band that samples can confirm, relative to the estimate's own.

Narrower bands contained only 93 % of the turns of held-out conversations.
"""
BAND_RESERVE = 1.2
"""How much wider a band is than recent samples require.

24 samples rarely contain the largest error.
"""
HIDDEN_MARGIN_SHARE = 0.25
"""Share by which the hidden tokens may differ next time, after one report."""
MIN_HIDDEN_MARGIN = 24.0
"""Smallest half-width of the hidden tokens' band."""


class LearnedFactor(
    msgspec.Struct,
    omit_defaults=True,
    rename={"errors": "misses", "band_shares": "strays"},
):
    """The factor of one key, from samples whose weight fades."""

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    errors: tuple[float, ...] = ()
    """Errors of recent predictions, relative to the prediction."""
    band_shares: tuple[float, ...] = ()
    """The same errors, relative to the estimate's own error band."""

    def factor(self, start: float = 1.0) -> float:
        """Return real tokens per estimated token."""
        ratio = (self.real + PRIOR_TOKENS * start) / (self.estimated + PRIOR_TOKENS)
        return min(max(ratio, MIN_FACTOR), MAX_FACTOR)

    @property
    def error_percent(self) -> float | None:
        """Error band (±%) of 95 of 100 recent predictions, or None before the first."""
        return round(100 * _quantile_95(self.errors), 1) if self.errors else None

    def band_factor(self) -> float:
        """Return the error band of the next prediction, relative to the estimate's own."""
        count = len(self.band_shares)
        if not count:
            return 1.0
        needed = _quantile_95(self.band_shares) * (BAND_RESERVE + 1 / (count + 1))
        return max(MIN_BAND_FACTOR, 1 / (1 + count / 12), needed)

    def update(
        self,
        estimated: float,
        real: float,
        weight: float = 1.0,
        start: float = 1.0,
        margin: float | None = None,
    ) -> None:
        """Add a sample.

        Args:
            estimated: The estimate, in tokens.
            real: The real number of tokens.
            weight: The sample's weight.
            start: The initial factor.
            margin: The estimate's own error band in tokens. None leaves the band unchanged.
        """
        factor = self.factor(start)
        expected = factor * estimated
        error = abs(expected - real)
        self.errors = (*self.errors, round(error / max(1.0, expected), 4))[-RECENT_SAMPLES:]
        if margin is not None:
            share = round(error / max(2.0, margin * factor), 3)
            self.band_shares = (*self.band_shares, share)[-RECENT_SAMPLES:]
        limited = min(max(real, expected / MAX_DEVIATION), expected * MAX_DEVIATION)
        self.real = DECAY * self.real + weight * limited
        self.estimated = DECAY * self.estimated + weight * estimated
        self.samples += 1


def _quantile_95(shares: tuple[float, ...]) -> float:
    rank = min(len(shares), math.ceil(0.95 * (len(shares) + 1)))
    return sorted(shares)[rank - 1] if shares else 0.0


class HiddenTokens(msgspec.Struct, frozen=True, rename={"largest_error": "doubt"}):
    """Tokens in a client's prompts that are not in the texts it sends to this server."""

    tokens: float
    largest_error: float = 0.0
    """The largest error, which fades with further updates."""
    samples: int = 1

    def updated(self, tokens: float) -> HiddenTokens:
        """Return a copy that includes another conversation's hidden tokens."""
        error = max(0.8 * self.largest_error, abs(tokens - self.tokens))
        return HiddenTokens((self.tokens + tokens) / 2, error, self.samples + 1)

    @property
    def margin(self) -> float:
        """The error band in tokens."""
        share = HIDDEN_MARGIN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(MIN_HIDDEN_MARGIN, share, 1.5 * self.largest_error)


T = TypeVar("T")

MAX_ENTRIES = 512
"""Most entries per table. The least recently updated ones are dropped."""
MAX_UNWRITTEN = 1_024
"""Most updates to keep while the file cannot be written. The oldest are dropped."""


class _Update(NamedTuple, Generic[T]):
    number: int
    key: str
    apply: Callable[[T | None], T]


class CalibrationTable(Generic[T]):
    """Entries by key, and the updates that are not in the shared file yet.

    Servers and the command line share one file. A write first applies the unwritten updates to
    what the file contains now, so that no process overwrites another's samples. Other threads
    may read `entries` at any time.
    """

    def __init__(self, entries: dict[str, T] | None = None) -> None:
        self.entries = _newest_entries(entries or {})
        self._unwritten: list[_Update[T]] = []

    def copy(self) -> CalibrationTable[T]:
        copied = CalibrationTable(self.entries)
        copied._unwritten = self._unwritten
        return copied

    def update(self, number: int, key: str, apply: Callable[[T | None], T]) -> None:
        """Update a key's entry. Later updates have higher numbers."""
        update = _Update(number, key, apply)
        self._unwritten = [*self._unwritten, update][-MAX_UNWRITTEN:]
        self.entries = _newest_entries(_update_entries(self.entries, update))

    def merge(self, stored: dict[str, T]) -> bool:
        """Replace entries by those of the file, and apply the unwritten updates to them.

        Entries that the file no longer contains are kept.

        Returns:
            Whether anything has changed.
        """
        kept = {key: entry for key, entry in self.entries.items() if key not in stored}
        merged = kept | stored
        for update in self._unwritten:
            if update.key in stored:
                merged = _update_entries(merged, update)
            else:
                merged[update.key] = merged.pop(update.key, None) or update.apply(None)
        before, self.entries = self.entries, _newest_entries(merged)
        return before != self.entries

    def mark_written(self, number: int) -> None:
        """Drop the updates up to `number`, which the file now contains."""
        self._unwritten = [update for update in self._unwritten if update.number > number]


def _update_entries(entries: dict[str, T], update: _Update[T]) -> dict[str, T]:
    others = {key: entry for key, entry in entries.items() if key != update.key}
    return {**others, update.key: update.apply(entries.get(update.key))}


def _newest_entries(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[-MAX_ENTRIES:])


_log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

VERSION = 4
"""Version of the file format. Factors of older versions are for other estimates."""
FULL_PROMPT_WEIGHT = 0.25
"""Weight of a complete prompt, which includes a template, relative to growth."""
MIN_SAMPLE_TOKENS = 16
"""Smaller growth is ignored, because rounding and templates dominate it."""
DOMINANT_SHARE = 0.9
"""Share of growth that must be of one kind of text to calibrate documents of that kind."""
MAX_EXCLUDED_MARGIN = 0.1
"""Largest error band of subtracted tokens, as a share of the prompt's estimate."""


class Calibrations:
    """All calibrations by model, shared by the conversations of a process."""

    def __init__(self) -> None:
        self._learned: CalibrationTable[LearnedFactor] = CalibrationTable()
        self._hidden: CalibrationTable[HiddenTokens] = CalibrationTable()
        self._lock = Lock()
        """Guards updates while another thread merges the file."""
        self._is_draft = False
        """Whether updates are not logged, because they are repeated when the draft is committed."""
        self.version = 0
        """Rises with each update."""

    def copy(self) -> Calibrations:
        """Return a draft with the same entries."""
        draft = Calibrations()
        draft._is_draft = True
        draft._learned = CalibrationTable(self._learned.entries)
        draft._hidden = CalibrationTable(self._hidden.entries)
        return draft

    def frozen(self) -> Calibrations:
        """Return a copy with the unwritten updates, for the worker that writes them."""
        frozen = Calibrations()
        frozen.version = self.version
        frozen._learned, frozen._hidden = self._learned.copy(), self._hidden.copy()
        return frozen

    def learned(self, key: str) -> LearnedFactor | None:
        return self._learned.entries.get(key)

    def start(self, key: str) -> float:
        """Return the initial factor: that of the model's generation, or 1."""
        generation = _generation_of_key(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # unknown models have nothing in common
        entries = self._learned.entries.items()
        pooled = LearnedFactor()
        for name, learned in entries:
            if _generation_of_key(name) == generation:
                pooled.real += learned.real
                pooled.estimated += learned.estimated
        return pooled.factor()

    def hidden(self, key: str) -> HiddenTokens | None:
        return self._hidden.entries.get(key)

    def update_hidden(self, key: str, tokens: float) -> None:
        with self._lock:
            self.version += 1
            self._hidden.update(self.version, key, partial(_with_hidden, tokens))

    def update(
        self,
        key: str,
        estimated: float,
        real: float,
        weight: float = 1.0,
        margin: float | None = None,
        *,
        narrower_keys: Iterable[str] = (),
    ) -> None:
        """Add a sample for a key.

        Args:
            key: From `key_of` or `document_key`.
            estimated: The estimate, in tokens.
            real: The real number of tokens.
            weight: The sample's weight.
            margin: The estimate's own error band in tokens.
            narrower_keys: Further keys to update.
        """
        with self._lock:
            for name in (key, *narrower_keys):
                self.version += 1
                sample = estimated, real, weight, self.start(name), margin
                self._learned.update(self.version, name, partial(_with_sample, sample))
            factor = self._learned.entries[key].factor(self.start(key))
        if not self._is_draft:
            model = printable(key.split(" ", 2)[-1])
            _log.debug(
                "calibration: estimated=%.0f real=%.0f factor=%.3f model=%s",
                *(estimated, real, factor, model),
            )

    def to_dict(self) -> dict[str, Any]:
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """Return the entries for JSON, and their version for `mark_written`."""
        with self._lock:
            learned, hidden, version = self._learned.entries, self._hidden.entries, self.version
        data = {"version": VERSION, "learned": learned, "hidden": hidden}
        return msgspec.to_builtins(data), version

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """Read entries that `to_dict` returned. Invalid ones are skipped. Never raises."""
        calibrations = cls()
        if isinstance(data, dict) and data.get("version") == VERSION:
            learned = _valid_entries(data.get("learned"), LearnedFactor)
            hidden = _valid_entries(data.get("hidden"), HiddenTokens)
            calibrations._learned = CalibrationTable(learned)
            calibrations._hidden = CalibrationTable(hidden)
        return calibrations

    def merge(self, other: Calibrations) -> bool:
        """Replace entries by those of `other`, the file, and apply the unwritten updates to them.

        Returns:
            Whether anything has changed.
        """
        with self._lock:
            has_changed = self._learned.merge(other._learned.entries)
            has_changed |= self._hidden.merge(other._hidden.entries)
            self.version += has_changed
            return has_changed

    def mark_written(self, version: int) -> None:
        """Drop the updates up to `version`, which the file now contains."""
        with self._lock:
            self._learned.mark_written(version)
            self._hidden.mark_written(version)


def _with_sample(
    sample: tuple[float, float, float, float, float | None], learned: LearnedFactor | None
) -> LearnedFactor:
    updated = copy(learned) if learned else LearnedFactor()
    updated.update(*sample)
    return updated


def _with_hidden(tokens: float, hidden: HiddenTokens | None) -> HiddenTokens:
    return hidden.updated(tokens) if hidden else HiddenTokens(tokens)


def _valid_entries(entries: object, form: type[S]) -> dict[str, S]:
    valid: dict[str, S] = {}
    for key, value in entries.items() if isinstance(entries, dict) else ():
        try:
            entry = typed.convert(value, form)
        except msgspec.ValidationError:
            continue
        fields = msgspec.structs.astuple(entry)
        numbers = [n for field in fields for n in (field if isinstance(field, tuple) else (field,))]
        if isinstance(key, str) and all(0 <= number < 1e15 for number in numbers):
            valid[key] = entry
    return valid


def key_of(model: str, tokenizer: str) -> str:
    """Return the key of a model's factor: generation, estimator and name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def document_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the factor for a model's texts of one kind."""
    return key_of(model, f"{tokenizer}#{kind}")


def latest_kind_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the error band for conversations whose newest text is of one kind."""
    return key_of(model, f"{tokenizer}+{kind}")


def _generation_of_key(key: str) -> str:
    return " ".join(key.split(" ")[:2])


def dominant_kind(added: Sequence[tuple[str | None, int]], tokens: int) -> str | None:
    """Return the kind of nearly all of the last `tokens` added tokens, or None."""
    sums: dict[str | None, int] = {}
    left = tokens
    for kind, size in reversed(added):
        sums[kind] = sums.get(kind, 0) + min(size, left)
        left -= min(size, left)
    return next((kind for kind, size in sums.items() if size >= DOMINANT_SHARE * tokens), None)


class ConversationCalibration:
    """Calibrates one conversation's estimates with reported usage.

    Estimates and reports are of complete prompts, in tokens. Factors are shared with all
    conversations of the same model.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str, client: str = "") -> None:
        self._shared = shared
        self._model, self._tokenizer, self._client = model, tokenizer, client
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int, float] | None = None
        self._first: tuple[int, int] | None = None
        """The first estimate and report, until the second report shows how many tokens are
        hidden."""

    @property
    def factor(self) -> float:
        """Real tokens per estimated token. Without samples, the generation's factor or 1."""
        learned = self._shared.learned(self._key)
        start = self._shared.start(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """Number of reports, including those of earlier conversations."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """Error band (±%) of 95 of 100 recent predictions, or None before the first."""
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    def band_factor(self, kind: str | None = None) -> float:
        """Return the next text's error band, relative to its estimate's own.

        Args:
            kind: The kind of the next text. Without reports of that kind, the result is at least 1.
        """
        learned = self._shared.learned(self._key)
        band_factor = learned.band_factor() if learned else 1.0
        if kind is None:
            return band_factor
        of_kind = self._shared.learned(latest_kind_key(self._model, self._tokenizer, kind))
        return max(band_factor, of_kind.band_factor() if of_kind else 1.0)

    @property
    def hidden(self) -> tuple[float, float] | None:
        """Tokens that the client adds to the prompt, with their error band, or None if unknown."""
        hidden = self._shared.hidden(self._hidden_key)
        return (hidden.tokens, hidden.margin) if hidden else None

    @property
    def _hidden_key(self) -> str:
        return f"{self._key} @ {self._client}"

    def for_model(self, model: str, tokenizer: str) -> ConversationCalibration:
        """Return the calibration for another model, without reports."""
        if key_of(model, tokenizer) == self._key:
            return self
        return ConversationCalibration(self._shared, model, tokenizer, self._client)

    def copy(self) -> ConversationCalibration:
        """Return a draft."""
        draft = copy(self)
        draft._shared = self._shared.copy()
        return draft

    def update(
        self,
        estimated: int,
        reported: int,
        kind: str | None = None,
        margin: float | None = None,
        *,
        excluded: int = 0,
        excluded_margin: float = 0.0,
        is_excluded_unchanged: bool = True,
        template_tokens: float = 0.0,
        added: Sequence[tuple[str | None, int]] = (),
    ) -> None:
        """Compare a prompt's estimate with the reported number.

        Usually the growth since the last report updates the factor. The first prompt, or one that
        shrank, does so only if the hidden tokens are known, and never updates the factors of
        documents: in a single prompt, hidden tokens look like a wrong estimate.

        Args:
            estimated: The estimate of the prompt.
            reported: The reported number.
            kind: The kind of the newest text.
            margin: Half of the band of the complete estimate, in tokens.
            excluded: Tokens of the prompt that are not in `estimated` and do not calibrate it.
            excluded_margin: Half of their band.
            is_excluded_unchanged: Whether the last report contained the same excluded tokens.
            template_tokens: Tokens of the growth that belong to no text.
            added: Kinds and estimates of the added texts, oldest first. Documents of a kind use the
                growth if nearly all of it is of that kind.
        """
        real = reported - excluded
        if estimated <= 0 or real <= 0:
            return
        is_certain = excluded_margin <= MAX_EXCLUDED_MARGIN * estimated
        last, self._last = self._last, (estimated, reported, margin or 0.0)
        has_grown = last is not None and estimated >= last[0] and reported >= last[1]
        if last is not None and has_grown and is_excluded_unchanged:
            growth = estimated - last[0]
            if growth >= MIN_SAMPLE_TOKENS:
                real_growth = reported - last[1] - template_tokens
                growth_margin = None if margin is None else max(0.0, margin - last[2])
                keys = self._narrower_keys(kind, dominant_kind(added, growth))
                self._shared.update(
                    self._key, growth, real_growth, 1.0, growth_margin, narrower_keys=keys
                )
                self._find_hidden()
        elif is_certain and self.hidden is not None:
            self._use_full_prompt(estimated, real, *self.hidden)
        if last is None and is_certain:
            self._first = estimated, real

    def _find_hidden(self) -> None:
        """Compute the hidden tokens of the first report, once a second one has given the factor."""
        if self._first is not None:
            estimated, reported = self._first
            tokens = max(0.0, reported - self.factor * estimated)
            self._shared.update_hidden(self._hidden_key, round(tokens, 1))
            self._first = None

    def _use_full_prompt(
        self, estimated: int, real: int, hidden: float, hidden_margin: float
    ) -> None:
        expected, visible = self.factor * estimated, real - hidden
        is_likely = expected / MAX_DEVIATION <= visible <= expected * MAX_DEVIATION
        is_certain = hidden_margin <= MAX_EXCLUDED_MARGIN * estimated
        if is_likely and is_certain and estimated >= MIN_SAMPLE_TOKENS:
            self._shared.update(self._key, estimated, visible, FULL_PROMPT_WEIGHT)

    def _narrower_keys(self, latest: str | None, dominant: str | None) -> Iterator[str]:
        if latest is not None:
            yield latest_kind_key(self._model, self._tokenizer, latest)
        if dominant is not None:
            yield document_key(self._model, self._tokenizer, dominant)

    def add_reply(self, estimated: int, output: int) -> None:
        """Compare a reply's estimate with its reported tokens, before the next prompt includes it.

        Args:
            estimated: The estimate of the texts without a template.
            output: The reported tokens, without reasoning that is not sent back.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        last_estimated, reported, margin = self._last
        self._last = (last_estimated + estimated, reported + output, margin)
        if estimated >= MIN_SAMPLE_TOKENS:
            self._shared.update(self._key, estimated, output, 1.0)
