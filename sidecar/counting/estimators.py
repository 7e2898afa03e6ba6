"""Estimates tokens without the model's vocabulary.

Approximations correct the counts of o200k_base for models whose vocabulary is not public. `python
-m benchmarks fit-estimates` fits them and writes `estimates.json`. For each tokenizer generation,
this file contains the weight of an o200k_base token, the weights of text features, and error bands
that contain 95 of 100 documents. The bands and the weights were fitted to different documents.

Estimators need no vocabulary. Three are built in: `heuristic` uses scripts, words and white space;
`whitespace` uses words and punctuation; `chars4` divides the number of characters by four. All of
them take milliseconds per megabyte and return 0 for an empty string. Plug-ins can add more
estimators. If a plug-in fails, the heuristic is used instead.

The heuristic maps each byte of the UTF-8 text to a class, and adds up weights for runs of a class
and for neighboring classes. The first byte of a character determines its script. The weights were
fitted to o200k_base with source code in seven languages, Markdown, JSON, logs, prose in twenty
languages, base64 and white space. The estimates are about 3 % too high on purpose, because an
estimate that is too low does more harm. If text is split at a safe split point, the estimates of
the two parts add up to the estimate of the whole text.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from sidecar import typed
from sidecar.counting.text_features import CLASSES_OF_BYTES, CONTINUATION_BYTES, kind_of
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.models.names import facts
from sidecar.text.pieces import split

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.counting.count_result import Method

WEIGHT_UNITS = 10_000
"""Number of weight units per token."""
BASE_VOCABULARY = "o200k_base"


class Bands(msgspec.Struct, frozen=True):
    """Error bands by kind of text, as fractions of the estimate.

    Attributes:
        any: The band for text of an unknown kind.
        short: The additional error for text of one token. For longer text, it is divided by the
            square root of the token count.
        kinds: The band for each `sidecar.counting.text_features.Kind`.
    """

    any: float
    short: float
    kinds: dict[str, float]

    def percent(self, tokens: int, sample: str = "") -> float:
        """Return the 95 % error band of a count, in percent.

        Args:
            tokens: The count.
            sample: The beginning of the text, which determines its kind.
        """
        band = self.kinds.get(kind_of(sample), self.any) if sample else self.any
        return round(100 * math.hypot(band, self.short / math.sqrt(max(1, tokens))), 1)


class Approximation(msgspec.Struct, frozen=True):
    """The approximation for one tokenizer generation.

    Attributes:
        weights: The weight of a token of the base vocabulary, followed by the weight of each
            feature. `WEIGHT_UNITS` units make one token.
        bands: The error bands.
        own: Whether the weights were fitted to the generation's own vocabulary, not to similar
            vocabularies.
        method: `calibrated` if the weights were fitted to counts from ctok, which reproduces the
            counts of the vendor's server.
    """

    weights: tuple[int, ...]
    bands: Bands
    own: bool = True
    method: Literal["calibrated", "estimate"] = "estimate"


class _Table(msgspec.Struct, frozen=True):
    generations: dict[str, Approximation]
    estimators: dict[str, Bands]
    """Each estimator's error bands, keyed by estimator name."""


@cache
def _band_table() -> _Table:
    path = Path(__file__).with_name("estimates.json")
    return typed.decode(path.read_bytes(), _Table)


def approximation_of(generation: str) -> Approximation | None:
    name = facts().approximated_as.get(generation, generation)
    return _band_table().generations.get(name)


def generations() -> list[str]:
    """Return the names of the tokenizer generations that have an approximation."""
    return list(_band_table().generations)


def bands_of(estimator: str) -> Bands | None:
    """Return the error bands of a built-in estimator, or None for a plug-in."""
    return _band_table().estimators.get(estimator)


_SLICE = 65_536
"""Number of characters that the heuristic processes per step. A step takes 5 ms."""

