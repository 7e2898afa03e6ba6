"""From a model's name to the tokenizer that counts for it here. Nothing is loaded before it counts.

The user's own files come first, then the shipped engines, then the vocabularies of optional
packages, then the approximation for the model's generation, and last the estimator. What a
tokenizer really is, it says itself: a file that cannot be used is never passed over in silence,
but named in `problems`, and the stand-in's counts are labelled as what they are.
"""

from __future__ import annotations

import logging
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sidecar.counting import estimators, families, vocabularies
from sidecar.counting.approximations import TABLE
from sidecar.counting.estimators import Estimated
from sidecar.counting.heuristic import UNITS, heuristic_tokens
from sidecar.counting.names import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sidecar.counting.count import Method, Tokenizer
    from sidecar.text.cuts import Cuts


_log = logging.getLogger(__name__)


class TokenizerFile(Protocol):
    """One `[[tokenizer]]` entry of the user's settings."""

    @property
    def models(self) -> tuple[str, ...]:
        """Globs on model names."""

    @property
    def file(self) -> str:
        """A `tokenizer.json`, rank file, tekken file or GGUF; `~` is the home folder."""


class Approximate:
    """A vocabulary that cannot be run here, counted by another times a factor."""

    def __init__(self, name: str, basis: Tokenizer, factor: float) -> None:
        self.name = name
        self.basis = basis
        """Its counts add up over pieces; `scale` makes them this tokenizer's."""
        self.factor = factor
        self.method: Method = "estimate"
        self.error_percent: float | None = None

    @property
    def cuts(self) -> Cuts:
        """Where its basis may be cut."""
        return getattr(self.basis, "cuts", "none")

    def scale(self, tokens: int) -> int:
        """Tokens of this vocabulary for `tokens` of the basis; at least 1 for any."""
        return max(int(tokens * self.factor + 0.5), 1) if tokens else 0

    def count(self, text: str) -> int:
        """Tokens in `text`, rounded to the nearest."""
        return self.scale(self.basis.count(text))


class Heuristic(Approximate):
    """The default estimator: its weights are the basis, so that estimates of pieces add up too."""

    def __init__(self) -> None:
        super().__init__(estimators.Heuristic.name, estimators.HeuristicUnits(), 1 / UNITS)

    def scale(self, tokens: int) -> int:
        """Tokens for so many units; at least 1 for any."""
        return heuristic_tokens(tokens)


class Lazy:
    """A tokenizer that is loaded at its first count, with a stand-in where that fails.

    Until then it has the name it was asked by and may not be cut.
    """

    def __init__(
        self, name: str, load: Callable[[], Tokenizer], instead: Callable[[Exception], Tokenizer]
    ) -> None:
        self._name = name
        self._load = load
        self._instead = instead
        self._loaded: Tokenizer | None = None
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether a count would not have to load anything."""
        return self._loaded is not None

    @property
    def name(self) -> str:
        """The vocabulary's name; the stand-in's where it could not be loaded."""
        return self._loaded.name if self._loaded else self._name

    @property
    def method(self) -> Method:
        """`exact`, or how the stand-in counts."""
        return self._loaded.method if self._loaded else "exact"

    @property
    def error_percent(self) -> float | None:
        """0, or the stand-in's."""
        return self._loaded.error_percent if self._loaded else 0.0

    @property
    def cuts(self) -> Cuts:
        """Known when loaded; `none` until then, which is always safe."""
        return getattr(self._loaded, "cuts", "none")

    @property
    def inline_characters(self) -> int:
        """How many characters take about a millisecond; 0 until it is loaded."""
        return getattr(self._loaded, "inline_characters", 8_000) if self._loaded else 0

    def count(self, text: str) -> int:
        """Tokens in `text`; the first call loads the vocabulary (some tenths of a second)."""
        return self.load().count(text)

    def load(self) -> Tokenizer:
        """What really counts. Never raises."""
        if self._loaded is not None:
            return self._loaded
        with self._lock:
            if self._loaded is None:
                try:
                    tokenizer = self._load()
                    tokenizer.count("a")
                except Exception as error:  # a user's file may hold anything at all
                    tokenizer = self._instead(error)
                self._loaded = tokenizer
            return self._loaded


