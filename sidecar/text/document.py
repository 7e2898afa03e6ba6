r"""The text of a document: positions, edits, and pieces that can be counted.

A document is a list of immutable pieces between safe split points. An edit replaces the pieces that
it touches, and only the new pieces are counted. Small pieces are joined later, and their counts are
added. Only one thread may change a document, but any thread may read and count its `pieces`.

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
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec

Encoding = Literal["utf-8", "utf-16", "utf-32"]
"""The encoding of positions in LSP, which decides the number of code units in a text.

JSON may contain lone surrogates. A lone surrogate is three code units in utf-8, and one code unit
in utf-16 and utf-32. A byte that is not UTF-8 is decoded as a lone surrogate from U+DC80 to U+DCFF,
which is one code unit in all encodings.
"""


class Position(msgspec.Struct, frozen=True, order=True):
    """A zero-based line, and a character offset in code units of the negotiated encoding."""

    line: int
    character: int


class Range(msgspec.Struct, frozen=True):
    """A half-open range of positions. `end` is the position after the last character."""

    start: Position
    end: Position


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTE = re.compile("[\udc80-\udcff]")


def units(text: str, encoding: Encoding) -> int:
    """Return the text's length in code units. Takes constant time for ASCII and utf-32."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-16":
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(_encode_utf8(text))


def index_of_unit(text: str, offset: int, encoding: Encoding) -> int:
    """Return the index of the character that contains the code unit at `offset`.

    Returns `len(text)` if the offset is at or after the end of the text.
    """
    if encoding == "utf-32" or text.isascii():
        return min(offset, len(text))
    # Each character has at least one code unit, so later characters cannot affect the result.
    text = text[: offset + 1]
    if encoding == "utf-16":
        return _index_utf16(text, offset)
    return _index_utf8(text, offset)


def _index_utf16(text: str, offset: int) -> int:
    head = text.encode("utf-16-le", "surrogatepass")[: 2 * offset]
    decoded = head.decode("utf-16-le", "surrogatepass")
    in_a_pair = decoded != "" and decoded[-1] != text[len(decoded) - 1]
    return len(decoded) - in_a_pair


def _encode_utf8(text: str) -> bytes:
    """Encode text so that its length is the number of code units in utf-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _BYTE.sub("?", text).encode("utf-8", "surrogatepass")


def _index_utf8(text: str, offset: int) -> int:
    data = _encode_utf8(text)
    offset = min(offset, len(data))
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return len(data[:offset].decode("utf-8", "surrogatepass"))


def join_surrogates(text: str) -> str:
    """Replace each surrogate pair with the character that it encodes."""
    if not has_surrogates(text) or not _PAIR.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def without_lone_surrogates(text: str) -> str:
    """Replace each lone surrogate with U+FFFD, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_undecoded_bytes(text: str) -> bool:
    """Return whether text contains bytes that are not UTF-8, decoded as lone surrogates."""
    return has_surrogates(text) and _BYTE.search(text) is not None


def has_surrogates(text: str) -> bool:
    """Return whether text contains a surrogate."""
    try:
        text.encode()  # this check is ten times faster than a regular expression
    except UnicodeEncodeError:
        return True
    return False


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
    """The pieces of a document (one or more), and its length, lines and token counts.

    Running sums find offsets and lines. An edit invalidates only the sums after it, and a look-up
    computes only the sums that it needs. Editing one place repeatedly is therefore as fast in a
    long document as in a short one.
    """

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


SPARE_PIECES = 64
"""Small pieces are joined once a document has this many more pieces than its length requires."""
TIDY_PIECES = 32
"""Maximum number of pieces to check after an edit when looking for small pieces to join."""


