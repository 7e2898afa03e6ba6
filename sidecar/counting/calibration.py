"""Corrects estimated token counts with the usage that vendors report.

A calibration factor is the ratio of reported to estimated tokens. All conversations share one
factor per model, tokenizer generation and estimator. The factor is computed from the growth of the
prompt between two reports, so a hidden system prompt or a template does not distort it. Documents
have a separate factor for each kind of text (`document_key`), because a single factor for all kinds
would make their estimates worse. Document factors are computed from endpoints' counts.

Hidden tokens belong to a client's own system prompt and tools. Their number is computed for each
model and client from the first two reports of a conversation, and is used in the next conversation.

A factor is a ratio of two sums in which older samples lose weight. Long turns therefore count for
more than short ones, and a single unusual sample cannot distort the factor. Each sample is compared
with the prediction that was made before it. An error band covers 95 of 100 recent samples. It is
stored as a multiple of the estimate's uncalibrated band, because that band depends on the kind of
text.

`CalibrationStore` shares the factors with other processes through a file of numbers and model
names, never text. Worker threads read and write the file. They work on a copy, and the event loop
merges their result.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from sidecar import typed
from sidecar.config.safe_files import FileStamp, lock_state, make_folder, set_aside, stamp_of, write
from sidecar.models.names import UNKNOWN, generation_of, parse
from sidecar.text.printable import printable

DECAY = 0.95
"""Each new sample multiplies the weight of all earlier samples by this factor. A sample therefore
loses half of its weight within 14 samples.
"""
PRIOR_TOKENS = 300.0
"""Weight of the initial factor, in tokens."""
MAX_DEVIATION = 2.0
"""A sample may deviate from its prediction by at most this factor. Larger deviations are
clipped.
"""
MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
"""Limits of a calibration factor. No two known vocabularies differ by more."""
RECENT_SAMPLES = 24
"""Number of recent samples that determine an error band."""
MIN_BAND_FACTOR = 0.8
"""Minimum width of an error band, relative to the uncalibrated band. In held-out conversations,
narrower bands contained only 93 % of the turns.
"""
BAND_RESERVE = 1.2
"""Error bands are multiplied by this factor, because recent samples rarely include the largest
error.
"""
HIDDEN_MARGIN_SHARE = 0.25
"""Margin of error (±) of a hidden-token count that is estimated from one conversation, as a
fraction of the count.
"""
MIN_HIDDEN_MARGIN = 24.0
"""Minimum margin of error (±) of an estimated hidden-token count, in tokens."""


class LearnedFactor(msgspec.Struct, omit_defaults=True):
    """A calibration factor, computed from samples that lose weight over time.

    Attributes:
        real: The weighted sum of reported tokens.
        estimated: The weighted sum of estimated tokens.
        errors: The errors of recent predictions, as fractions of the prediction.
        band_shares: The errors of recent predictions, as fractions of the uncalibrated error band.
    """

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    errors: tuple[float, ...] = ()
    band_shares: tuple[float, ...] = ()

    def factor(self, start: float = 1.0) -> float:
        """Return the reported tokens per estimated token.

        Args:
            start: The factor that is assumed before the first sample.
        """
        ratio = (self.real + PRIOR_TOKENS * start) / (self.estimated + PRIOR_TOKENS)
        return min(max(ratio, MIN_FACTOR), MAX_FACTOR)

    @property
    def error_percent(self) -> float | None:
        """The error band (±%) that covers 95 of 100 recent predictions, or None before the first
        prediction.
        """
        return round(100 * _quantile_95(self.errors), 1) if self.errors else None

    def band_factor(self) -> float:
        """Return the ratio of the next prediction's error band to the uncalibrated band."""
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
            margin: The uncalibrated margin of error (±), in tokens. If None, the band does not
                change.
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


