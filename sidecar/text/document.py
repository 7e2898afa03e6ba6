r"""An open document, with positions, edits and pieces that can be counted.

A document is a list of immutable pieces between safe split points (see `sidecar.text.pieces`). An
edit replaces the pieces that it touches, and only the new pieces are counted. Small pieces are
joined later, and their counts are added.

Lines end with `\n`, `\r\n` or `\r`. Positions are clamped. A position after the end of a line moves
to the end of that line. A position after the last line moves to the end of the document, and a
negative position moves to the start. A position inside a character (a surrogate pair or a
multi-byte sequence) moves to the start of that character. If the end of a range precedes its start,
the two are swapped.

Only one thread may change a document, but any thread may read and count its `pieces`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from sidecar.text.pieces import (
    PIECE_CHARACTERS,
    Piece,
    PieceList,
    PiecePlace,
    SplitText,
    is_cut,
    merge_counted,
    split_pieces,
)
from sidecar.text.positions import Encoding, Position, Range, index_of_unit, join_surrogates, units

SPARE_PIECES = 64
"""Small pieces are joined once a document has this many more pieces than its length requires."""
TIDY_PIECES = 32
"""Maximum number of pieces to check after an edit when looking for small pieces to join."""


class TextDocument(SplitText):
    """An open document. The client sets its `version` and `language_id`.

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
