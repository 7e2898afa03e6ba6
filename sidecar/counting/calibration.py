"""Corrects estimated token counts with the usage that vendors report.

A calibration factor is the number of reported tokens per estimated token. A conversation has one
factor per model, tokenizer generation and estimator. It is learned from the growth of the prompt
between two reports, so that a hidden system prompt or a template does not distort it. Documents
have one factor per kind of text (`document_key`), learned from the same growth and from endpoints,
because a single factor for mixed files makes estimates worse.

Hidden tokens (a client's own system prompt and tools) are learned per model and client from the
first two reports of a conversation, and used for the next conversation.

A factor is a ratio of sums in which older samples fade, so that long turns weigh more than short
ones, and one unusual sample cannot distort it. Each sample is compared with the prediction that was
made without it. An error band covers 95 of 100 recent samples, and is stored as a multiple of the
estimate's uncalibrated band, because that band depends on the kind of text. The band narrows with
samples that confirm it, and starts at full width for a new kind of text.

This module does no I/O. It stores numbers and model names, never text.
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
"""Each new sample multiplies the weight of all earlier samples by this factor. Half of a sample's
weight is left after 14 further samples.
"""
PRIOR_TOKENS = 300.0
"""Weight of the initial factor, in tokens."""
MAX_DEVIATION = 2.0
"""A sample may differ from its prediction by at most this factor. Larger differences are limited to
it.
"""
MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Limits of a calibration factor. No two vocabularies differ by more."""
RECENT_SAMPLES = 24
"""Number of recent samples that determine an error band."""
MIN_BAND_FACTOR = 0.8
"""The narrowest error band that samples can confirm, relative to the uncalibrated band. Narrower
bands contained only 93 % of the turns of held-out conversations.
"""
BAND_RESERVE = 1.2
"""Factor by which a band is wider than the recent samples require, because 24 samples rarely
contain the largest error.
"""
HIDDEN_MARGIN_SHARE = 0.25
"""Error band of hidden tokens after one report, as a share of them."""
MIN_HIDDEN_MARGIN = 24.0
"""Smallest half-width of the error band of hidden tokens, in tokens."""


class LearnedFactor(
    msgspec.Struct,
    omit_defaults=True,
    rename={"errors": "misses", "band_shares": "strays"},
):
    """A calibration factor, learned from samples whose weight fades.

    Attributes:
        real: The weighted sum of reported tokens.
        estimated: The weighted sum of estimated tokens.
        errors: The errors of recent predictions, as shares of the prediction.
        band_shares: The errors of recent predictions, as shares of the uncalibrated error band.
    """

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    errors: tuple[float, ...] = ()
    band_shares: tuple[float, ...] = ()

    def factor(self, start: float = 1.0) -> float:
        """Return the number of reported tokens per estimated token. `start` is the
        initial factor.
        """
        ratio = (self.real + PRIOR_TOKENS * start) / (self.estimated + PRIOR_TOKENS)
        return min(max(ratio, MIN_FACTOR), MAX_FACTOR)

    @property
    def error_percent(self) -> float | None:
        """The error band (±%) that covers 95 of 100 recent predictions, or None before
        the first.
        """
        return round(100 * _quantile_95(self.errors), 1) if self.errors else None

    def band_factor(self) -> float:
        """Return the error band of the next prediction, relative to the uncalibrated band."""
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
            estimated: The estimated number of tokens.
            real: The reported number of tokens.
            weight: The sample's weight.
            start: The initial factor.
            margin: Half of the uncalibrated error band, in tokens. None leaves the band unchanged.
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
    """Tokens that a client adds to its prompts without sending their text to this server."""

    tokens: float
    largest_error: float = 0.0
    """The largest error of a prediction, which fades with further conversations."""
    samples: int = 1

    def updated(self, tokens: float) -> HiddenTokens:
        """Return a copy that includes the hidden tokens of another conversation."""
        error = max(0.8 * self.largest_error, abs(tokens - self.tokens))
        return HiddenTokens((self.tokens + tokens) / 2, error, self.samples + 1)

    @property
    def margin(self) -> float:
        """Half of the error band, in tokens."""
        share = HIDDEN_MARGIN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(MIN_HIDDEN_MARGIN, share, 1.5 * self.largest_error)


T = TypeVar("T")

MAX_ENTRIES = 512
"""Most entries of a table. The least recently updated entries are removed."""
MAX_UNWRITTEN = 1_024
"""Most updates to keep while the file cannot be written. The oldest updates are removed."""


class _Update(NamedTuple, Generic[T]):
    number: int
    key: str
    apply: Callable[[T | None], T]


