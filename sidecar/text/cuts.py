r"""Finds safe split points, where the token counts of both parts add up to the text's count.

Byte-pair tokenizers split text with a regular expression, and merge bytes only inside each match.
None of these expressions looks behind. A cut is therefore exact if a match always ends at it, and
if ending the text there does not change earlier matches. Two kinds of cut meet this condition for
cl100k, o200k, Llama 3, Qwen and DeepSeek-V3. For gpt2, r50k and p50k, only word cuts meet it, so
text is not split for them.

* **word cut**: after a letter or an ASCII digit, and before a character that is not a letter,
  digit, mark or apostrophe (an apostrophe may begin a contraction that belongs to the word), nor
  one of `>_|]-:` (added tokens such as `<tool_call>` must stay whole). A cut between a letter and a
  following ASCII digit is also a word cut, which provides cuts in hexadecimal and base64 text.
* **line cut**: after a line feed, if the next line does not begin with `/` (o200k adds `/` to the
  punctuation before it) and has a visible character after its indent (in cl100k, trailing blanks
  are one match).

A line cut depends on the indent after it, so an edit after the cut can invalidate it. There is no
cut between `\r` and `\n`, or between the two surrogates of a pair.
"""

from __future__ import annotations

import re
import sys
from functools import cache

# Letters that are in the Unicode tables of every tokenizer: Latin, Greek, Cyrillic, Hebrew, Arabic,
# Devanagari, Thai, kana, Han, Hangul. Marks, symbols and unassigned code points between them are
# excluded. U+017F is also excluded, because it folds to s and the engines disagree about it.
LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0180-\u024f"
    "\u0391-\u03a1\u03a3-\u03f5\u03f7-\u03ff\u0400-\u0481\u048a-\u052f\u05d0-\u05ea\u0620-\u064a"
    "\u0904-\u0939\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u30fc-\u30fe"
    "\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
)
# Common CJK punctuation, and all ASCII characters except letters, digits, the apostrophe, and the
# characters that continue or end an added token such as `<tool_call>`, `<|end|>` or `[end-of-x]`.
BREAKS = (
    "\\x00-\\x26\\x28-\\x2c\\x2e\\x2f\\x3b-\\x3d\\x3f\\x40\\x5b\\x5c\\x5e\\x60\\x7b\\x7d-\\x7f"
    "\u3001\u3002\u300c\u300d\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)

# Python's \s matches more characters (U+001C to U+001F), so \S is safe for all tokenizers.
_WORD_CUT = rf"[{LETTERS}](?=[{BREAKS}0-9])|[0-9](?=[{BREAKS}])"
_LINE_START = re.compile(r"(?!/)[ \t]*+\S")


def next_cut(text: str, start: int, end: int = sys.maxsize) -> int | None:
    """Return the offset of the first safe split point after `start` and before `end`, or None."""
    match = _cut().search(text, start, end)
    return match.end() if match else None


def has_word_cut_between(before: str, after: str) -> bool:
    """Return whether text can be split at a word cut between two adjacent strings."""
    return _word_cut().match(before[-1:] + after[:1]) is not None


def has_cut_inside(token: str) -> bool:
    """Return whether there is a safe split point inside a token, in any text that contains it."""
    cut = next_cut(f"{token}x", 0)
    return cut is not None and cut < len(token)


@cache
def _cut() -> re.Pattern[str]:
    return re.compile(rf"{_WORD_CUT}|\n(?!/)(?=[ \t]*+\S)")


@cache
def _word_cut() -> re.Pattern[str]:
    """Return the pattern for cuts between words. Compiling it takes 4 ms."""
    return re.compile(_WORD_CUT)


def is_cut(before: str, after: str) -> bool:
    """Return whether there is a safe split point between two adjacent strings.

    Args:
        before: The text before the split point.
        after: The text after the split point, up to another safe split point or the end of the
            document. The whole indent of its first line must be included.
    """
    if has_word_cut_between(before, after):
        return True
    return before.endswith("\n") and _LINE_START.match(after) is not None
