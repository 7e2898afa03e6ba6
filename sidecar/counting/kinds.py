"""Kinds of text, each with its own error band."""

from __future__ import annotations

import re
from typing import Literal, get_args

from sidecar.counting.features import classes_of
from sidecar.counting.tokenizer import SAMPLE_CHARACTERS

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
"""`latin`: prose with letters beyond ASCII. `base64`: also hexadecimal and similar. `white`: mostly
blanks. `cjk`: Chinese, Japanese, Korean. `cyrillic`: and Greek. `arabic`: and Hebrew. `script`:
any other."""
KINDS: tuple[Kind, ...] = get_args(Kind)

_SCRIPTS: tuple[tuple[Kind, bytes, float], ...] = (
    # (kind, classes of letters, smallest share of such letters in a text of this kind)
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
    """Return the kind of a text, judged by its first characters. An empty text is `prose`."""
    sample = text[:SAMPLE_CHARACTERS]
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
