"""A document as an editor sends it: LSP positions, edits that cost O(edit), countable pieces.

A document is a flat list of immutable pieces between safe cuts (see `sidecar.text.cuts`). An edit
replaces the pieces that it touches by a small one around the edit and the rest to both sides, so
that typing on renews a small piece only; cold pieces are joined again, their known counts added.

Lines end on `\\n`, `\\r\\n` and `\\r` only. Positions past the end of a line stand for its end
(before its line ending), positions past the last line for the end of the document, and a position
inside a character (a surrogate pair, a multi-byte sequence) for that character's start.

A document belongs to one thread; its `pieces` may be read and counted by any.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, cast

from sidecar.text.cuts import is_cut, next_cut
from sidecar.text.pieces import (
    PIECE_CHARACTERS,
    Origin,
    Piece,
    merge_counted,
    pieces_of,
    together,
)
from sidecar.text.positions import Position, Range
from sidecar.text.units import index_at, join_surrogates, units

if TYPE_CHECKING:
    from sidecar.text.positions import Encoding

EDIT_CHARACTERS = 768
"""How far to both sides of an edit its own small piece reaches, about."""
SPARE_PIECES = 64
"""How many pieces more than its length asks for a document may have before they are joined."""
TIDY_PIECES = 64
"""How many pieces are looked at for joining after one edit: so no edit pays for many others."""


class TextDocument:
    """One open document. `version` and `language_id` are the client's, kept as given."""

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
        self._piece_characters = piece_characters
        self._most_characters = piece_characters + piece_characters // 4
        self._edit_characters = edit_characters
        self._spare_pieces = spare_pieces
        self._set(pieces_of(join_surrogates(text), piece_characters))
        self._next_tidy = 0

    def _set(self, pieces: list[Piece]) -> None:
        self._list = pieces
        self._lengths = [len(piece.text) for piece in pieces]
        self._line_ends = [piece.line_ends for piece in pieces]
        # The memos of all pieces in a row, by tokenizer: a total is soon summed.
        self._known: dict[str, list[int | None]] = {}
        self._index(0)

    def _splice(self, first: int, last: int, new: list[Piece]) -> None:
        self._list[first : last + 1] = new
        self._lengths[first : last + 1] = [len(piece.text) for piece in new]
        self._line_ends[first : last + 1] = [piece.line_ends for piece in new]
        for name, known in self._known.items():
            known[first : last + 1] = [piece.counts.get(name) for piece in new]
        self._index(first)

    def _index(self, first: int) -> None:
        """Sums up what lies before each piece again from piece `first` on; forgets joined text."""
        if first == 0:
            self._offsets, self._lines = [0], [0]
        self._offsets[first:] = accumulate(self._lengths[first:], initial=self._offsets[first])
        self._lines[first:] = accumulate(self._line_ends[first:], initial=self._lines[first])
        self._pieces: tuple[Piece, ...] | None = None
        self._text: str | None = None
        self._whole: Piece | None = None

    # What is in it

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The document now, as pieces whose counts add up: a snapshot, which no edit changes."""
        if self._pieces is None:
            self._pieces = tuple(self._list)
        return self._pieces

    def missing(self, name: str) -> list[Piece]:
        """The pieces whose tokens are not known yet for the tokenizer `name`."""
        known, missing, index = self._known.setdefault(name, [None] * len(self._list)), [], -1
        with suppress(ValueError):  # raised when no None is left: this search is the quickest
            while True:
                index = known.index(None, index + 1)
                known[index] = self._list[index].counts.get(name)
                if known[index] is None:
                    missing.append(self._list[index])
        return missing

    def total(self, name: str) -> int | None:
        """The tokens of all pieces for the tokenizer `name`; None while some are not known."""
        return None if self.missing(name) else sum(cast("list[int]", self._known[name]))

    @property
    def whole(self) -> Piece:
        """The document now as one piece, for tokenizers that cannot be cut; new after each edit."""
        if self._whole is None:
            self._whole = Piece(self.text)
        return self._whole

    @property
    def text(self) -> str:
        """The whole text, joined when first asked for after an edit."""
        if self._text is None:
            self._text = "".join([piece.text for piece in self._list])
        return self._text

    @property
    def characters(self) -> int:
        """The length in Unicode code points."""
        return self._offsets[-1]

    @property
    def line_count(self) -> int:
        """The number of lines; a text that ends on a line ending has an empty last line."""
        return self._lines[-1] + 1

    def line(self, index: int) -> str:
        """Line `index` (from 0) without its line ending. Raises IndexError when there is none."""
        if not 0 <= index < self.line_count:
            raise IndexError(f"line {index} of a document of {self.line_count} lines")
        start = self._offsets_of_line(index)
        end = self.characters if index + 1 == self.line_count else self._offsets_of_line(index + 1)
        return self._between(start, end).removesuffix("\n").removesuffix("\r")

    def slice(self, span: Range) -> str:
        """The text of a range. Raises ValueError for a negative or reversed range."""
        return self._between(*self.offsets(span))

    def pieces_in(self, span: Range) -> list[Piece]:
        """The text of a range as pieces whose counts add up, the document's own where it has them.

        Raises ValueError for a negative or reversed range.
        """
        start, end = self.offsets(span)
        first, last = self._touched(start, end)
        inner = self._list[first : last + 1]
        tail, head = start - self._offsets[first], end - self._offsets[last]
        if first == last:
            return pieces_of(inner[0].text[tail:head], self._piece_characters)
        left = inner[0] if tail == 0 else Piece(inner[0].text[tail:])
        right = inner[-1] if head == len(inner[-1]) else Piece(inner[-1].text[:head])
        # The cut before the last piece may have rested on something visible that is now cut off.
        before = inner[-2] if len(inner) > 2 else left
        if is_cut(before.text, right.text):
            return [left, *inner[1:-1], right]
        joined = Piece(before.text + right.text)
        return [left, *inner[1:-2], joined] if len(inner) > 2 else [joined]

    # Positions

    def offset_at(self, position: Position) -> int:
        """The offset in code points of a position. Raises ValueError for negative numbers."""
        if position.line < 0 or position.character < 0:
            raise ValueError(f"negative position {position.line}:{position.character}")
        if position.line >= self.line_count:
            return self.characters
        index, local = self._find_line(position.line)
        return self._walk(index, local, position.character)

    def position_at(self, offset: int) -> Position:
        """The position of an offset in code points, which is clamped to the document.

        An offset between `\\r` and `\\n` stands for the end of its line.
        """
        offset = max(0, min(offset, self.characters))
        index = self._piece_at(offset)
        local = offset - self._offsets[index]
        line = self._lines[index] + bisect_right(self._list[index].line_starts, local)
        start, local_start = self._find_line(line)
        text = self._list[index].text
        if 0 < local < len(text) and text[local - 1] == "\r" and text[local] == "\n":
            local -= 1
        return Position(line, self._units_between(start, local_start, index, local))

    def offsets(self, span: Range) -> tuple[int, int]:
        """Start and end of a range in code points.

        Raises ValueError for negative numbers and for a reversed range.
        """
        if span.end < span.start:
            raise ValueError(
                f"range ends at {span.end.line}:{span.end.character}, "
                f"before its start {span.start.line}:{span.start.character}"
            )
        start = self.offset_at(span.start)
        return start, start if span.end == span.start else self.offset_at(span.end)

    # Edits

    def apply(self, span: Range | None, text: str) -> None:
        """Puts `text` in the place of a range, or of everything when the range is None.

        Costs O(edit) plus a small part that grows with the number of pieces. Raises ValueError for
        a negative or reversed range; the document is then as it was.
        """
        text = join_surrogates(text)
        if span is None:
            self._replace_all(text)
            return
        start, end = self.offsets(span)
        if end > start or text:
            self._replace(start, end, text)

    def _replace_all(self, text: str) -> None:
        """Replaces only what differs, so that equal pieces keep their counts."""
        start, end, first, last = 0, len(text), 0, len(self._list)
        while first < last and text.startswith(self._list[first].text, start):
            start += len(self._list[first])
            first += 1
        while first < last and text.endswith(self._list[last - 1].text, start, end):
            last -= 1
            end -= len(self._list[last])
        self._replace(self._offsets[first], self._offsets[last], text[start:end])

    def _replace(self, start: int, end: int, text: str) -> None:
        first, last = self._touched(start, end)
        before = self._list[first].text[: start - self._offsets[first]]
        after = self._list[last].text[end - self._offsets[last] :]
        middle = join_surrogates(before[-1:] + text + after[:1])
        edited = before[:-1] + middle + after[1:]
        first, last, left, right = self._widen(first, last, edited)
        edited = left + edited + right
        span = len(left) + len(before), len(edited) - len(right) - len(after)
        new = self._split_around(edited, *span)
        if last - first < 3:
            self._remember(together(self._list[first : last + 1]), new)
        self._splice(first, last, [*chain(*new)] or [Piece("")])
        self._tidy()

    def _widen(self, first: int, last: int, text: str) -> tuple[int, int, str, str]:
        """Takes in neighbours until safe cuts lie on both sides of `text`.

        Returns the touched pieces, and the texts taken in before and after. The right side comes
        first: a cut on the left may look ahead over all of the blanks that `text` has become.
        """
        left, right = "", ""
        if not text and first > 0:
            first -= 1
            left = self._list[first].text
        while last + 1 < len(self._list) and not is_cut(
            right or text or left, self._list[last + 1].text
        ):
            last += 1
            right += self._list[last].text
        while first > 0 and not is_cut(self._list[first - 1].text, left + text + right):
            first -= 1
            left = self._list[first].text + left
        return first, last, left, right

    def _split_around(self, text: str, start: int, end: int) -> list[list[Piece]]:
        """Pieces of `text`: what is before, around and after its span `start` to `end`."""
        if len(text) <= 4 * self._edit_characters:
            return [[], [Piece(text)] if text else [], []]
        left = next_cut(text, max(0, start - 2 * self._edit_characters))
        left = left if left is not None and left <= start else 0
        right = next_cut(text, min(end + self._edit_characters, len(text)))
        right = len(text) if right is None else right
        parts = (text[:left], text[left:right], text[right:])
        return [pieces_of(part, self._most_characters) if part else [] for part in parts]

    def _remember(self, old: Piece, new: list[list[Piece]]) -> None:
        """Tells the largest part of a cut piece where it comes from: its count is the old one
        without the other parts'. So an edit in a cold piece tokenizes a part of it only."""
        left, _, right = new
        if len(left) > 1 or len(right) > 1 or not (left or right):
            return
        start = len(left[0]) if left else 0
        middle = Piece(old.text[start : len(old) - (len(right[0]) if right else 0)])
        parts = [*left, middle, *right]
        largest = max([*left, *right], key=len)
        if len(middle) < len(largest) and all(is_cut(a.text, b.text) for a, b in pairwise(parts)):
            others = tuple(part for part in parts if part is not largest)
            largest.origin = Origin(old.counts, others)

    def _tidy(self) -> None:
        """Joins small neighbours, some at each edit, while there are more pieces than needed."""
        needed = 3 * self.characters // (2 * self._piece_characters)
        if len(self._list) <= needed + self._spare_pieces:
            return
        first = self._next_tidy if self._next_tidy < len(self._list) - 1 else 0
        window = self._list[first : first + TIDY_PIECES]
        joined = merge_counted(window, self._most_characters)
        self._next_tidy = first + len(joined)
        if len(joined) < len(window):
            self._splice(first, first + len(window) - 1, joined)

    # Where things are

    def _between(self, start: int, end: int) -> str:
        if self._text is not None:
            return self._text[start:end]
        first, last = self._touched(start, end)
        text = "".join([piece.text for piece in self._list[first : last + 1]])
        return text[start - self._offsets[first] : end - self._offsets[first]]

    def _touched(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last piece that a span lies in."""
        first = self._piece_at(start)
        return first, max(first, bisect_left(self._offsets, end) - 1)

    def _piece_at(self, offset: int) -> int:
        """The piece that the character after `offset` is in, or the last piece."""
        return min(bisect_right(self._offsets, offset), len(self._list)) - 1

    def _offsets_of_line(self, line: int) -> int:
        index, local = self._find_line(line)
        return self._offsets[index] + local

    def _find_line(self, line: int) -> tuple[int, int]:
        """The piece where a line starts, and the offset in that piece (which may be its end)."""
        if line == 0:
            return 0, 0
        index = bisect_left(self._lines, line) - 1
        return index, self._list[index].line_starts[line - self._lines[index] - 1]

    def _walk(self, index: int, local: int, remaining: int) -> int:
        """The offset `remaining` units after a place, or at the end of its line."""
        while index < len(self._list):
            piece = self._list[index]
            if local == 0 and piece.line_ends == 0 and piece.units(self.encoding) <= remaining:
                remaining -= piece.units(self.encoding)
                index += 1
                continue
            end, closed = piece.line_end(local)
            text = piece.text[local:end]
            length = units(text, self.encoding)
            if closed or remaining < length:
                return self._offsets[index] + local + index_at(text, remaining, self.encoding)
            remaining -= length
            index, local = index + 1, 0
        return self.characters

    def _units_between(self, first: int, start: int, last: int, end: int) -> int:
        if first == last:
            return units(self._list[first].text[start:end], self.encoding)
        total = units(self._list[first].text[start:], self.encoding)
        total += sum([piece.units(self.encoding) for piece in self._list[first + 1 : last]])
        return total + units(self._list[last].text[:end], self.encoding)
