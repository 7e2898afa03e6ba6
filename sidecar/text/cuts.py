r"""Safe split points: cuts at which the token counts of both sides add up to the count of the
whole.

Byte-pair tokenizers split text by a regular expression and merge inside each match. None of the
expressions looks behind, so a cut is exact if a match always ends there, and if the matches before
it stay the same when the text ends there. Two rules hold for cl100k, o200k, Llama-3, Qwen and
DeepSeek-V3. gpt2, r50k and p50k follow only the first, so their texts are not cut.

* **word cut**: after a letter or an ASCII digit, before a character that is neither letter, digit,
  mark nor apostrophe (an apostrophe may begin a contraction that belongs to the word); and between
  a letter and an ASCII digit, in this order, so that hexadecimal and base64 have cuts too;
* **line cut**: after a line feed, if the next line does not begin with `/` (o200k adds `/` to the
  punctuation before it) and has something visible after its indent (trailing blanks are one match
  in cl100k).

A line cut depends on the indent after it, so an edit behind a cut can invalidate it. Neither rule
cuts between `\\r` and `\\n`, or next to a surrogate on both sides.
"""

from __future__ import annotations

import re
import sys
from functools import cache

# Letters that have been assigned since long before any tokenizer's Unicode tables, without the
# marks, symbols and holes between them: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai,
# kana, Han, Hangul. U+017F (which folds to s) is left out: engines disagree about it.
LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0180-\u024f"
    "\u0391-\u03a1\u03a3-\u03f5\u03f7-\u03ff\u0400-\u0481\u048a-\u052f\u05d0-\u05ea\u0620-\u064a"
    "\u0904-\u0939\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u30fc-\u30fe"
    "\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
)
# ASCII but for letters, digits and the apostrophe; the usual CJK punctuation.
BREAKS = (
    "\\x00-\\x26\\x28-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7f"
    "\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)

# Python's \s is wider than the tokenizers' (U+001C to U+001F), so \S is the safe choice here.
_WORD_CUT = rf"[{LETTERS}](?=[{BREAKS}0-9])|[0-9](?=[{BREAKS}])"
_LINE_START = re.compile(r"(?!/)[ \t]*+\S")


def next_cut(text: str, start: int, end: int = sys.maxsize) -> int | None:
    """Return the offset of the first safe cut after `start` and before `end`, or None.

    Takes time in proportion to the distance.
    """
    match = _cut().search(text, start, end)
    return match.end() if match else None


def has_word_cut_between(before: str, after: str) -> bool:
    """Return whether the border between two texts is a word cut."""
    return _word_cut().match(before[-1:] + after[:1]) is not None


@cache
def _cut() -> re.Pattern[str]:
    return re.compile(rf"{_WORD_CUT}|\n(?!/)(?=[ \t]*+\S)")


@cache
def _word_cut() -> re.Pattern[str]:
    """Compiled lazily, because it takes 4 ms, too long for the first count."""
    return re.compile(_WORD_CUT)


def is_cut(before: str, after: str) -> bool:
    """Return whether the border between two texts is a safe cut.

    `after` must reach to a safe cut or the end of the document, because its indentation matters.
    """
    if has_word_cut_between(before, after):
        return True
    return before.endswith("\n") and _LINE_START.match(after) is not None
