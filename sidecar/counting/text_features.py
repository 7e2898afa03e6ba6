"""Determines the kind of text, and computes the features used to estimate its tokens.

Each byte of the UTF-8 text is mapped to a class. The first byte of a character determines its
script. A feature is the number of times that something occurs in the text: bytes of a class, a
sequence of neighboring classes, words, numbers, or text that is typical of a language or script. No
feature extends across a safe split point, so the features of the pieces add up to the features of
the whole text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

from sidecar.counting.tokenizer_interface import SAMPLE_CHARACTERS

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
_PAIRS = (
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
    *(f"pair {name.decode()}" for name in _PAIRS),
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
        *map(classes.count, _PAIRS),
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

_SCRIPTS: tuple[tuple[Kind, bytes, float], ...] = (
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
    counts = ((kind, sum(map(classes.count, of)), share) for kind, of, share in _SCRIPTS)
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
