"""From a model's name to the tokenizer that counts for it here. Nothing is loaded before it counts.

The user's own files come first, then the shipped engines, the vocabularies of optional packages,
and the approximation for the model's generation. Unknown models get the approximation of all
current vocabularies together, or the estimator that the user chose. A file that cannot be used is
reported in `problems`, and counts are labelled with the tokenizer that really made them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from sidecar.counting import estimators, vocabularies
from sidecar.counting.estimates import (
    BASE_VOCABULARY,
    Approximation,
    Bands,
    approximation_of,
    bands_of,
)
from sidecar.counting.estimates import UNITS as FITTED_UNITS
from sidecar.counting.estimators import UNITS, Estimator, EstimatorTokenizer, heuristic_tokens
from sidecar.counting.features import features
from sidecar.counting.tokenizer import INLINE_CHARACTERS, Tokenizer
from sidecar.models import families
from sidecar.models.names import matches

if TYPE_CHECKING:
    from sidecar.config.settings import TokenizerFile
    from sidecar.counting.calibration import Calibrations
    from sidecar.counting.count import Method
    from sidecar.counting.engines import Purpose

_log = logging.getLogger(__name__)


class LinearEstimator(Tokenizer):
    """A fitted linear estimate: the sum of weighted features, `FITTED_UNITS` to a token."""

    method: Method = "estimate"
    error_percent = None

    def __init__(self, name: str, base: Tokenizer, row: Approximation) -> None:
        """Use the weights of `row`; `base` counts the first term."""
        # Counts are remembered under this name, so it must change with the weights.
        self.name = f"{name} units {crc32(repr(row.weights).encode()):08x}"
        self._base, self._first, self._weights = base, row.weights[0], row.weights[1:]
        self.has_safe_cuts = base.has_safe_cuts
        self.inline_characters = min(base.inline_characters, INLINE_CHARACTERS)

    def is_slow(self, text: str) -> bool:
        """Return whether its base is slow."""
        return self._base.is_slow(text)

    def count(self, text: str) -> int:
        """Return the units of `text`; at least 1 for any."""
        return self._sum(self._base.count(text), text)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the units of each text."""
        counts = self._base.count_many(texts)
        return [self._sum(tokens, text) for tokens, text in zip(counts, texts, strict=True)]

    def _sum(self, tokens: int, text: str) -> int:
        units: int = self._first * tokens + sum(map(mul, self._weights, features(text)))
        return units


