"""Immutable pieces of a text whose token counts add up to the count of the whole."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from sidecar.text.cuts import is_cut, is_cut_at, is_word_cut, next_cut
from sidecar.text.units import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.text.positions import Encoding

PIECE_CHARACTERS = 4_096
"""About how many characters a piece holds: a count of one takes a tenth of a millisecond."""

_LINE_END = re.compile(r"\r\n?|\n")


class PieceOrigin(NamedTuple):
    """How a piece's count follows from an older one's: without some stretches, and with others."""

    counts: dict[str, int]
    """What is known of the older piece, by then or later."""
    minus: tuple[Piece, ...]
    plus: tuple[Piece, ...] = ()

    def derived(self, name: str) -> int:
        """The piece's own count, where all that it follows from is known."""
        gone = sum([part.counts[name] for part in self.minus])
        return self.counts[name] - gone + sum([part.counts[name] for part in self.plus])


class Piece:
    """A stretch of text between two safe cuts, with a memo of its token counts.

    The text never changes, so the memo (tokenizer name to tokens) can be filled by any thread at
    any time, and filled twice without harm.
    """

    __slots__ = ("_starts", "_utf8", "_utf16", "counts", "group", "line_ends", "origin", "text")

    def __init__(self, text: str, counts: dict[str, int] | None = None) -> None:
        self.text = text
        self.counts: dict[str, int] = {} if counts is None else counts
        self.line_ends = _count_line_ends(text)
        self.group: tuple[tuple[Piece, ...], Piece] | None = None
        self.origin: PieceOrigin | None = None
        self._starts: list[int] | None = None
        self._utf8: int | None = None
        self._utf16: int | None = None

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:  # never the text: it may end up in a log
        return f"Piece(characters={len(self.text)}, line_ends={self.line_ends})"

    @property
    def line_starts(self) -> list[int]:
        """The offset after each line end, rising; not the piece's own start."""
        if self._starts is None:
            self._starts = _line_starts(self.text)
        return self._starts

    @property
    def _lines_end_on_lf(self) -> bool:
        """Whether there is no lone carriage return: then a line is found by its `\\n`."""
        return "\r" not in self.text or self.text.count("\n") == self.line_ends

    def line_start(self, index: int) -> int:
        """The offset after line end `index` (from 0): of a piece that was just made, without
        looking for all of them."""
        if self._starts is not None or not self._lines_end_on_lf:
            return self.line_starts[index]
        text, passed = self.text, index + 1
        if 2 * passed <= self.line_ends:
            return len(text) - len(text.split("\n", passed)[passed])
        return len(text.rsplit("\n", self.line_ends - index)[0]) + 1

    def line_end(self, start: int) -> tuple[int, bool]:
        """The end of the line that goes on at `start`, and whether the line ends in this piece."""
        if self._lines_end_on_lf:
            end = self.text.find("\n", start)
            if end < 0:
                return len(self.text), False
            return end - (end > start and self.text[end - 1] == "\r"), True
        starts = self.line_starts
        following = bisect_right(starts, start)
        if following == len(starts):
            return len(self.text), False
        after = starts[following]
        crlf = after - 2 >= start and self.text.startswith("\r\n", after - 2)
        return after - (2 if crlf else 1), True

    def units(self, encoding: Encoding) -> int:
        """The length in code units of `encoding`."""
        if encoding == "utf-16":
            if self._utf16 is None:
                self._utf16 = units(self.text, encoding)
            return self._utf16
        if encoding == "utf-8":
            if self._utf8 is None:
                self._utf8 = units(self.text, encoding)
            return self._utf8
        return len(self.text)

    def needs(self, name: str) -> list[Piece]:
        """What has to be tokenized to know this piece's count: nothing, itself, or what is less."""
        if name in self.counts:
            return []
        origin = self.origin
        if origin is None or name not in origin.counts:
            return [self]
        return [part for part in origin.minus + origin.plus if name not in part.counts]

    def known(self) -> dict[str, int]:
        """A copy of the memo, safe to walk while another thread fills it."""
        return self.counts.copy()


class Pieced:
    """A text in pieces, joined when first asked for."""

    _text: str | None = None
    _whole: Piece | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Stretches whose counts add up, which remember them."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The whole text."""
        if self._text is None:
            self._text = "".join([piece.text for piece in self.pieces])
        return self._text

    @property
    def whole(self) -> Piece:
        """The whole text as one piece, for tokenizers that cannot be cut."""
        if self._whole is None:
            self._whole = Piece(self.text)
        return self._whole


def _count_line_ends(text: str) -> int:
    if "\r" not in text:
        return text.count("\n")
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def _line_starts(text: str) -> list[int]:
    if "\r" in text:
        return [match.end() for match in _LINE_END.finditer(text)]
    return [*accumulate([len(line) + 1 for line in text.split("\n")[:-1]])]


