"""Splits text into pieces at safe split points, so that an edit changes only few of them.

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

`PieceList` keeps running sums over a document's pieces, and uses the sums to find offsets and
lines. An edit invalidates only the sums after it, and a look-up computes only the sums that it
needs. Editing one place repeatedly is therefore as fast in a long document as in a short one.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from sidecar.text.positions import Encoding, units

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


PIECE_CHARACTERS = 2_048
"""Approximate number of characters in a piece. Counting a piece takes 0.1 ms."""
MAX_SEARCH = 65_536
"""Maximum number of characters to search for a safe split point. A longer search would block other
threads.
"""

_LINE_END = re.compile(r"\r\n?|\n")


class Piece:
    """The text between two safe split points, with its token count for each tokenizer name.

    The text never changes, so any thread may add a count at any time.
    """

    __slots__ = ("_line_starts", "counts", "line_ends", "text")

    def __init__(self, text: str, counts: dict[str, int] | None = None) -> None:
        self.text = text
        self.counts: dict[str, int] = {} if counts is None else counts
        self.line_ends = _count_line_ends(text)
        self._line_starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:  # omits the text, because logs must not contain it
        return f"Piece(characters={len(self.text)}, line_ends={self.line_ends})"

    @property
    def line_starts(self) -> list[int]:
        """The offset after each line ending, in order."""
        if self._line_starts is None:
            self._line_starts = [match.end() for match in _LINE_END.finditer(self.text)]
        return self._line_starts

    def line_end(self, start: int) -> tuple[int, bool]:
        """Return the end of the line that contains `start`.

        Returns:
            The offset of the line's end, and whether the line ends in this piece.
        """
        starts = self.line_starts
        following = bisect_right(starts, start)
        if following == len(starts):
            return len(self.text), False
        after = starts[following]
        is_crlf = after - 2 >= start and self.text.startswith("\r\n", after - 2)
        return after - (2 if is_crlf else 1), True


class SplitText:
    """Text that consists of pieces. The pieces are joined when the whole text is first used."""

    _text: str | None = None
    _whole: Piece | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = "".join([piece.text for piece in self.pieces])
        return self._text

    @property
    def whole(self) -> Piece:
        """The whole text as one piece, for tokenizers without safe split points."""
        if self._whole is None:
            self._whole = Piece(self.text)
        return self._whole


def _count_line_ends(text: str) -> int:
    if "\r" not in text:
        return text.count("\n")
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def split(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Split text at safe split points into parts of at least `characters` characters.

    At least one part is yielded. The last part may be shorter. If there is no safe split point
    within `MAX_SEARCH` characters, the rest of the text is one part.
    """
    start = 0
    while len(text) - start > characters:
        cut = next_cut(text, start + characters - 1, start + characters + MAX_SEARCH)
        if cut is None:
            break
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def split_pieces(text: str, characters: int = PIECE_CHARACTERS) -> list[Piece]:
    """Split text into one or more pieces. Takes 20 ms for 10 MB."""
    return [Piece(part) for part in split(text, characters)]


def merge_counted(pieces: list[Piece], characters: int = PIECE_CHARACTERS) -> list[Piece]:
    """Join small neighboring pieces into larger ones, and add up their token counts.

    Joined pieces have at most `characters` characters. Two pieces are joined only if they have
    been counted with the same tokenizer, or if neither has been counted.
    """
    merged: list[Piece] = []
    for piece in pieces:
        joined = _join_counted(merged[-1], piece, characters) if merged else None
        if joined is None:
            merged.append(piece)
        else:
            merged[-1] = joined
    return merged


def _join_counted(left: Piece, right: Piece, characters: int) -> Piece | None:
    if len(left) + len(right) > characters:
        return None
    right_counts = right.counts.copy()  # copied because another thread may add counts
    counts = {
        name: tokens + right_counts[name]
        for name, tokens in left.counts.copy().items()
        if name in right_counts
    }
    if not counts and (left.counts or right.counts):
        return None
    return Piece(left.text + right.text, counts)


_STEP = 256
"""Number of pieces by which the running sums are extended at a time."""


class PiecePlace(NamedTuple):
    """A piece and its position in a document."""

    piece_index: int
    piece: Piece
    offset: int
    """The number of characters before the piece."""
    line: int
    """The number of line endings before the piece."""


class TokenTally:
    """Adds up the pieces' token counts for one tokenizer, and keeps track of uncounted pieces."""

    __slots__ = ("_name", "_total", "_uncounted")

    def __init__(self, name: str, pieces: Iterable[Piece]) -> None:
        self._name = name
        self._total = 0
        self._uncounted = dict.fromkeys(pieces)

    def replace(self, old: Iterable[Piece], new: Iterable[Piece]) -> None:
        for piece in old:
            if piece in self._uncounted:
                del self._uncounted[piece]
            else:
                self._total -= piece.counts[self._name]
        self._uncounted.update(dict.fromkeys(new))

    def uncounted(self) -> Collection[Piece]:
        """Add newly counted pieces to the total, and return the pieces that are still uncounted."""
        name, uncounted = self._name, self._uncounted
        for piece in [piece for piece in uncounted if name in piece.counts]:
            self._total += piece.counts[name]
            del uncounted[piece]
        return uncounted.keys()

    def total(self) -> int | None:
        """Return the total token count, or None if any piece is uncounted."""
        return None if self.uncounted() else self._total