_TABLE = CLASSES_OF_BYTES.translate(bytes.maketrans(b"wbzeus", b"mmyhrr"))
"""Maps each byte to its class in the heuristic. Some scripts share a class."""
_SCRIPTS = {
    # (weight of each character, weight of each run of characters), in thousandths of a token
    b"l": (270, 0),
    b"k": (1000, 0),
    b"g": (300, 500),
    b"y": (190, 700),
    b"h": (400, 0),
    b"r": (340, 0),
    b"i": (370, 0),
    b"v": (100, 0),
    b"p": (500, 1500),
    b"q": (400, 1500),
    b"j": (640, 0),
    b"c": (750, 0),
    b"o": (450, 700),
    b"f": (900, 0),
    b"x": (1260, 0),
}
# Each pattern matches a run of characters. The function next to it returns the run's weight in
# thousandths of a token, given the run's length.
_RUNS: tuple[tuple[re.Pattern[bytes], Callable[[int], int]], ...] = (
    (
        re.compile(b"A?a+"),
        lambda n: 880 + 260 * (n > 4) + 190 * (n > 7) - 870 * (n > 10) + 620 * max(0, n - 10),
    ),
    (
        re.compile(b"A+(?!a)"),
        lambda n: 1680 - 1220 * (n > 1) + 1180 * (n > 3) + 300 * max(0, n - 4),
    ),
    (re.compile(b"0+"), lambda n: 1030 * (1 + (n > 3) + (n > 6)) + 343 * max(0, n - 9)),
    (
        re.compile(rb"\.+"),
        lambda n: 900 + 850 * (n > 1) - 490 * (n > 2) + 280 * max(0, n - 3),
    ),
    (re.compile(b"[ t]{2,}"), lambda n: 760 + 15 * (n - 2)),
    (re.compile(b"(?<![ t])t(?![ t])"), lambda _: 760),
    (re.compile(b"n+"), lambda n: 1800 + 30 * (n - 1)),
)
_PAIRS = (
    # (neighboring classes, weight in thousandths of a token)
    (b".a", -390),  # a punctuation mark and the word after it share a token
    (b".A", -390),
    (b".n", -1750),  # a punctuation mark and the line end after it share a token
    (b"0a", 350),
    (b"0A", 350),
    (b" 0", 1360),  # a space before a number is a separate token
    (b"am", 1450),  # a letter from Latin Extended interrupts the word
    (b"Am", 1450),
)


HEURISTIC_UNITS = 1020
"""Number of the heuristic's weight units per token. It is above 1000 because the weights, which are
in thousandths of a token, are 2 % too high.
"""


def heuristic_units(text: str) -> int:
    """Return the sum of the heuristic's weights for the text. Takes 75 ms per megabyte."""
    if len(text) <= _SLICE:
        return _units_of_slice(text)
    return sum(
        [_units_of_slice(slice_) for part in split(text, _SLICE) for slice_ in _cut_anywhere(part)]
    )