class CalibrationTable(Generic[T]):
    """Calibration entries by key, and the updates that the shared file does not contain yet.

    All servers and the command line share one file. A write first applies the unwritten updates to
    the current content of the file, so that no process overwrites another's samples. Other threads
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
        """Update the entry of a key.

        Args:
            number: Orders the updates. Later updates have higher numbers.
            key: The key.
            apply: Returns the new entry from the current one.
        """
        update = _Update(number, key, apply)
        self._unwritten = [*self._unwritten, update][-MAX_UNWRITTEN:]
        self.entries = _newest_entries(_update_entries(self.entries, update))

    def merge(self, stored: dict[str, T]) -> bool:
        """Replace the entries by those of the file, and apply the unwritten updates to them.

        Entries that the file does not contain stay.

        Args:
            stored: The entries of the file.

        Returns:
            Whether an entry has changed.
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
        """Remove the updates up to `number`, which the file now contains."""
        self._unwritten = [update for update in self._unwritten if update.number > number]


def _update_entries(entries: dict[str, T], update: _Update[T]) -> dict[str, T]:
    others = {key: entry for key, entry in entries.items() if key != update.key}
    return {**others, update.key: update.apply(entries.get(update.key))}


def _newest_entries(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[-MAX_ENTRIES:])


_log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

VERSION = 4
"""Version of the file format. Factors in files of older versions belong to other estimates, and are
ignored.
"""
FULL_PROMPT_WEIGHT = 0.25
"""Weight of a sample from a complete prompt, relative to a sample from growth. A complete prompt
also contains a template.
"""
MIN_SAMPLE_TOKENS = 16
"""Samples of fewer tokens are ignored, because rounding and templates dominate them."""
DOMINANT_SHARE = 0.9
"""Share of the growth that must be of one kind of text to calibrate documents of that kind."""
MAX_EXCLUDED_MARGIN = 0.1
"""Largest error band of the excluded tokens of a prompt, as a share of its estimate. Prompts with a
wider band do not calibrate.
"""