class Tokenizers:
    """Every model's tokenizer, each made once. Thread-safe; no method loads anything or raises."""

    def __init__(self, files: Iterable[TokenizerFile] = (), estimator: str = "default") -> None:
        """`files`: the user's, first match wins. `estimator`: for what nothing else knows."""
        self._files = tuple(files)
        self._estimator = estimator
        self._by_key: dict[str, Tokenizer] = {}
        self._by_model: dict[str, Tokenizer] = {}
        self._problems: dict[str, str] = {}
        self._lock = threading.RLock()

    @property
    def problems(self) -> list[str]:
        """Why named vocabularies are not used: one sentence each, without any text counted."""
        return list(self._problems.values())

    def for_model(self, model: str) -> Tokenizer:
        """The tokenizer that counts for `model`."""
        found = self._by_model.get(model)
        if found is None:
            found = self._choose(model)
            if len(self._by_model) > 4096:  # random names must not fill the memory
                self._by_model.clear()
            self._by_model[model] = found
        return found

    def is_users(self, model: str) -> bool:
        """Whether a file that the user named counts for `model`."""
        return any(_matches(entry, model) for entry in self._files)

    def describe(self, model: str) -> tuple[str, Method]:
        """What counts for `model`, and how, without loading it."""
        tokenizer = self.for_model(model)
        return tokenizer.name, tokenizer.method

    def by_name(self, name: str) -> Tokenizer:
        """A vocabulary or an estimator by name; the estimator for a name that is neither."""
        generation = name.partition("~")[0]
        key = vocabularies.counted_by(generation)[0]
        return self._make(generation if key != vocabularies.ESTIMATOR else name)

    def _choose(self, model: str) -> Tokenizer:
        entry = next((entry for entry in self._files if _matches(entry, model)), None)
        generation = families.tokenizer_for(model)
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

        return engine(name)

    def _from_file(self, written: str, generation: str) -> Tokenizer:
        file = Path(written).expanduser()
        return self._lazy(written, file, lambda: self._make(generation))

    def _lazy(self, name: str, file: Path, stand_in: Callable[[], Tokenizer]) -> Tokenizer:
        from sidecar.counting.vocabulary_files import load

        def instead(error: Exception) -> Tokenizer:
            other = stand_in()
            reason = f"it cannot be read ({type(error).__name__})"
            if isinstance(error, (OSError, ValueError)):
                reason = getattr(error, "strerror", None) or str(error)
            problem = f"tokenizer {name}: {reason}; {other.name} counts instead"
            self._problems[name] = problem
            _log.warning("%s", problem)
            return other

        return Lazy(name, lambda: load(file, name), instead)

    def _approximate(self, generation: str) -> Tokenizer:
        row = TABLE.get(generation)
        if row is None:
            return self._estimated(generation)
        basis = self._engine(row.basis)
        made = Approximate(vocabularies.approximate_name(generation), basis, row.factor)
        made.method, made.error_percent = row.method, row.error_percent
        return made

    def _estimated(self, name: str) -> Tokenizer:
        chosen = estimators.estimator(name) or estimators.estimator(self._estimator)
        if chosen is None or isinstance(chosen, estimators.Heuristic):
            return Heuristic()
        return Estimated(chosen)


def _matches(entry: TokenizerFile, model: str) -> bool:
    """Whether a glob means the model: as written, or without provider and file ending."""
    bare, lower = parse(model).bare, model.lower()
    globs = [glob.lower() for glob in entry.models]
    return any(fnmatchcase(lower, glob) or fnmatchcase(bare, glob) for glob in globs)