def heuristic_tokens(units: int) -> int:
    """Convert heuristic units to tokens. The result is rounded, but is 0 only for an empty text."""
    return max(1, (units + HEURISTIC_UNITS // 2) // HEURISTIC_UNITS) if units else 0


def _cut_anywhere(part: str) -> list[str]:
    if len(part) <= 2 * _SLICE:
        return [part]
    return [part[start : start + _SLICE] for start in range(0, len(part), _SLICE)]


def _units_of_slice(text: str) -> int:
    classes = text.encode("utf-8", "surrogatepass").translate(_TABLE, CONTINUATION_BYTES)
    # Each character adds a thousandth of a token, so only an empty string has 0 tokens.
    units = len(classes)
    for pattern, weight in _RUNS:
        lengths = Counter(map(len, pattern.findall(classes)))
        units += sum(weight(length) * count for length, count in lengths.items())
    units += sum(weight * classes.count(pair) for pair, weight in _PAIRS)
    return units if text.isascii() else units + _script_units(classes)


def _script_units(classes: bytes) -> int:
    units = 0
    for script, (character, run) in _SCRIPTS.items():
        if count := classes.count(script):
            units += character * count + (run and run * len(re.findall(script + b"+", classes)))
    return units


ENTRY_POINTS = "token_sidecar.estimators"
"""The entry-point group for plug-ins. Each entry is an `Estimator`, or a callable that
returns one.
"""


class Estimator(Protocol):
    """An estimator plug-in. It must accept any `str`, and return 0 for an empty string."""

    @property
    def name(self) -> str:
        """The plug-in's name, as shown with its counts."""

    def estimate(self, text: str) -> int: ...


@runtime_checkable
class TruncatingEstimator(Estimator, Protocol):
    """An estimator plug-in that can also shorten text."""

    def truncate(self, text: str, max_tokens: int, mode: Truncation) -> str:
        """Return the beginning ("start"), the end ("end") or both ends ("middle") of the text.

        The result is ignored if the plug-in's count for it is above `max_tokens`.
        """


class Heuristic:
    """Estimates tokens from scripts, words, numbers and white space."""

    name = "heuristic"

    def estimate(self, text: str) -> int:
        return heuristic_tokens(heuristic_units(text))


_MARKS = frozenset(""".,;!?'"-(){}[]""")
_CODE_MARKS = frozenset("{}[];=<>")


class Whitespace:
    """Counts one token per word, and half a token per punctuation mark or code mark.

    A mark of both kinds, such as a brace, counts as a whole token. The result is at least a quarter
    of the number of characters.
    """

    name = "whitespace"

    def estimate(self, text: str) -> int:
        """Return ceil(max(words + marks / 2 + code marks / 2, characters / 4))."""
        words = len(text.split())
        marks = sum(map(text.count, _MARKS)) + sum(map(text.count, _CODE_MARKS))
        return max(-(-(2 * words + marks) // 2), -(-len(text) // 4))


class Chars4:
    """Returns a quarter of the number of characters, rounded down."""

    name = "chars4"

    def estimate(self, text: str) -> int:
        return len(text) // 4


_log = logging.getLogger(__name__)
_lock = threading.Lock()
_registry: dict[str, Estimator] = {
    "default": Heuristic(),
    **{estimator.name: estimator for estimator in (Heuristic(), Whitespace(), Chars4())},
}
BUILT_IN = frozenset(_registry)
_unusable: dict[str, str] = {}
"""Why plug-ins cannot be used, keyed by plug-in name."""
_plugins_read = False


def register(estimator: Estimator, name: str | None = None) -> None:
    """Add an estimator. It replaces any estimator of the same name."""
    with _lock:
        _registry[name or estimator.name] = estimator


def names() -> list[str]:
    """Return the names of all estimators, including plug-ins."""
    _read_plugins()
    return sorted(_registry)


def unusable_plugins() -> dict[str, str]:
    """Return the reasons why plug-ins cannot be used, keyed by plug-in name."""
    _read_plugins()
    return dict(_unusable)


def unusable_reason(name: str) -> str | None:
    """Return why the estimator of this name cannot be used, or None if it can."""
    if find_estimator(name) is not None and name not in _unusable:
        return None
    reason = (
        _unusable.get(name) or f"no estimator has this name; choose one of {', '.join(names())}"
    )
    return f"estimator {name}: {reason}; using the default instead"


def find_estimator(name: str) -> Estimator | None:
    """Return the estimator with this name, or None if there is none."""
    if name not in _registry:
        _read_plugins()
    return _registry.get(name)


def _read_plugins() -> None:
    global _plugins_read
    if _plugins_read:
        return
    _plugins_read = True
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        if point.name in BUILT_IN:
            _unusable[f"{point.name} (plug-in)"] = "the name is reserved for a built-in estimator"
            continue
        try:
            loaded = point.load()
            is_instance = hasattr(loaded, "estimate") and not isinstance(loaded, type)
            plugin: Estimator = loaded if is_instance else loaded()
            if (problem := _problem_of(plugin)) is None:
                register(plugin, point.name)
            else:
                _unusable[point.name] = f"the plug-in cannot be used: {problem}"
        except Exception as error:  # plug-ins may raise anything
            _unusable[point.name] = f"the plug-in cannot be used ({type(error).__name__})"


def _problem_of(plugin: Estimator) -> str | None:
    if not isinstance(getattr(plugin, "name", None), str):
        return "it has no name"
    if plugin.estimate("") != 0:
        return "it does not return 0 for empty text"
    int(plugin.estimate("Plug-ins must estimate any text.\n"))
    return None


class HeuristicUnits(Tokenizer):
    """Counts text in the heuristic's units. A document's count is the sum over its pieces."""

    name = "heuristic units"
    method: Method = "estimate"
    error_percent = None
    has_safe_cuts = True

    def count(self, text: str) -> int:
        return heuristic_units(text)


class EstimatorTokenizer(Tokenizer):
    """Counts with an estimator. Text is not split, because estimates of parts might not add up."""

    method: Method = "estimate"

    def __init__(self, estimator: Estimator) -> None:
        self.name = estimator.name
        self.estimator = estimator
        self._bands = bands_of(estimator.name)
        coarsest = _band_table().estimators[Chars4.name]
        self.error_percent: float = 100 * (self._bands or coarsest).any

    def band(self, tokens: int, sample: str = "") -> float:
        """Return the error band for text of this kind and size, in percent.

        The error of a plug-in is unknown, so its band is wide enough to contain the heuristic's
        band for the sample. Without a sample, it is the band of `chars4`, the coarsest estimator.
        """
        if self._bands is not None:
            return self._bands.percent(tokens, sample)
        if not sample:
            return self.error_percent
        ratio = Heuristic().estimate(sample) / max(1, self.count(sample))
        bands = _band_table().estimators[Heuristic.name]
        share = bands.percent(max(1, round(tokens * ratio)), sample) / 100
        return round(100 * max(ratio * (1 + share) - 1, 1 - ratio * (1 - share)), 1)

    def count(self, text: str) -> int:
        """Count the text's tokens. If a plug-in raises an exception, the heuristic is used
        instead.
        """
        try:
            return max(0, int(self.estimator.estimate(text)))
        except Exception as error:
            if self.name not in _unusable:
                _log.warning("estimator %s failed; using the heuristic instead", self.name)
            _unusable[self.name] = f"the plug-in failed ({type(error).__name__})"
            return _registry["default"].estimate(text)

    def truncate(self, text: str, max_tokens: int, mode: Truncation) -> str | None:
        """Return the text as shortened by the plug-in, or None if the plug-in fails or the result
        is too long.
        """
        if not isinstance(self.estimator, TruncatingEstimator):
            return None
        try:
            kept: object = self.estimator.truncate(text, max_tokens, mode)
        except Exception as error:  # plug-ins may raise anything
            _unusable[self.name] = f"the plug-in failed to shorten text ({type(error).__name__})"
            return None
        return kept if isinstance(kept, str) and self.count(kept) <= max_tokens else None