class Calibrations:
    """All calibrations of a process, by model. Its conversations share them."""

    def __init__(self) -> None:
        self._learned: CalibrationTable[LearnedFactor] = CalibrationTable()
        self._hidden: CalibrationTable[HiddenTokens] = CalibrationTable()
        self._lock = Lock()
        self._is_draft = False
        """Whether this is a draft, whose updates are logged only when they are committed."""
        self.version = 0
        """Increases with each update."""

    def copy(self) -> Calibrations:
        """Return a draft with the same entries."""
        draft = Calibrations()
        draft._is_draft = True
        draft._learned = CalibrationTable(self._learned.entries)
        draft._hidden = CalibrationTable(self._hidden.entries)
        return draft

    def frozen(self) -> Calibrations:
        """Return a copy with the unwritten updates. A worker writes it to the file."""
        frozen = Calibrations()
        frozen.version = self.version
        frozen._learned, frozen._hidden = self._learned.copy(), self._hidden.copy()
        return frozen

    def learned(self, key: str) -> LearnedFactor | None:
        return self._learned.entries.get(key)

    def initial_factor(self, key: str) -> float:
        """Return the initial factor of a key: that of the model's generation, or 1."""
        generation = _generation_of_key(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # models of unknown generations have nothing in common
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
        """Add a sample.

        Args:
            key: The key of the factor, from `key_of` or `document_key`.
            estimated: The estimated number of tokens.
            real: The reported number of tokens.
            weight: The sample's weight.
            margin: Half of the uncalibrated error band, in tokens.
            narrower_keys: Further keys to update with the same sample.
        """
        with self._lock:
            for name in (key, *narrower_keys):
                self.version += 1
                sample = estimated, real, weight, self.initial_factor(name), margin
                self._learned.update(self.version, name, partial(_with_sample, sample))
            factor = self._learned.entries[key].factor(self.initial_factor(key))
        if not self._is_draft:
            model = printable(key.split(" ", 2)[-1])
            _log.debug(
                "calibration: estimated=%.0f real=%.0f factor=%.3f model=%s",
                *(estimated, real, factor, model),
            )

    def to_dict(self) -> dict[str, Any]:
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """Return the entries for JSON, and the version to pass to `mark_written`."""
        with self._lock:
            learned, hidden, version = self._learned.entries, self._hidden.entries, self.version
        data = {"version": VERSION, "learned": learned, "hidden": hidden}
        return msgspec.to_builtins(data), version

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """Return calibrations from the entries that `to_dict` returned. Invalid entries are
        skipped.
        """
        calibrations = cls()
        if isinstance(data, dict) and data.get("version") == VERSION:
            learned = _valid_entries(data.get("learned"), LearnedFactor)
            hidden = _valid_entries(data.get("hidden"), HiddenTokens)
            calibrations._learned = CalibrationTable(learned)
            calibrations._hidden = CalibrationTable(hidden)
        return calibrations

    def merge(self, other: Calibrations) -> bool:
        """Replace the entries by those of the file, and apply the unwritten updates to them.

        Args:
            other: The content of the file.

        Returns:
            Whether an entry has changed.
        """
        with self._lock:
            has_changed = self._learned.merge(other._learned.entries)
            has_changed |= self._hidden.merge(other._hidden.entries)
            self.version += has_changed
            return has_changed

    def mark_written(self, version: int) -> None:
        """Remove the updates up to `version`, which the file now contains."""
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
    """Return the key of a model's factor: its generation, the tokenizer and the model's name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def document_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the factor for documents of one kind of text."""
    return key_of(model, f"{tokenizer}#{kind}")


def latest_kind_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the error band for conversations whose newest text is of one kind."""
    return key_of(model, f"{tokenizer}+{kind}")


def _generation_of_key(key: str) -> str:
    return " ".join(key.split(" ")[:2])


def dominant_kind(added: Sequence[tuple[str | None, int]], tokens: int) -> str | None:
    """Return the kind of text that nearly all of a conversation's growth belongs to, or None.

    Args:
        added: The kinds and tokens of the added texts, oldest first.
        tokens: The size of the growth. Earlier texts are ignored.
    """
    sums: dict[str | None, int] = {}
    left = tokens
    for kind, size in reversed(added):
        sums[kind] = sums.get(kind, 0) + min(size, left)
        left -= min(size, left)
    return next((kind for kind, size in sums.items() if size >= DOMINANT_SHARE * tokens), None)


class ConversationCalibration:
    """Calibrates the estimates of one conversation with reported usage.

    Estimates and reports are those of complete prompts, in tokens. The factors are shared with all
    conversations of the same model.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str, client: str = "") -> None:
        self._shared = shared
        self._model, self._tokenizer, self._client = model, tokenizer, client
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int, float] | None = None
        # The first estimate and report, until a second report determines the hidden tokens.
        self._first: tuple[int, int] | None = None

    @property
    def factor(self) -> float:
        """Reported tokens per estimated token. Without samples, this is the generation's factor or
        1.
        """
        learned = self._shared.learned(self._key)
        start = self._shared.initial_factor(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """Number of usage reports for the model, including those of earlier conversations."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """The error band (±%) that covers 95 of 100 recent predictions, or None before
        the first.
        """
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    def band_factor(self, kind: str | None = None) -> float:
        """Return the error band of the next text, relative to its uncalibrated band.

        Args:
            kind: The kind of the text. Without reports of that kind, the result is at least 1.
        """
        learned = self._shared.learned(self._key)
        band_factor = learned.band_factor() if learned else 1.0
        if kind is None:
            return band_factor
        of_kind = self._shared.learned(latest_kind_key(self._model, self._tokenizer, kind))
        return max(band_factor, of_kind.band_factor() if of_kind else 1.0)

    @property
    def hidden(self) -> tuple[float, float] | None:
        """The tokens that the client adds to the prompt and half of their error band, or None if
        unknown.
        """
        hidden = self._shared.hidden(self._hidden_key)
        return (hidden.tokens, hidden.margin) if hidden else None

    @property
    def _hidden_key(self) -> str:
        return f"{self._key} @ {self._client}"

    def for_model(self, model: str, tokenizer: str) -> ConversationCalibration:
        """Return a calibration of this conversation for another model, without its
        earlier reports.
        """
        if key_of(model, tokenizer) == self._key:
            return self
        return ConversationCalibration(self._shared, model, tokenizer, self._client)

    def copy(self) -> ConversationCalibration:
        """Return a draft with a draft of the shared calibrations."""
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
        """Compare the estimate of a prompt with the reported number of tokens.

        Usually the growth since the last report updates the factor. A first or shortened prompt
        updates the factor only if the hidden tokens are known, and never the factors of documents,
        because hidden tokens in a single prompt look like a wrong estimate.

        Args:
            estimated: The estimated tokens of the prompt.
            reported: The reported tokens of the prompt.
            kind: The kind of the newest text.
            margin: Half of the error band of the complete estimate, in tokens.
            excluded: Tokens of the prompt that are not part of `estimated` and do not calibrate it.
            excluded_margin: Half of the error band of the excluded tokens.
            is_excluded_unchanged: Whether the previous prompt contained the same excluded tokens.
            template_tokens: Tokens of the growth that belong to the template.
            added: The kinds and estimates of the added texts, oldest first. If nearly all of the
                growth is of one kind, it calibrates documents of that kind.
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
        """Compute the hidden tokens of the first report, with the factor from the second report."""
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
        """Compare the estimate of a reply with its reported tokens.

        The next prompt is then expected to contain the reply.

        Args:
            estimated: The estimated tokens of the reply's texts, without a template.
            output: The reported output tokens, without reasoning that is not sent back.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        last_estimated, reported, margin = self._last
        self._last = (last_estimated + estimated, reported + output, margin)
        if estimated >= MIN_SAMPLE_TOKENS:
            self._shared.update(self._key, estimated, output, 1.0)