def split(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """`text` in order, cut at the first safe cut after every `characters` characters.

    Yields at least one string. A stretch without a safe cut comes out whole, however long.
    """
    start = 0
    while len(text) - start > characters:
        cut = next_cut(text, start + characters - 1)
        if cut is None or cut == len(text):
            break
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def pieces_of(text: str, characters: int = PIECE_CHARACTERS) -> list[Piece]:
    """The pieces of a text, at least one. Some milliseconds for 10 MB."""
    return [Piece(part) for part in split(text, characters)]


def edited_piece(old: Piece, text: str, start: int, kept: int, far: int) -> Piece:
    """The piece that `old` becomes when all of its text but the first `start` and the last `kept`
    characters is replaced, so that it is `text`.

    Its count is the old one without the stretch between the cuts next to the edit, and with what
    that has become: however long the piece is, little of it is tokenized. Cuts are looked for up to
    `far` characters from the edit; where there is none, all of it is counted again.
    """
    new, grown = Piece(text), len(text) - len(old.text)
    first = _cut_before(old.text, text, start, far)
    last = _cut_after(old.text, text, len(text) - kept, far)
    if first is not None and last is not None:
        new.origin = _origin(old, old.text[first : last - grown], text[first:last])
    return new


_REACH = 8
"""How far before an edit a cut is looked for first; code has one after every few characters."""


def _cut_before(old: str, new: str, place: int, far: int) -> int | None:
    """An offset up to `place`, and near it, at which both texts have a safe cut; their start is
    one. None where there is none so near."""
    reach = _REACH
    while reach < min(place, far):
        cut = next_cut(new, place - reach, place + 1)
        if cut is not None and is_cut_at(old, cut):
            return cut
        reach *= 2
    return 0 if place <= far else None


def _cut_after(old: str, new: str, place: int, far: int) -> int | None:
    """The same from `place` on, as an offset in the new text."""
    last = next_cut(new, place, place + far)
    if last is not None and is_cut_at(old, last - len(new) + len(old)):
        return last
    return len(new) if len(new) - place <= far else None


def _origin(old: Piece, gone: str, come: str) -> PieceOrigin | None:
    """None where to count what has changed since the last count would be more than all of it."""
    minus: tuple[Piece, ...] = (Piece(gone),) if gone else ()
    plus: tuple[Piece, ...] = (Piece(come),) if come else ()
    counts, before = old.counts, old.origin
    if not counts and before is not None:  # edited again before it was counted
        counts, minus, plus = before.counts, before.minus + minus, before.plus + plus
    changed = sum([len(part.text) for part in minus + plus])
    return PieceOrigin(counts, minus, plus) if changed < len(old.text) else None


def pieces_around(text: str, start: int, end: int, near: int, most: int) -> list[list[Piece]]:
    """Pieces of `text`, at most about `most` characters each: what is before, around and after its
    span `start` to `end`, of which the middle reaches about `near` characters to both sides."""
    if len(text) <= most:
        return [[], [Piece(text)] if text else [], []]
    left = next_cut(text, max(0, start - 2 * near))
    left = left if left is not None and left <= start else 0
    right = next_cut(text, min(end + near, len(text)))
    right = len(text) if right is None else right
    parts = (text[:left], text[left:right], text[right:])
    return [pieces_of(part, most) if part else [] for part in parts]


def remember(old: Piece, new: list[list[Piece]]) -> None:
    """Keep with the largest part of a cut piece where it is from: its count is the old one
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
        largest.origin = PieceOrigin(old.counts, others)


def word_pieces(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with only word cuts between them: neighbours at a line cut are taken together.

    They are others than the pieces given, whose memos hold counts that add up at every cut. Each is
    remembered by the first piece in it, and so are its counts.
    """
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and not is_word_cut(groups[-1][-1].text, piece.text):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return [_grouped(tuple(group)) for group in groups]


def _grouped(members: tuple[Piece, ...]) -> Piece:
    first = members[0]
    if first.group is None or first.group[0] != members:
        first.group = (members, Piece("".join([piece.text for piece in members])))
    return first.group[1]


def merge_counted(pieces: list[Piece], characters: int = PIECE_CHARACTERS) -> list[Piece]:
    """Joins small neighbours into pieces of at most `characters`, their counts added up.

    No count is lost but one that only one of two neighbours has while they share another: nothing
    needs to be tokenized again for the tokenizers in use.
    """
    merged: list[Piece] = []
    for piece in pieces:
        joined = _join(merged[-1], piece, characters) if merged else None
        if joined is None:
            merged.append(piece)
        else:
            merged[-1] = joined
    return merged


def together(pieces: Sequence[Piece]) -> Piece:
    """Neighbours as one piece, with the counts that all of them have added up."""
    if len(pieces) == 1:
        return pieces[0]
    memos = [piece.known() for piece in pieces]
    names = set(memos[0]).intersection(*memos[1:])
    counts = {name: sum([memo[name] for memo in memos]) for name in names}
    return Piece("".join([piece.text for piece in pieces]), counts)


def _join(left: Piece, right: Piece, characters: int) -> Piece | None:
    if len(left) + len(right) > characters:
        return None
    joined = together((left, right))
    return joined if joined.counts or not (left.counts or right.counts) else None
