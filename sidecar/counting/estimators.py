"""Estimates tokens without the model's vocabulary, by features and the kind of text.

Each byte of the UTF-8 text is mapped to a class. The first byte of a character determines its
script. A feature is the number of times that something occurs in the text: bytes of a class, a
sequence of neighboring classes, words, numbers, or text that is typical of a language or script. No
feature extends across a safe split point, so the features of the pieces add up to the features of
the whole text.

Approximations correct the counts of o200k_base for models whose vocabulary is not public. `python
-m benchmarks fit-estimates` fits them and writes `estimates.json`. For each tokenizer generation,
this file contains the weight of an o200k_base token, the weights of text features, and error bands
that contain 95 of 100 documents. The bands and the weights were fitted to different documents.

Estimators need no vocabulary. Three are built in: `heuristic` uses scripts, words and white space;
`whitespace` uses words and punctuation; `chars4` divides the number of characters by four. All of
them take milliseconds per megabyte and return 0 for an empty string. Plug-ins can add more
estimators. If a plug-in fails, the heuristic is used instead.

The heuristic adds up weights for runs of a class and for neighboring classes. The weights were
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
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

import msgspec

from sidecar import typed
from sidecar.counting.count_result import Method
from sidecar.counting.tokenizer_interface import SAMPLE_CHARACTERS, Tokenizer
from sidecar.models.names import facts
from sidecar.text.document import split

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation

_CLASSES = {
    **dict.fromkeys(b"abcdefghijklmnopqrstuvwxyz", "a"),
    **dict.fromkeys(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "A"),
    **dict.fromkeys(b"0123456789", "0"),
    0x20: " ",
    0x09: "t",
    **dict.fromkeys(b"\r\n", "n"),
    0xC2: "p",  # Latin-1 signs
    0xC3: "l",  # Latin-1 letters
    0xC4: "m",  # other Latin letters
    0xC5: "w",
    **dict.fromkeys(range(0xC6, 0xCC), "b"),
    **dict.fromkeys((0xCC, 0xCD), "k"),  # combining marks
    **dict.fromkeys((0xCE, 0xCF), "g"),  # Greek
    **dict.fromkeys((0xD0, 0xD1), "y"),  # Cyrillic
    **dict.fromkeys((0xD2, 0xD3), "z"),  # Cyrillic letters in non-Slavic languages
    **dict.fromkeys((0xD4, 0xD5), "e"),  # Armenian
    **dict.fromkeys((0xD6, 0xD7), "h"),  # Hebrew
    **dict.fromkeys((0xD8, 0xD9), "r"),  # Arabic
    **dict.fromkeys((0xDA, 0xDB), "u"),  # Arabic letters in other languages
    **dict.fromkeys(range(0xDC, 0xE0), "s"),  # Syriac, Thaana and others
    0xE0: "i",  # Indic scripts, Thai, Lao, Tibetan
    0xE1: "v",  # Vietnamese letters, Georgian, Ethiopic and others
    0xE2: "q",  # punctuation, arrows, boxes
    0xE3: "j",  # kana, CJK punctuation
    **dict.fromkeys(range(0xE4, 0xEA), "c"),  # Han
    **dict.fromkeys(range(0xEA, 0xEE), "o"),  # Hangul
    **dict.fromkeys((0xEE, 0xEF), "f"),  # full-width forms and others
    **dict.fromkeys(range(0xF0, 0xF5), "x"),  # emoji, rare Han
}
CLASSES_OF_BYTES = bytes(ord(_CLASSES.get(byte, ".")) for byte in range(256))
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_ASCII = tuple(name.encode() for name in "aA0 tn.")
_OTHERS = tuple(name.encode() for name in "plmwbkgyzehrusivqjcofx")
_CLASS_PAIRS = (
    *(b"aA", b"AA", b"0a", b"0A", b"  ", b"tt", b"nn", b"..", b".a", b".A", b" 0", b" .", b".n"),
    *(b"aaaaaaaa", b"000"),
)
"""Sequences of neighboring classes to count. They never extend across a safe split point."""
_SECOND = (
    # (name, class, first two bytes of the characters), for scripts that share their first byte
    ("slavic", b"y", tuple(bytes((0xD1, last)) for last in b"\x94\x96\x97\x98\x9a\x9e")),
    ("devanagari", b"i", (b"\xe0\xa4", b"\xe0\xa5")),
    ("bengali", b"i", (b"\xe0\xa6", b"\xe0\xa7")),
    ("gurmukhi", b"i", (b"\xe0\xa8", b"\xe0\xa9")),
    ("gujarati", b"i", (b"\xe0\xaa", b"\xe0\xab")),
    ("tamil", b"i", (b"\xe0\xae", b"\xe0\xaf")),
    ("telugu", b"i", (b"\xe0\xb0", b"\xe0\xb1")),
    ("kannada", b"i", (b"\xe0\xb2", b"\xe0\xb3")),
    ("sinhala", b"i", (b"\xe0\xb6", b"\xe0\xb7")),
    ("tibetan", b"i", (b"\xe0\xbc", b"\xe0\xbd", b"\xe0\xbe")),
    ("malayalam", b"i", (b"\xe0\xb4", b"\xe0\xb5")),
    ("thai", b"i", (b"\xe0\xb8", b"\xe0\xb9")),
    ("lao", b"i", (b"\xe0\xba", b"\xe0\xbb")),
    ("vietnamese", b"v", (b"\xe1\xba", b"\xe1\xbb")),
    ("myanmar", b"v", (b"\xe1\x80", b"\xe1\x81")),
    ("georgian", b"v", (b"\xe1\x82", b"\xe1\x83")),
    ("ethiopic", b"v", tuple(bytes((0xE1, second)) for second in range(0x88, 0x8E))),
    ("khmer", b"v", (b"\xe1\x9e", b"\xe1\x9f")),
    ("kana", b"j", (b"\xe3\x81", b"\xe3\x82", b"\xe3\x83")),
)
_LANGUAGES = (
    # (language, beginnings of common words), for languages without distinctive letters
    ("english", (b" the", b" of", b" and", b" to", b" is")),
    ("german", (b" und", b" der", b" die", b" den", b" zu")),
    ("dutch", (b" het", b" een", b" van")),
    ("french", (b" et", b" le", b" des", b" du")),
    ("spanish", (b" el", b" los", b" que", b"\xc3\xb3n")),
    ("italian", (b" di", b" il", b" che")),
    ("malay", (b" yang", b" dan", b" meng")),
)
_LETTERS = bytes(ord("a") if byte in b"aA" else ord("-") for byte in range(256))
_DIGITS = bytes(ord("0") if byte in b"0" else ord("-") for byte in range(256))

NAMES = (
    *(f"class {name.decode()}" for name in _ASCII),
    *(f"pair {name.decode()}" for name in _CLASS_PAIRS),
    *("words", "numbers"),
    *(name for name, _ in _LANGUAGES),
    *(f"class {name.decode()}" for name in _OTHERS),
    *(name for name, _, _ in _SECOND),
)
"""The feature names, in the order of the values from `features`."""
_NONE = (0,) * (len(_OTHERS) + len(_SECOND))


def classes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").translate(CLASSES_OF_BYTES, CONTINUATION_BYTES)


def features(text: str) -> tuple[int, ...]:
    """Return the text's features, in the order of `NAMES`. Takes 0.1 s per megabyte."""
    encoded = text.encode("utf-8", "surrogatepass")
    classes = encoded.translate(CLASSES_OF_BYTES, CONTINUATION_BYTES)
    first = (
        *map(classes.count, _ASCII),
        *map(classes.count, _CLASS_PAIRS),
        (b"-" + classes.translate(_LETTERS)).count(b"-a"),
        (b"-" + classes.translate(_DIGITS)).count(b"-0"),
        *(sum(map(encoded.count, starts)) for _, starts in _LANGUAGES),
    )
    if text.isascii():
        return first + _NONE
    others = tuple(map(classes.count, _OTHERS))
    second = (
        sum(map(encoded.count, starts)) if others[_OTHERS.index(of)] else 0
        for _, of, starts in _SECOND
    )
    return (*first, *others, *second)


