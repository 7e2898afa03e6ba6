"""Cuts that leave characters whole, as people see them: a base with all that combines with it."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
_LONGEST = 64
"""Code points that one character may have; beyond, it is torn (a stack of marks, no writing)."""


def whole_characters(text: str, offset: int, *, forward: bool = False) -> int:
    """The nearest offset at or before `offset` (or after it) that splits no character.

    Kept together: surrogate pairs, marks, joined and modified emoji, flags, CR and LF.
    """
    if offset <= 0 or offset >= len(text):
        return max(0, min(offset, len(text)))
    step = 1 if forward else -1
    stop = min(len(text), offset + _LONGEST) if forward else max(0, offset - _LONGEST)
    cut = offset
    while cut != stop and not _splits_nothing(text, cut):
        cut += step
    if cut != stop or cut in (0, len(text)):
        return cut
    return _whole_code_point(text, offset, step)


def _whole_code_point(text: str, offset: int, step: int) -> int:
    return offset + step if _is_pair(text, offset) else offset


def _is_pair(text: str, cut: int) -> bool:
    return "\ud800" <= text[cut - 1] <= "\udbff" and "\udc00" <= text[cut] <= "\udfff"


def _splits_nothing(text: str, cut: int) -> bool:
    before, after = text[cut - 1], text[cut]
    if before.isascii() and after.isascii():
        return before != "\r" or after != "\n"
    if before == _JOINER or _is_pair(text, cut) or _extends(after):
        return False
    return not (_is_flag(before) and _is_flag(after) and _flags_before(text, cut) % 2)


def _extends(character: str) -> bool:
    """Marks, joiners, variation selectors, skin tones, tags, and the vowels and ends of jamo."""
    if unicodedata.category(character) in ("Mn", "Me", "Mc") or character in (_JOINER, "\u200c"):
        return True
    return (
        "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
        or "\u1160" <= character <= "\u11ff"
    )


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flags_before(text: str, cut: int) -> int:
    count = 0
    while count < cut and _is_flag(text[cut - 1 - count]):
        count += 1
    return count