class _RunningSums:
    """Running sums of one number per piece, such as the piece's length.

    Sum k is the sum of the first k numbers.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = list(numbers)
        self._sums = [0]
        self.total = sum(self._numbers)

    def replace(self, first: int, end: int, new: list[int]) -> None:
        self.total += sum(new) - sum(self._numbers[first:end])
        self._numbers[first:end] = new
        del self._sums[first + 1 :]

    def sum_before(self, index: int) -> int:
        while len(self._sums) <= index:
            self._extend_sums()
        return self._sums[index]

    def find_sum(self, amount: int) -> int:
        """Return the smallest k for which sum k is at least `amount`.

        Returns the number of pieces plus one if the total is less than `amount`.
        """
        while self._sums[-1] < amount and len(self._sums) <= len(self._numbers):
            self._extend_sums()
        return bisect_left(self._sums, amount)

    def find_larger_sum(self, amount: int) -> int:
        """Return the smallest k for which sum k is greater than `amount`.

        Returns the number of pieces plus one if the total is not greater than `amount`.
        """
        while self._sums[-1] <= amount and len(self._sums) <= len(self._numbers):
            self._extend_sums()
        return bisect_right(self._sums, amount)

    def _extend_sums(self) -> None:
        known = len(self._sums) - 1
        following = self._numbers[known : known + _STEP]
        self._sums[known:] = accumulate(following, initial=self._sums[known])


class PieceList:
    """The pieces of a document (one or more), and its length, lines and token counts."""

    def __init__(self, pieces: Sequence[Piece], encoding: Encoding) -> None:
        self._pieces, self._encoding = list(pieces), encoding
        self._tallies: dict[str, TokenTally] = {}
        self._offsets = _RunningSums([len(piece.text) for piece in pieces])
        self._lines = _RunningSums([piece.line_ends for piece in pieces])
        self._units = _RunningSums([units(piece.text, encoding) for piece in pieces])

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def characters(self) -> int:
        return self._offsets.total

    @property
    def line_ends(self) -> int:
        return self._lines.total

    def snapshot(self) -> tuple[Piece, ...]:
        return tuple(self._pieces)

    def tally(self, name: str) -> TokenTally:
        if name not in self._tallies:
            self._tallies[name] = TokenTally(name, self._pieces)
        return self._tallies[name]

    def place_at(self, index: int) -> PiecePlace:
        return PiecePlace(
            index,
            self._pieces[index],
            self._offsets.sum_before(index),
            self._lines.sum_before(index),
        )

    def at_offset(self, offset: int) -> PiecePlace:
        """Return the piece that contains the character after `offset`, or the last piece."""
        return self.place_at(min(self._offsets.find_larger_sum(offset), len(self)) - 1)

    def before_offset(self, offset: int) -> PiecePlace:
        """Return the piece that contains the character before `offset`, or the first piece."""
        return self.place_at(max(0, self._offsets.find_sum(offset) - 1))

    def before_line(self, line: int) -> PiecePlace:
        """Return the piece that contains the end of line `line - 1`. `line` must be at least 1."""
        return self.place_at(self._lines.find_sum(line) - 1)

    def between(self, first: int, last: int) -> list[Piece]:
        """Return the pieces from index `first` to index `last`, inclusive."""
        return self._pieces[first : last + 1]

    def units_between(self, first: int, last: int) -> int:
        """Return the number of code units in the pieces from index `first` up to, but excluding,
        `last`.
        """
        return self._units.sum_before(last) - self._units.sum_before(first)

    def skip_units(self, index: int, units: int) -> tuple[int, int]:
        """Skip pieces that contain no line ending, up to `units` code units in total.

        Args:
            index: The index of the first piece to skip.
            units: The maximum number of code units to skip.

        Returns:
            The index after the skipped pieces, and the number of code units that remain.
        """
        before = self._units.sum_before(index)
        by_line = self._lines.find_larger_sum(self._lines.sum_before(index)) - 1
        by_units = self._units.find_larger_sum(before + units) - 1
        skipped = min(by_line, by_units, len(self))
        return skipped, units - (self._units.sum_before(skipped) - before)

    def splice(self, first: int, last: int, new: Sequence[Piece]) -> None:
        """Replace the pieces from index `first` to index `last`, inclusive, with `new`."""
        end = last + 1
        old = self._pieces[first:end]
        self._pieces[first:end] = new
        self._offsets.replace(first, end, [len(piece.text) for piece in new])
        self._lines.replace(first, end, [piece.line_ends for piece in new])
        self._units.replace(first, end, [units(piece.text, self._encoding) for piece in new])
        for tally in self._tallies.values():
            tally.replace(old, new)
