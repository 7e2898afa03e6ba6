r"""A document as an editor sends it: LSP positions, edits that cost O(edit), countable pieces.

A document is a list of immutable pieces between safe cuts (see `sidecar.text.cuts`). An edit
replaces the piece that it touches; the new piece's count is derived from the old one's. Where that
piece would be too long, or the edit touches several, they are replaced by a small piece around the
edit and by the rest on both sides. Small pieces are joined again later, and their known counts
added.

Lines end on `\\n`, `\\r\\n` and `\\r` only. A position past the end of its line means the line's
end, one past the last line the end of the document, a negative one the start, and a position inside
a character (a surrogate pair, a multi-byte sequence) that character's start. A range whose end
precedes its start is the range between the two.

A document belongs to one thread; any thread may read and count its `pieces`.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from sidecar.text.cuts import is_cut
from sidecar.text.pieces import (
    PIECE_CHARACTERS,
    Piece,
    PieceList,
    PiecePlace,
    SplitText,
    edit_piece,
    join_pieces,
    link_origin,
    merge_counted,
    pieces_around,
    split,
    split_pieces,
)
from sidecar.text.positions import Position, Range, index_at, join_surrogates, units

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sidecar.text.positions import Encoding

EDIT_CHARACTERS = 384
"""Roughly how far the small piece around an edit reaches to both sides."""
SPARE_PIECES = 64
"""How many pieces beyond the expected number a document may have before they are joined."""
LONG_CHARACTERS = 250_000
"""Longer texts are cut when first read, because that takes more than a millisecond."""
STRETCH_PIECES = 8
"""A piece as long as so many pieces is a stretch without cuts, and stays one piece."""
TIDY_PIECES = 32
"""How many pieces one edit may examine in order to join some."""


class TextDocument(SplitText):
    """An open document. `version` and `language_id` are the client's.

    `in_step` is False after a change that could not be applied, until the whole text is replaced:
    the document differs from what the editor shows. `edition` is a new object after each edit,
    because the client's version may repeat or be missing.
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
        edit_characters: int = EDIT_CHARACTERS,
        spare_pieces: int = SPARE_PIECES,
    ) -> None:
        self.uri = uri
        self.version = version
        self.encoding: Encoding = encoding
        self.language_id = language_id
        self.in_step = True
        self._piece_characters = piece_characters
        self._most_characters = piece_characters + piece_characters // 4
        self._edit_characters = edit_characters
        self._spare_pieces = spare_pieces
        self._next_tidy = 0
        self._start(text)

    def _start(self, text: str) -> None:
        """Take a whole new text. A long one stays uncut, and edits wait until it is cut."""
        self._forget()
        self._waiting_edits: list[tuple[Range, str]] = []
        self._cut: PieceList | None = None
        self._cutting = partial(_cut_up, text, self._piece_characters, self.encoding)
        if len(text) <= LONG_CHARACTERS:
            self.set_pieces(self._cutting(), self._cutting)

    @property
    def is_cut(self) -> bool:
        """Whether a long text is in pieces yet.

        Reading it cuts it (15 ms for 10 MB), but editing does not: a worker may cut it instead, by
        `cutting` and `set_pieces`.
        """
        return self._cut is not None

    def cutting(self) -> Callable[[], PieceList]:
        """Return a function that cuts the opened text, for any thread."""
        return self._cutting

    def reopen(self) -> Callable[[], TextDocument]:
        """Return a function that creates this document again, while it is uncut."""
        again = self.uri, self._cutting.args[0], self.version, self.encoding, self.language_id
        return partial(_reopened, again, [*self._waiting_edits])

    def set_pieces(self, pieces: PieceList, cutting: Callable[[], PieceList]) -> None:
        """Take the result of `cutting` and apply the waiting edits.

        Does nothing if the text was cut or replaced meanwhile.
        """
        if self._cut is not None or cutting is not self._cutting:
            return
        self._cut, self._cutting = pieces, _NOTHING
        waiting, self._waiting_edits = self._waiting_edits, []
        before, self.in_step = (self.edition, self.in_step), False  # until all edits are applied
        for span, text in waiting:
            self.apply(span, text)
        self.edition, self.in_step = before  # the text has had these edits since they arrived

    @property
    def _list(self) -> PieceList:
        if self._cut is None:
            self.set_pieces(self._cutting(), self._cutting)
        return cast("PieceList", self._cut)

    def _splice(self, first: int, last: int, new: list[Piece]) -> None:
        self._list.splice(first, last, new)
        self._forget()

    def _forget(self) -> None:
        """Drop what was derived from the text before an edit."""
        self.edition = object()
        self._pieces: tuple[Piece, ...] | None = None
        self._text: str | None = None
        self._whole: Piece | None = None

    # Content

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The document's pieces at this moment; no edit changes them."""
        if self._pieces is None:
            self._pieces = self._list.snapshot()
        return self._pieces

    def missing(self, name: str) -> Collection[Piece]:
        """Return the pieces that the tokenizer `name` has not counted."""
        return self._list.tally(name).missing()

    def total(self, name: str) -> int | None:
        """Return the tokens of all pieces for the tokenizer `name`; None while some are
        uncounted.
        """
        return self._list.tally(name).total()

    @property
    def characters(self) -> int:
        """The length in Unicode code points."""
        return self._list.characters

    @property
    def line_count(self) -> int:
        """The number of lines; after a final line ending comes an empty last line."""
        return self._list.line_ends + 1

    def line(self, index: int) -> str:
        """Return line `index` (from 0) without its line ending.

        Raises:
            IndexError: There is no such line.
        """
        if not 0 <= index < self.line_count:
            raise IndexError(f"line {index} of a document of {self.line_count} lines")
        start = self._offsets_of_line(index)
        end = self.characters if index + 1 == self.line_count else self._offsets_of_line(index + 1)
        return self._between(start, end).removesuffix("\n").removesuffix("\r")

    def pieces_in(self, span: Range) -> list[Piece]:
        """Return a range in pieces whose counts add up, the document's own where possible."""
        start, end = self.offsets(span)
        first, last = self._touched(start, end)
        inner = self._list.between(first.number, last.number)
        tail, head = start - first.offset, end - last.offset
        if first.number == last.number:
            return split_pieces(inner[0].text[tail:head], self._piece_characters)
        left = inner[0] if tail == 0 else Piece(inner[0].text[tail:])
        right = inner[-1] if head == len(inner[-1]) else Piece(inner[-1].text[:head])
        # The cut before the last piece may depend on a visible character that is now missing.
        before = inner[-2] if len(inner) > 2 else left
        if is_cut(before.text, right.text):
            return [left, *inner[1:-1], right]
        joined = Piece(before.text + right.text)
        return [left, *inner[1:-2], joined] if len(inner) > 2 else [joined]

    # Positions

    def offset_at(self, position: Position) -> int:
        """Return the offset in code points of a position, clamped to the document."""
        if position.line < 0:
            return 0
        if position.line >= self.line_count:
            return self.characters
        return self._walk(*self._find_line(position.line), max(0, position.character))

    def position_at(self, offset: int) -> Position:
        r"""Return the position of an offset in code points, clamped to the document.

        An offset between `\\r` and `\\n` means the end of its line.
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
        """Return a range's start and end in code points, clamped, and swapped if reversed."""
        start = self.offset_at(span.start)
        end = start if span.end == span.start else self.offset_at(span.end)
        return min(start, end), max(start, end)

    # Edits

    def apply(self, span: Range | None, text: str) -> None:
        """Replace a range, or everything if the range is None, by `text`.

        Costs O(edit), plus a little that grows with the number of pieces.
        """
        if span is None:
            self._replace_all(join_surrogates(text))
            self.in_step = True
            return
        if not self.is_cut:
            self._forget()
            self._waiting_edits.append((span, text))
            return
        start, end = self.offsets(span)
        if end > start or text:
            self._replace(start, end, join_surrogates(text))

    def _replace_all(self, text: str) -> None:
        """Replace only what differs, so that equal pieces keep their counts."""
        if not self.is_cut:
            self._start(text)
            return
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
        touched, last = self._touched(start, end)
        before = touched.piece.text[: start - touched.offset]
        after = last.piece.text[end - last.offset :]
        middle = join_surrogates(before[-1:] + text + after[:1])
        edited = before[:-1] + middle + after[1:]
        first, until, left, right = touched.number, last.number, "", ""
        if not after[1:] or not before[:-1] or before[:-1].isspace():
            first, until, left, right = self._widen(first, until, edited)
        edited = left + edited + right
        start, kept = len(left) + len(before), len(after) + len(right)
        self._splice(first, until, self._renewed(first, until, edited, start, kept))
        self._tidy()

    def _renewed(self, first: int, until: int, text: str, start: int, kept: int) -> list[Piece]:
        """Return pieces of `text` in place of those from index `first` to `until`.

        The first `start` and the last `kept` characters are unchanged; known counts are carried
        over.
        """
        most = self._most_characters
        old = join_pieces(self._list.between(first, until)) if until - first < 3 else None
        if text and old and (len(text) <= most or self._is_in_a_stretch(old, text, start + kept)):
            return [edit_piece(old, text, start, kept, 2 * most)]
        new = pieces_around(text, start, len(text) - kept, self._edit_characters, most)
        if old:
            link_origin(old, new)
        return [*chain(*new)] or [Piece("")]

    def _is_in_a_stretch(self, old: Piece, text: str, kept: int) -> bool:
        """Return whether a small edit is inside a long piece without cuts.

        Searching all of it for cuts at each key would take seconds.
        """
        long = STRETCH_PIECES * self._most_characters
        return min(len(old), len(text)) > long and max(len(old), len(text)) - kept <= long

    def _widen(self, first: int, last: int, text: str) -> tuple[int, int, str, str]:
        """Include neighbours until safe cuts lie on both sides of `text`.

        The right side comes first: a cut on the left may depend on all blanks that `text` has
        become.

        Returns:
            The indices of the first and last piece, and the texts included before and after.
        """
        left, right = "", ""
        if not text and first > 0:
            first -= 1
            left = self._text_of(first)
        while last + 1 < len(self._list) and not is_cut(
            right or text or left, self._text_of(last + 1)
        ):
            last += 1
            right += self._text_of(last)
        while first > 0 and not is_cut(self._text_of(first - 1), left + text + right):
            first -= 1
            left = self._text_of(first) + left
        return first, last, left, right

    def _text_of(self, index: int) -> str:
        return self._list.at(index).piece.text

    def _tidy(self) -> None:
        """Join small neighbours, a few per edit, while there are more pieces than needed."""
        needed = 3 * self.characters // (2 * self._piece_characters)
        if len(self._list) <= needed + self._spare_pieces:
            return
        first = self._next_tidy if self._next_tidy < len(self._list) - 1 else 0
        window = self._list.between(first, min(first + TIDY_PIECES, len(self._list)) - 1)
        joined = merge_counted(window, self._most_characters)
        self._next_tidy = first + len(joined)
        if len(joined) < len(window):
            self._splice(first, first + len(window) - 1, joined)

    # Finding pieces

    def _between(self, start: int, end: int) -> str:
        if self._text is not None:
            return self._text[start:end]
        first, last = self._touched(start, end)
        text = "".join([piece.text for piece in self._list.between(first.number, last.number)])
        return text[start - first.offset : end - first.offset]

    def _touched(self, start: int, end: int) -> tuple[PiecePlace, PiecePlace]:
        """Return the first and the last piece of a span."""
        pieces = self._list
        first = pieces.at_offset(start)
        if first.offset < end <= first.offset + len(first.piece.text):
            return first, first
        last = pieces.before_offset(end)
        return first, last if last.number > first.number else first

    def _offsets_of_line(self, line: int) -> int:
        place, local = self._find_line(line)
        return place.offset + local

    def _find_line(self, line: int) -> tuple[PiecePlace, int]:
        """Return the piece where a line starts, and the offset in it, which may be its end."""
        if line == 0:
            return self._list.at(0), 0
        place = self._list.before_line(line)
        return place, place.piece.line_start(line - place.line - 1)

    def _walk(self, place: PiecePlace, local: int, remaining: int) -> int:
        """Return the offset `remaining` units after a place, or the end of its line."""
        while True:
            piece = place.piece
            end, closed = piece.line_end(local)
            text = piece.text[local:end]
            length = units(text, self.encoding)
            if closed or remaining < length:
                return place.offset + local + index_at(text, remaining, self.encoding)
            index, remaining = self._list.skip(place.number + 1, remaining - length)
            if index == len(self._list):
                return self.characters
            place, local = self._list.at(index), 0

    def _units_between(self, first: PiecePlace, start: int, last: PiecePlace, end: int) -> int:
        if first.number == last.number:
            return units(first.piece.text[start:end], self.encoding)
        total = units(first.piece.text[start:], self.encoding)
        total += self._list.units(first.number + 1, last.number)
        return total + units(last.piece.text[:end], self.encoding)


def _cut_up(text: str, characters: int, encoding: Encoding) -> PieceList:
    # No cut lies inside a surrogate pair, so pieces can be joined without a second pass.
    pieces = [Piece(join_surrogates(part)) for part in split(text, characters)]
    return PieceList(pieces, encoding)


_NOTHING = partial(_cut_up, "", PIECE_CHARACTERS, "utf-16")


def _reopened(again: tuple[Any, ...], edits: list[tuple[Range, str]]) -> TextDocument:
    document = TextDocument(*again)
    for span, text in edits:
        document.apply(span, text)
    return document