Kind = Literal[
    "prose",
    "latin",
    "code",
    "json",
    "numbers",
    "log",
    "base64",
    "minified",
    "white",
    "cjk",
    "cyrillic",
    "arabic",
    "indic",
    "thai",
    "script",
]
"""A kind of text. `prose` is ASCII, and `latin` is prose with accented letters. `base64` includes
hexadecimal numbers. `white` is mostly blanks. `cjk` is Chinese, Japanese or Korean. `cyrillic`
includes Greek, and `arabic` includes Hebrew. `script` is any other script.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

_SCRIPT_KINDS: tuple[tuple[Kind, bytes, float], ...] = (
    # (kind, classes of its letters, minimum fraction of these letters in text of this kind)
    ("cjk", b"jco", 0.15),
    ("script", b"zesvk", 0.1),
    ("cyrillic", b"gy", 0.2),
    ("arabic", b"hru", 0.2),
)
_THAI = re.compile("[\u0e00-\u0e7f]")
_RARE = re.compile("[\u0b00-\u0b7f\u0d80-\u0dff\u0e80-\u0fff]")
_VIETNAMESE = re.compile("[\u1e00-\u1eff]")
_ENCODED = re.compile(
    r"\b(?=[A-Za-z+/=]*\d)[A-Za-z0-9+/=]{24,}|\b[0-9a-f]{8,}\b|\b(?:[0-9a-f]{4} ){3,}"
)
_STAMP = re.compile(r"\d\d?:\d\d:\d\d|\d{4}-\d\d-\d\d|\d+\.\d+\.\d+\.\d+")


def kind_of(text: str) -> Kind:
    """Return the text's kind, judging by its first characters. An empty string is `prose`."""
    return _kind_of_sample(text[:SAMPLE_CHARACTERS])