class HiddenTokens(msgspec.Struct, frozen=True):
    """The number of prompt tokens whose text the client does not send to this server."""

    tokens: float
    largest_error: float = 0.0
    """The largest recent prediction error. An error decays by 20 % per conversation."""
    samples: int = 1

    def updated(self, tokens: float) -> HiddenTokens:
        """Return an estimate that also takes another conversation's hidden tokens into account."""
        error = max(0.8 * self.largest_error, abs(tokens - self.tokens))
        return HiddenTokens((self.tokens + tokens) / 2, error, self.samples + 1)

    @property
    def margin(self) -> float:
        """The margin of error (±), in tokens."""
        share = HIDDEN_MARGIN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(MIN_HIDDEN_MARGIN, share, 1.5 * self.largest_error)


T = TypeVar("T")

MAX_ENTRIES = 512
"""Maximum number of entries in a table. The least recently updated entries are removed first."""
MAX_UNWRITTEN = 1_024
"""Maximum number of unwritten updates to keep. The oldest are removed first."""


class _Update(NamedTuple, Generic[T]):
    number: int
    key: str
    apply: Callable[[T | None], T]


class CalibrationTable(Generic[T]):
    """Keyed calibration entries, and the updates that are not in the shared file yet.

    All servers and the command line share one file. Before a process writes the file, it applies
    its unwritten updates to the file's current content, so no process overwrites the samples of
    another. An update replaces `entries` instead of modifying it, so copies can share it.
    """

    def __init__(self, entries: dict[str, T] | None = None) -> None:
        self.entries = _newest_entries(entries or {})
        self._unwritten: list[_Update[T]] = []

    def update(self, number: int, key: str, apply: Callable[[T | None], T]) -> None:
        """Update the entry for a key.

        Args:
            number: The update's sequence number. Later updates have higher numbers.
            key: The key.
            apply: Computes the new entry from the current one, which is None if the key is new.
        """
        update = _Update(number, key, apply)
        self._unwritten = [*self._unwritten, update][-MAX_UNWRITTEN:]
        self.entries = _newest_entries(_update_entries(self.entries, update))

    def merge(self, stored: dict[str, T]) -> bool:
        """Load the entries in the file, and apply the unwritten updates to them.

        Entries that are not in the file are kept.

        Args:
            stored: The entries in the file.

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
        """Discard the updates up to `number`, which are now in the file."""
        self._unwritten = [update for update in self._unwritten if update.number > number]


def _update_entries(entries: dict[str, T], update: _Update[T]) -> dict[str, T]:
    others = {key: entry for key, entry in entries.items() if key != update.key}
    return {**others, update.key: update.apply(entries.get(update.key))}


def _newest_entries(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[-MAX_ENTRIES:])


_log = logging.getLogger(__name__)

S = TypeVar("S", bound=msgspec.Struct)

VERSION = 4
"""Version of the file format. Files with older versions are ignored, because their factors apply to
different estimates.
"""
FULL_PROMPT_WEIGHT = 0.25
"""Weight of a sample that is a complete prompt. Text added to an earlier prompt has a weight of 1.
A complete prompt is less reliable, because it also contains a template.
"""
MIN_SAMPLE_TOKENS = 16
"""Smaller samples are ignored, because rounding and template tokens would dominate them."""
MAX_EXCLUDED_MARGIN = 0.1
"""Maximum margin of error (±) of the excluded tokens and of the hidden tokens, as a fraction of the
prompt's estimate. If either margin is larger, the complete prompt is not used as a sample.
"""


class Calibrations:
    """A process's calibrations for all models. All conversations share them.

    Not thread-safe: only the event loop updates them, and workers get copies.
    """

    def __init__(self) -> None:
        self._learned: CalibrationTable[LearnedFactor] = CalibrationTable()
        self._hidden: CalibrationTable[HiddenTokens] = CalibrationTable()
        self._is_draft = False
        """Whether this is a draft. A draft's updates are not logged until it is committed."""
        self.version = 0
        """A counter that increases with each update."""

    def copy(self, *, is_draft: bool = False) -> Calibrations:
        """Return an independent copy, for a worker to update or to write to the file."""
        copied = copy(self)
        copied._learned, copied._hidden = copy(self._learned), copy(self._hidden)
        copied._is_draft = is_draft
        return copied

    def learned(self, key: str) -> LearnedFactor | None:
        return self._learned.entries.get(key)

    def initial_factor(self, key: str) -> float:
        """Return the initial factor for a key: the factor of the model's generation, or 1 if
        unknown.
        """
        generation = _generation_of_key(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # models of unknown generations may have different tokenizers
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
        prompt: tuple[int, int] | None = None,
    ) -> None:
        """Add a sample.

        Args:
            key: The factor's key, from `key_of` or `document_key`.
            estimated: The estimated number of tokens.
            real: The reported number of tokens.
            weight: The sample's weight.
            margin: The uncalibrated margin of error (±), in tokens.
            prompt: The estimated and the reported tokens of the whole prompt, for the log.
        """
        self.version += 1
        sample = estimated, real, weight, self.initial_factor(key), margin
        self._learned.update(self.version, key, partial(_with_sample, sample))
        if not self._is_draft:
            factor = self._learned.entries[key].factor(self.initial_factor(key))
            model = printable(key.split(" ", 2)[-1])
            sizes = "of a prompt estimated={} reported={} "
            whole = "" if prompt is None else sizes.format(*prompt)
            _log.debug(
                "calibration: estimated=%.0f real=%.0f %sfactor=%.3f model=%s",
                *(estimated, real, whole, factor, model),
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as JSON data."""
        learned, hidden = self._learned.entries, self._hidden.entries
        data = {"version": VERSION, "learned": learned, "hidden": hidden}
        return dict(msgspec.to_builtins(data))

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """Return calibrations from the data that `to_dict` returned. Invalid entries are
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
        """Load the entries in the file, and apply the unwritten updates to them.

        Args:
            other: The file's content.

        Returns:
            Whether an entry has changed.
        """
        has_changed = self._learned.merge(other._learned.entries)
        has_changed |= self._hidden.merge(other._hidden.entries)
        self.version += has_changed
        return has_changed

    def mark_written(self, version: int) -> None:
        """Discard the updates up to `version`, which are now in the file."""
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
    """Return the key of a model's factor: its generation, tokenizer and name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def document_key(model: str, tokenizer: str, kind: str) -> str:
    """Return the key of the factor for a model's documents of one kind."""
    return key_of(model, f"{tokenizer}#{kind}")


def _generation_of_key(key: str) -> str:
    return " ".join(key.split(" ")[:2])


class Sample(msgspec.Struct, frozen=True):
    """The estimated and the reported size of a prompt, in tokens."""

    estimated: int
    reported: int
    margin: float | None = None
    """The margin of error (±) of the complete estimate, or None if unknown."""
    excluded: int = 0
    """Tokens of the prompt that `estimated` does not include, such as sections. They are not used
    for calibration.
    """
    excluded_margin: float = 0.0
    """The margin of error (±) of the excluded tokens."""
    is_excluded_unchanged: bool = True
    """Whether the previous prompt contained the same excluded tokens."""


class ConversationCalibration:
    """Calibrates the estimates of one conversation with reported usage.

    Estimates and reports are for complete prompts, in tokens. All conversations with the same model
    share the factors.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str, client: str = "") -> None:
        self._shared = shared
        self._model, self._tokenizer, self._client = model, tokenizer, client
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int, float] | None = None
        # The estimated and reported tokens of the first prompt, if the hidden tokens have not been
        # determined yet.
        self._first: tuple[int, int] | None = None

    @property
    def factor(self) -> float:
        """Reported tokens per estimated token. Without samples, this is the factor of the model's
        generation, or 1 if unknown.
        """
        learned = self._shared.learned(self._key)
        start = self._shared.initial_factor(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """The number of usage reports for the model, including reports in earlier conversations."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """The error band (±%) that covers 95 of 100 recent predictions, or None before the first
        prediction.
        """
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    @property
    def band_factor(self) -> float:
        """The ratio of the next count's error band to its uncalibrated band."""
        learned = self._shared.learned(self._key)
        return learned.band_factor() if learned else 1.0

    @property
    def hidden(self) -> tuple[float, float] | None:
        """The tokens that the client adds to each prompt, and their margin of error (±); None if
        unknown.
        """
        hidden = self._shared.hidden(self._hidden_key)
        return (hidden.tokens, hidden.margin) if hidden else None

    @property
    def _hidden_key(self) -> str:
        return f"{self._key} @ {self._client}"

    def for_model(self, model: str, tokenizer: str) -> ConversationCalibration:
        """Return this conversation's calibration for a model.

        Returns `self` if the model is unchanged. Otherwise, the calibration has no reports yet.
        """
        if key_of(model, tokenizer) == self._key:
            return self
        return ConversationCalibration(self._shared, model, tokenizer, self._client)

    def copy(self) -> ConversationCalibration:
        """Return a draft of this calibration, with its own draft of the shared calibrations."""
        draft = copy(self)
        draft._shared = self._shared.copy(is_draft=True)
        return draft

    def update(self, sample: Sample) -> None:
        """Compare a prompt's estimate with the reported token count.

        Usually, the factor is updated with the growth since the last report. A first or shortened
        prompt updates the factor only if the hidden tokens are known. Otherwise, the hidden tokens
        would look like an error of the estimate.
        """
        estimated, reported, margin = sample.estimated, sample.reported, sample.margin
        real = reported - sample.excluded
        if estimated <= 0 or real <= 0:
            return
        is_certain = sample.excluded_margin <= MAX_EXCLUDED_MARGIN * estimated
        last, self._last = self._last, (estimated, reported, margin or 0.0)
        has_grown = last is not None and estimated >= last[0] and reported >= last[1]
        if last is not None and has_grown and sample.is_excluded_unchanged:
            growth = estimated - last[0]
            if growth >= MIN_SAMPLE_TOKENS:
                growth_margin = None if margin is None else max(0.0, margin - last[2])
                prompt = estimated, reported
                self._shared.update(
                    self._key, growth, reported - last[1], 1.0, growth_margin, prompt=prompt
                )
                self._find_hidden()
        elif is_certain and self.hidden is not None:
            self._use_full_prompt(estimated, real, reported, *self.hidden)
        if last is None and is_certain:
            self._first = estimated, real

    def _find_hidden(self) -> None:
        if self._first is not None:
            estimated, reported = self._first
            tokens = max(0.0, reported - self.factor * estimated)
            self._shared.update_hidden(self._hidden_key, round(tokens, 1))
            self._first = None

    def _use_full_prompt(
        self, estimated: int, real: int, reported: int, hidden: float, hidden_margin: float
    ) -> None:
        expected, visible = self.factor * estimated, real - hidden
        is_likely = expected / MAX_DEVIATION <= visible <= expected * MAX_DEVIATION
        is_certain = hidden_margin <= MAX_EXCLUDED_MARGIN * estimated
        if is_likely and is_certain and estimated >= MIN_SAMPLE_TOKENS:
            prompt = estimated, reported
            self._shared.update(self._key, estimated, visible, FULL_PROMPT_WEIGHT, prompt=prompt)

    def add_reply(self, estimated: int, output: int) -> None:
        """Compare a reply's estimate with the reported token count.

        The next prompt is expected to contain the reply.

        Args:
            estimated: The estimated token count of the reply's text, excluding message markup.
            output: The reported output tokens, excluding reasoning that is not part of the next
                prompt.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        last_estimated, reported, margin = self._last
        self._last = (last_estimated + estimated, reported + output, margin)
        if estimated >= MIN_SAMPLE_TOKENS:
            self._shared.update(self._key, estimated, output, 1.0)


FILE_NAME = "calibration.json"
_MAX_BYTES = 4 * 1024 * 1024


def load_calibrations(folder: Path) -> Calibrations:
    """Return the calibrations in the file, or empty calibrations if there is no file. Never raises.

    A damaged file is renamed.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = typed.decode(file.read(_MAX_BYTES), dict[str, Any])
    except msgspec.DecodeError:
        set_aside(path, "it contains no calibrations")
    except OSError:
        pass
    else:
        return Calibrations.from_dict(data)
    return Calibrations()


def save_calibrations(folder: Path, calibrations: Calibrations) -> bool:
    """Merge the calibrations with those that other processes have written, and write the result.

    Returns:
        Whether the file contained changes by other processes.

    Raises:
        OSError: The file cannot be written.
    """
    has_changed = calibrations.merge(load_calibrations(folder))
    make_folder(folder)
    data, version = msgspec.json.encode(calibrations.to_dict()), calibrations.version
    write(folder / FILE_NAME, msgspec.json.format(data, indent=1))
    calibrations.mark_written(version)
    return has_changed


class SyncResult(NamedTuple):
    calibrations: Calibrations | None
    """The file's content, or None if it has not changed."""
    stamp: FileStamp | None
    written_version: int | None = None
    """The version of the calibrations that was written, or None if the file was only read."""


class CalibrationStore:
    """Holds this process's calibrations until they are written to the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: Calibrations | None = None
        """The calibrations, or None if the file has not been read yet."""
        self.has_unsaved = False
        self._read_stamp: FileStamp | None = None

    @property
    def path(self) -> Path:
        return self._folder / FILE_NAME

    def loaded(self) -> Calibrations:
        """Return the calibrations. The first call reads the file and therefore blocks."""
        if self.known is None:
            self.finish_sync(_read_if_changed(self._folder, None))
        return self.known or load_calibrations(self._folder)

    def changed(self) -> None:
        """Mark the calibrations as changed. The next `begin_sync` writes them."""
        self.has_unsaved = True

    def begin_sync(self) -> Callable[[], SyncResult]:
        """Return a function that writes the calibrations if they have changed.

        Otherwise, the function reads the file. It raises OSError if the file cannot be written. In
        that case, call `changed` to retry later.
        """
        if self.known is None or not self.has_unsaved:
            return partial(_read_if_changed, self._folder, self._read_stamp)
        self.has_unsaved = False
        return partial(_write, self._folder, self.known.copy())

    def finish_sync(self, synced: SyncResult) -> bool:
        """Merge the result of the function that `begin_sync` returned.

        Returns:
            Whether another process has changed the calibrations.
        """
        self._read_stamp, theirs = synced.stamp, synced.calibrations
        if theirs is None:
            return False
        if self.known is None:
            self.known = theirs
            return True
        if synced.written_version is not None:
            self.known.mark_written(synced.written_version)
        return self.known.merge(theirs)

    def save(self) -> None:
        """Write the calibrations if they have changed. This function blocks.

        Raises:
            OSError: The file cannot be written. The next call will retry.
        """
        if not self.has_unsaved:
            return
        try:
            self.finish_sync(self.begin_sync()())
        except OSError:
            self.changed()
            raise


def _read_if_changed(folder: Path, seen: FileStamp | None) -> SyncResult:
    # Determined before reading, so that later writes are noticed.
    stamp = stamp_of(folder / FILE_NAME)
    if seen is not None and stamp in (None, seen):
        return SyncResult(None, seen)
    return SyncResult(load_calibrations(folder), stamp)


def _write(folder: Path, calibrations: Calibrations) -> SyncResult:
    version = calibrations.version
    with lock_state(folder):
        save_calibrations(folder, calibrations)
        return SyncResult(calibrations, stamp_of(folder / FILE_NAME), version)
