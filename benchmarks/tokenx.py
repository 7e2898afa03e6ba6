"""A peer: the estimator of the npm package tokenx 2.2 (MIT), ported to Python."""

from __future__ import annotations

import math
import re

_MARKS = r"[.,!?;(){}\[\]<>:/\\|@#$%^&*+=`~_\"-]"
_CJK_MARKS = (
    "[\u3001-\u3003\u3008-\u3011\u3014-\u301f\u3030\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff65]"
)
_SPLIT = re.compile(rf"(\s+|{_MARKS}+|{_CJK_MARKS}+)")
_MARK = re.compile(_MARKS)
_CJK_MARK = re.compile(_CJK_MARKS)
_CJK = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\u3000-\u30ff\uff00-\uffef\u2e80-\u2eff\u31c0-\u31ef\u3200-\u33ff"
    "\uac00-\ud7af\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff]"
)
_STRUCTURED = re.compile(r"\n\s")
_LOWER = re.compile(r"[a-z]+\Z")
_LANGUAGES = (
    (re.compile("[äöüßẞ]", re.IGNORECASE), 3.0),
    (re.compile("[éèêëàâîïôûùüÿçœæáíóúñ]", re.IGNORECASE), 4.5),
    (re.compile("[ąćęłńóśźżěščřžýůúďťň]", re.IGNORECASE), 2.5),
    (re.compile("[\u0430-\u044f\u0451]", re.IGNORECASE), 6.0),
    (re.compile("[\u03ac-\u03ce]", re.IGNORECASE), 3.0),
)


def tokenx(text: str) -> int:
    """Return the same estimate as tokenx's `estimateTokenCount`, except for emoji."""
    total, previous, parts = 0, "", _SPLIT.split(text)
    index = 0
    while index < len(parts):
        segment = parts[index]
        following = parts[index + 1] if index + 1 < len(parts) else ""
        if _CJK_MARK.search(following) and _CJK.search(segment):
            index += 1
            segment += following
        if segment:
            total += _segment(segment, previous)
            previous = segment
        index += 1
    return total


def _segment(segment: str, previous: str) -> int:
    if segment.isspace():
        return _blank(segment, previous)
    if _CJK.search(segment):
        return _cjk(segment)
    if not segment.isascii():
        for pattern, characters in _LANGUAGES:
            if pattern.search(segment):
                return math.ceil(len(segment) / characters)
    if segment.isdecimal():
        return math.ceil(len(segment) / 3)
    if len(segment) <= 3 or (len(segment) <= 8 and _LOWER.match(segment)):
        return 1
    return math.ceil(len(segment) / (6 if _MARK.search(segment) else 7))


def _blank(segment: str, previous: str) -> int:
    if _STRUCTURED.search(segment):
        return 1
    if "\n" not in segment:
        return 0
    last = previous[-1:]
    return 0 if _MARK.match(last) or _CJK_MARK.match(last) else 1


def _cjk(segment: str) -> int:
    kana = sum("\u3040" <= c <= "\u30ff" for c in segment)
    hangul = sum("\uac00" <= c <= "\ud7af" or "\u1100" <= c <= "\u11ff" for c in segment)
    return math.ceil((len(segment) - kana - hangul) / 1.2 + kana / 1.35 + hangul / 1.65)