@lru_cache(maxsize=16)  # the calibration and the error band of a count ask one after the other
def _kind_of_sample(sample: str) -> Kind:
    classes = classes_of(sample)
    script = None if sample.isascii() else _kind_by_script(sample, classes)
    return script or _kind_by_signs(sample, classes)


def _kind_by_script(sample: str, classes: bytes) -> Kind | None:
    size = len(classes)
    if classes.count(b"i") > 0.2 * size:
        if len(_THAI.findall(sample)) > 0.2 * size:
            return "thai"
        return "script" if len(_RARE.findall(sample)) > 0.1 * size else "indic"
    counts = ((kind, sum(map(classes.count, of)), share) for kind, of, share in _SCRIPT_KINDS)
    kind = next((kind for kind, count, share in counts if count > share * size), None)
    if kind == "script" and classes.count(b"v") > 0.5 * sum(map(classes.count, b"zesvk")):
        is_latin = len(_VIETNAMESE.findall(sample)) > 0.5 * classes.count(b"v")
        return "latin" if is_latin else kind
    return kind


def _kind_by_signs(sample: str, classes: bytes) -> Kind:
    size, lines = max(1, len(classes)), classes.count(b"n") + 1
    blanks = sum(map(classes.count, b" tn"))
    if blanks > 0.6 * size:
        return "white"
    digits = classes.count(b"0")
    if digits > 0.06 * size and sum(map(len, _ENCODED.findall(sample))) > 0.4 * size:
        return "base64"
    if sample.count('":') + sample.count("':") > size / 60:
        return "json"
    if digits > 0.1 * size and len(_STAMP.findall(sample)) > max(1, 0.6 * lines):
        return "log"
    if digits > 0.22 * size:
        return "numbers"
    signs = classes.count(b".") - sum(map(sample.count, ".!?-"))
    if signs <= size / 14:
        accented = sum(map(classes.count, b"lmwb"))
        return "latin" if accented > 0.012 * size else "prose"
    return "minified" if size > 300 * lines and blanks < 0.14 * size else "code"


WEIGHT_UNITS = 10_000
"""Number of weight units per token."""
BASE_VOCABULARY = "o200k_base"


class Bands(msgspec.Struct, frozen=True):
    """Error bands by kind of text, as fractions of the estimate.

    Attributes:
        any: The band for text of an unknown kind.
        short: The additional error for text of one token. For longer text, it is divided by the
            square root of the token count.
        kinds: The band for each `Kind`.
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