class TextDocument(SplitText):
    r"""An open document. The client sets its `version` and `language_id`.

    Lines end with `\n`, `\r\n` or `\r`. Positions are clamped. A position after the end of a line
    moves to the end of that line. A position after the last line moves to the end of the document,
    and a negative position moves to the start. A position inside a character (a surrogate pair or a
    multi-byte sequence) moves to the start of that character. If the end of a range precedes its
    start, the two are swapped.

    Attributes:
        is_synced: Whether the text is the same as the client's. False after a change that could not
            be applied, until the client sends the whole text.
        edition: An object that identifies the current text. Each edit replaces it. The client's
            version is not used for this, because it may repeat or be missing.
    """

    edition: object

    def __init__(
        self,
        uri: str,
        text: str,
        version: int | None = None,
        encoding: Encoding = "utf-16",
        language_id: str = "",
        *,
        piece_characters: int = PIECE_CHARACTERS,
        spare_pieces: int = SPARE_PIECES,
    ) -> None:
        self.uri = uri
        self.version = version
        self.encoding: Encoding = encoding
        self.language_id = language_id
        self.is_synced = True
        self._piece_characters = piece_characters
        self._max_piece_characters = piece_characters + piece_characters // 4
        self._spare_pieces = spare_pieces
        self._next_tidy = 0
        pieces = split_pieces(join_surrogates(text), piece_characters)
        self._list = PieceList(pieces, encoding)
        self._clear_caches()

    def _replace_pieces(self, first: int, last: int, new: list[Piece]) -> None:
        self._list.splice(first, last, new)
        self._clear_caches()

    def _clear_caches(self) -> None:
        self.edition = object()
        self._pieces: tuple[Piece, ...] | None = None
        self._text: str | None = None
        self._whole: Piece | None = None

    # Content

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The current pieces. Later edits do not affect this tuple."""
        if self._pieces is None:
            self._pieces = self._list.snapshot()
        return self._pieces

    def uncounted_pieces(self, tokenizer_name: str) -> Collection[Piece]:
        return self._list.tally(tokenizer_name).uncounted()

    def token_total(self, tokenizer_name: str) -> int | None:
        """Return the document's token count for a tokenizer, or None if any piece is uncounted."""
        return self._list.tally(tokenizer_name).total()

    @property
    def characters(self) -> int:
        """The document's length in Unicode code points."""
        return self._list.characters

    @property
    def line_count(self) -> int:
        """The number of lines. If the text ends with a line ending, the last line is empty."""
        return self._list.line_ends + 1

    def line(self, index: int) -> str:
        """Return a line without its line ending. The first line has index 0.

        Raises:
            IndexError: The document has no such line.
        """
        if not 0 <= index < self.line_count:
            raise IndexError(f"there is no line {index} in a document with {self.line_count} lines")
        start = self._line_offset(index)
        end = self.characters if index + 1 == self.line_count else self._line_offset(index + 1)
        first, last = self._pieces_at_ends(start, end)
        text = "".join(
            [piece.text for piece in self._list.between(first.piece_index, last.piece_index)]
        )
        line = text[start - first.offset : end - first.offset]
        return line.removesuffix("\n").removesuffix("\r")

    def pieces_in(self, span: Range) -> list[Piece]:
        """Split a range into pieces. The token count of the range is the sum of their counts.

        Pieces that are entirely within the range are shared with the document.
        """
        start, end = self.offsets(span)
        first, last = self._pieces_at_ends(start, end)
        inner = self._list.between(first.piece_index, last.piece_index)
        tail, head = start - first.offset, end - last.offset
        if first.piece_index == last.piece_index:
            return split_pieces(inner[0].text[tail:head], self._piece_characters)
        left = inner[0] if tail == 0 else Piece(inner[0].text[tail:])
        right = inner[-1] if head == len(inner[-1]) else Piece(inner[-1].text[:head])
        # The end of the last piece is cut off, so the split point before it may no longer be safe.
        before = inner[-2] if len(inner) > 2 else left
        if is_cut(before.text, right.text):
            return [left, *inner[1:-1], right]
        joined = Piece(before.text + right.text)
        return [left, *inner[1:-2], joined] if len(inner) > 2 else [joined]

    # Positions

    def offset_at(self, position: Position) -> int:
        """Return a position's offset in code points, clamped to the document."""
        if position.line < 0:
            return 0
        if position.line >= self.line_count:
            return self.characters
        return self._walk(*self._find_line(position.line), max(0, position.character))

    def position_at(self, offset: int) -> Position:
        """Return the position of a code point offset. The offset is clamped to the document.

        An offset between a carriage return and a line feed is moved to the end of the line.
        """
        offset = max(0, min(offset, self.characters))
        place = self._list.at_offset(offset)
        local = offset - place.offset
        line = place.line + bisect_right(place.piece.line_starts, local)
        start, local_start = self._find_line(line)
        text = place.piece.text
        if 0 < local < len(text) and text[local - 1] == "\r" and text[local] == "\n":
            local -= 1
        return Position(line, self._units_between(start, local_start, place, local))

    def offsets(self, span: Range) -> tuple[int, int]:
        """Return the start and end offsets of a range, in code points.

        Both are clamped to the document, and are swapped if the range is reversed.
        """
        start = self.offset_at(span.start)
        end = start if span.end == span.start else self.offset_at(span.end)
        return min(start, end), max(start, end)

    # Edits

    def apply(self, span: Range | None, text: str) -> None:
        """Replace a range with text. If the range is None, replace the whole document."""
        if span is None:
            self._replace_all(join_surrogates(text))
            self.is_synced = True
            return
        start, end = self.offsets(span)
        if end > start or text:
            self._replace(start, end, join_surrogates(text))

    def _replace_all(self, text: str) -> None:
        """Replace the document's text. Unchanged pieces at both ends keep their counts."""
        pieces, start, end = self.pieces, 0, len(text)
        first, last = 0, len(pieces)
        while first < last and text.startswith(pieces[first].text, start):
            start += len(pieces[first])
            first += 1
        while first < last and text.endswith(pieces[last - 1].text, start, end):
            last -= 1
            end -= len(pieces[last])
        kept = sum([len(piece) for piece in pieces[last:]])
        self._replace(start, self.characters - kept, text[start:end])

    def _replace(self, start: int, end: int, text: str) -> None:
        touched, last = self._pieces_at_ends(start, end)
        before = touched.piece.text[: start - touched.offset]
        after = last.piece.text[end - last.offset :]
        middle = join_surrogates(before[-1:] + text + after[:1])
        edited = before[:-1] + middle + after[1:]
        first, until, left, right = touched.piece_index, last.piece_index, "", ""
        if not after[1:] or not before[:-1] or before[:-1].isspace():
            first, until, left, right = self._widen(first, until, edited)
        edited = left + edited + right
        fits = len(edited) <= self._max_piece_characters
        new = [Piece(edited)] if fits else split_pieces(edited, self._piece_characters)
        self._replace_pieces(first, until, new)
        self._join_small_pieces()

    def _widen(self, first: int, last: int, text: str) -> tuple[int, int, str, str]:
        """Add neighboring pieces to edited text until there are safe split points on both sides.

        The right side is extended first, because a split point on the left may depend on all blanks
        in the new text.

        Returns:
            The indices of the first and last piece, the text added on the left, and the text added
            on the right.
        """
        left, right = "", ""
        if not text and first > 0:
            first -= 1
            left = self._piece_text(first)
        while last + 1 < len(self._list) and not is_cut(
            right or text or left, self._piece_text(last + 1)
        ):
            last += 1
            right += self._piece_text(last)
        while first > 0 and not is_cut(self._piece_text(first - 1), left + text + right):
            first -= 1
            left = self._piece_text(first) + left
        return first, last, left, right

    def _piece_text(self, index: int) -> str:
        return self._list.place_at(index).piece.text

    def _join_small_pieces(self) -> None:
        needed = 3 * self.characters // (2 * self._piece_characters)
        if len(self._list) <= needed + self._spare_pieces:
            return
        first = self._next_tidy if self._next_tidy < len(self._list) - 1 else 0
        window = self._list.between(first, min(first + TIDY_PIECES, len(self._list)) - 1)
        joined = merge_counted(window, self._max_piece_characters)
        self._next_tidy = first + len(joined)
        if len(joined) < len(window):
            self._replace_pieces(first, first + len(window) - 1, joined)

    # Finding pieces

    def _pieces_at_ends(self, start: int, end: int) -> tuple[PiecePlace, PiecePlace]:
        pieces = self._list
        first = pieces.at_offset(start)
        if first.offset < end <= first.offset + len(first.piece.text):
            return first, first
        last = pieces.before_offset(end)
        return first, last if last.piece_index > first.piece_index else first

    def _line_offset(self, line: int) -> int:
        place, local = self._find_line(line)
        return place.offset + local

    def _find_line(self, line: int) -> tuple[PiecePlace, int]:
        if line == 0:
            return self._list.place_at(0), 0
        place = self._list.before_line(line)
        return place, place.piece.line_starts[line - place.line - 1]

    def _walk(self, place: PiecePlace, local: int, remaining: int) -> int:
        while True:
            piece = place.piece
            end, closed = piece.line_end(local)
            text = piece.text[local:end]
            length = units(text, self.encoding)
            if closed or remaining < length:
                return place.offset + local + index_of_unit(text, remaining, self.encoding)
            index, remaining = self._list.skip_units(place.piece_index + 1, remaining - length)
            if index == len(self._list):
                return self.characters
            place, local = self._list.place_at(index), 0

    def _units_between(self, first: PiecePlace, start: int, last: PiecePlace, end: int) -> int:
        if first.piece_index == last.piece_index:
            return units(first.piece.text[start:end], self.encoding)
        total = units(first.piece.text[start:], self.encoding)
        total += self._list.units_between(first.piece_index + 1, last.piece_index)
        return total + units(last.piece.text[:end], self.encoding)