class ScaledTokenizer(Tokenizer):
    """Another tokenizer's count times a factor, for a vocabulary that cannot be run here."""

    method: Method = "estimate"

    def __init__(
        self, name: str, base: Tokenizer, factor: float, bands: Bands | None = None
    ) -> None:
        """Scale the counts of `base`, which add up over pieces.

        Args:
            name: The tokenizer's name.
            base: Counts the pieces.
            factor: Tokens per token of the base.
            bands: How far its counts are off; None if not measured.
        """
        self.name, self._base, self._factor, self._bands = name, base, factor, bands
        self.error_percent: float | None = 100 * bands.any if bands else None
        self.has_safe_cuts = base.has_safe_cuts
        self.inline_characters = base.inline_characters

    def band(self, tokens: int, sample: str = "") -> float | None:
        """Return half of the band for a text of this kind and size, in percent."""
        return self._bands.percent(tokens, sample) if self._bands else None

    @property
    def base(self) -> Tokenizer:
        """The tokenizer that counts pieces."""
        return self._base

    def scale(self, tokens: int) -> int:
        """Return tokens of this vocabulary for `tokens` of the base; at least 1 for any."""
        return max(int(tokens * self._factor + 0.5), 1) if tokens else 0

    def unscale(self, allowance: int) -> int:
        """Return the most tokens of the base that scale to no more than `allowance`."""
        tokens = int((max(0, allowance) + 0.5) / self._factor) + 1
        while tokens and self.scale(tokens) > allowance:
            tokens -= 1
        return tokens

    def count(self, text: str) -> int:
        """Count the tokens of `text`, rounded."""
        return self.scale(self._base.count(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, rounded."""
        return [self.scale(tokens) for tokens in self._base.count_many(texts)]


class HeuristicTokenizer(ScaledTokenizer):
    """The heuristic; its units are the base, so estimates of pieces add up too."""

    def __init__(self) -> None:
        name = estimators.Heuristic.name
        super().__init__(name, estimators.HeuristicUnits(), 1 / UNITS, bands_of(name))

    def scale(self, tokens: int) -> int:
        """Return tokens for so many units; at least 1 for any."""
        return heuristic_tokens(tokens)


class CalibratedTokenizer(ScaledTokenizer):
    """An estimate corrected by a learned factor. Its base counts the pieces."""

    def __init__(self, plain: Tokenizer, learned: float, spread: float = 1.0) -> None:
        """Correct `plain`; `spread` is the band's half-width, relative to the estimate's own."""
        super().__init__(plain.name, plain.base, max(1e-6, learned))
        self._plain, self._spread = plain, spread
        self.method = "calibrated"

    def band(self, tokens: int, sample: str = "") -> float | None:
        """Return the estimate's own band, as far as reports confirmed it."""
        band = self._plain.band(tokens, sample)
        return None if band is None else round(band * self._spread, 1)

    def scale(self, tokens: int) -> int:
        """Return tokens for `tokens` of the base; at least 1 for any."""
        return max(round(self._plain.scale(tokens) * self._factor), 1) if tokens else 0

    def unscale(self, allowance: int) -> int:
        """Return the most tokens of the base that scale to no more than `allowance`."""
        tokens = self._plain.unscale(int((allowance + 1) / self._factor) + 1)
        while tokens and self.scale(tokens) > allowance:
            tokens -= 1
        return tokens


def calibrate(plain: Tokenizer, learned: Calibrations, model: str, text: str) -> Tokenizer:
    """Return an estimator corrected by what was learned for the model's texts of this kind."""
    from sidecar.counting.calibration import document_key
    from sidecar.counting.kinds import kind_of

    key = document_key(model, plain.name, kind_of(text))
    known = learned.learned(key)
    if known is None:
        return plain
    return _corrected(plain, known.factor(learned.start(key)), known.band_factor())


@lru_cache(maxsize=4096)
def _corrected(plain: Tokenizer, factor: float, spread: float) -> CalibratedTokenizer:
    """Return one object per correction: counts are remembered by the tokenizer that made them."""
    return CalibratedTokenizer(plain, factor, spread)


class LazyTokenizer(Tokenizer):
    """A tokenizer that is loaded at its first count, with a fallback if that fails.

    Until then it has its requested name and its texts may not be cut; afterwards it takes over all
    properties of what was loaded.
    """

    inline_characters = 0

    def __init__(
        self, name: str, load: Callable[[], Tokenizer], instead: Callable[[Exception], Tokenizer]
    ) -> None:
        self.name = name
        self._load = load
        self._instead = instead
        self._loaded: Tokenizer | None = None
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether the vocabulary is loaded."""
        return self._loaded is not None

    @property
    def base(self) -> Tokenizer:
        """The tokenizer that counts pieces; itself until loaded."""
        return self._loaded.base if self._loaded else self

    def scale(self, tokens: int) -> int:
        """Return the number that the loaded tokenizer scales to."""
        return self._loaded.scale(tokens) if self._loaded else tokens

    def unscale(self, allowance: int) -> int:
        """Return the reverse of `scale`."""
        return self.load().unscale(allowance)

    def band(self, tokens: int, sample: str = "") -> float | None:
        """Return the loaded tokenizer's band."""
        return self._loaded.band(tokens, sample) if self._loaded else self.error_percent

    def is_slow(self, text: str) -> bool:
        """Return True until loaded."""
        return self._loaded is None or self._loaded.is_slow(text)

    def count(self, text: str) -> int:
        """Count the tokens of `text`; the first call loads the vocabulary."""
        return self.load().count(text)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        return self.load().count_many(texts)

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        """Return the bytes of the first tokens, where the loaded tokenizer can show them."""
        return self.load().first_bytes(text, tokens)

    def load(self) -> Tokenizer:
        """Return the loaded tokenizer, or the fallback. Never raises."""
        if self._loaded is not None:
            return self._loaded
        with self._lock:
            if self._loaded is None:
                try:
                    tokenizer = self._load()
                    tokenizer.count("a")
                except Exception as error:  # a user's file may contain anything
                    tokenizer = self._instead(error)
                self.name, self.method = tokenizer.name, tokenizer.method
                self.error_percent = tokenizer.error_percent
                self.has_safe_cuts = tokenizer.has_safe_cuts
                self.inline_characters = tokenizer.inline_characters
                self._loaded = tokenizer
            return self._loaded


class Tokenizers:
    """Every model's tokenizer, created once. Thread-safe; no method loads anything or raises."""

    def __init__(
        self,
        files: Iterable[TokenizerFile] = (),
        estimator: str = "default",
        purpose: Purpose = "interactive",
    ) -> None:
        """Set up the choices.

        Args:
            files: The user's vocabulary files; the first match wins.
            estimator: For unknown models; `default` is the approximation of all current
                vocabularies.
            purpose: Selects the shipped engines.
        """
        self._files = tuple(files)
        self._estimator = estimator
        self._purpose: Purpose = purpose
        self._by_key: dict[str, Tokenizer] = {}
        self._by_model: dict[str, Tokenizer] = {}
        self._problems: dict[str, str] = {}
        self._lock = threading.RLock()

    @property
    def problems(self) -> list[str]:
        """Why requested vocabularies are not used, in one sentence each."""
        why = estimators.unusable_reason(self._estimator)
        return [*self._problems.values(), *([why] if why else [])]

    def for_model(self, model: str) -> Tokenizer:
        """Return the tokenizer that counts for `model`."""
        found = self._by_model.get(model)
        if found is None:
            found = self._choose(model)
            if len(self._by_model) > 4096:  # bounded, for clients that send random names
                self._by_model.clear()
            self._by_model[model] = found
        return found

    def is_user_file(self, model: str) -> bool:
        """Return whether a file that the user named counts for `model`."""
        return any(matches(model, entry.models) for entry in self._files)

    def describe(self, model: str) -> tuple[str, Method]:
        """Return the tokenizer's name and method for `model`, without loading it."""
        tokenizer = self.for_model(model)
        return tokenizer.name, tokenizer.method

    def _choose(self, model: str) -> Tokenizer:
        entry = next((entry for entry in self._files if matches(model, entry.models)), None)
        generation = families.generation_of(model)
        if entry is None:
            return self._make(generation)
        return self._once(f"file {entry.file}", lambda: self._from_file(entry.file, generation))

    def _once(self, key: str, make: Callable[[], Tokenizer]) -> Tokenizer:
        with self._lock:
            if key not in self._by_key:
                self._by_key[key] = make()
            return self._by_key[key]

    def _make(self, generation: str) -> Tokenizer:
        return self._once(generation, lambda: self._standard(generation))

    def _standard(self, generation: str) -> Tokenizer:
        if generation in vocabularies.ENGINES:
            return self._engine(generation)
        file = vocabularies.packaged_file(generation)
        if file is not None:
            return self._lazy(generation, file, lambda: self._approximate(generation))
        return self._approximate(generation)

    def _engine(self, name: str) -> Tokenizer:
        from sidecar.counting.engines import engine

        return engine(name, self._purpose)

    def _from_file(self, written: str, generation: str) -> Tokenizer:
        file = Path(written).expanduser()
        return self._lazy(written, file, lambda: self._make(generation))

    def _lazy(self, name: str, file: Path, stand_in: Callable[[], Tokenizer]) -> Tokenizer:
        from sidecar.counting.vocabulary_files import load

        def instead(error: Exception) -> Tokenizer:
            other = stand_in()
            reason = f"it cannot be read ({type(error).__name__})"
            if isinstance(error, (OSError, ValueError)):
                reason = (isinstance(error, OSError) and error.strerror) or str(error)
            problem = f"tokenizer {name}: {reason}; {other.name} counts instead"
            self._problems[name] = problem
            _log.warning("%s", problem)
            return other

        return LazyTokenizer(name, lambda: load(file, name), instead)

    def _approximate(self, generation: str) -> Tokenizer:
        asked = self._chosen_estimator() if generation == families.UNKNOWN else None
        if asked is not None:
            is_ours = isinstance(asked, estimators.Heuristic)
            return HeuristicTokenizer() if is_ours else EstimatorTokenizer(asked)
        row = approximation_of(generation)
        if row is None:
            return HeuristicTokenizer()
        name = vocabularies.approximate_name(generation)
        base = LinearEstimator(name, self._engine(BASE_VOCABULARY), row)
        made = ScaledTokenizer(name, base, 1 / FITTED_UNITS, row.bands)
        made.method = row.method
        return made

    def _chosen_estimator(self) -> Estimator | None:
        """Return the estimator that was chosen instead of the default, or None."""
        chosen = estimators.estimator(self._estimator)
        if why := estimators.unusable_reason(self._estimator):
            _log.warning("%s", why)
        is_default = self._estimator == "default" and isinstance(chosen, estimators.Heuristic)
        return None if is_default else chosen
