"""Immutable pieces of a text whose token counts add up to the count of the whole.

A document is a `PieceList`. Its offsets and lines are running sums over the pieces: an edit
invalidates only the sums behind it, and a look-up extends them only as far as it reaches, so that
typing at one place of a long document costs the same as in a short one.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from sidecar.text.cuts import is_cut, is_cut_at, is_word_cut, next_cut
from sidecar.text.positions import units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.text.positions import Encoding

PIECE_CHARACTERS = 4_096
"""Rough length of a piece; counting one takes a tenth of a millisecond."""

_LINE_END = re.compile(r"\r\n?|\n")


class PieceOrigin(NamedTuple):
    """How a piece's count follows from an older piece's: some stretches removed, others added."""

    counts: dict[str, int]
    """The older piece's counts, now or later."""
    removed: tuple[Piece, ...]
    added: tuple[Piece, ...] = ()

    def derive_count(self, name: str) -> int:
        """Return the piece's count; all counts that it depends on must be known."""
        gone = sum([part.counts[name] for part in self.removed])
        return self.counts[name] - gone + sum([part.counts[name] for part in self.added])


class Piece:
    """A stretch of text between two safe cuts, with its known token counts.

    The text never changes, so any thread may fill in counts (tokenizer name to tokens) at any time,
    even twice.
    """

    __slots__ = ("_starts", "counts", "group", "line_ends", "origin", "text")

    def __init__(self, text: str, counts: dict[str, int] | None = None) -> None:
        self.text = text
        self.counts: dict[str, int] = {} if counts is None else counts
        self.line_ends = _count_line_ends(text)
        self.group: tuple[tuple[Piece, ...], Piece] | None = None
        self.origin: PieceOrigin | None = None
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:  # never the text: it may end up in a log
        return f"Piece(characters={len(self.text)}, line_ends={self.line_ends})"

    @property
    def line_starts(self) -> list[int]:
        """The offset after each line end, in order; without the piece's own start."""
        if self._starts is None:
            self._starts = _line_starts(self.text)
        return self._starts

    @property
    def _lines_end_on_lf(self) -> bool:
        r"""Whether there is no lone carriage return, so that lines can be found by `\\n`."""
        return "\r" not in self.text or self.text.count("\n") == self.line_ends

    def line_start(self, index: int) -> int:
        """Return the offset after line end `index` (from 0), without finding all line ends of a new
        piece.
        """
        if self._starts is not None or not self._lines_end_on_lf:
            return self.line_starts[index]
        text, passed = self.text, index + 1
        if 2 * passed <= self.line_ends:
            return len(text) - len(text.split("\n", passed)[passed])
        return len(text.rsplit("\n", self.line_ends - index)[0]) + 1

    def line_end(self, start: int) -> tuple[int, bool]:
        """Return the end of the line that continues at `start`, and whether it ends in
        this piece.
        """
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

    def uncounted_parts(self, name: str) -> list[Piece]:
        """Return what must be tokenized for this piece's count: nothing, itself, or something
        shorter.
        """
        if name in self.counts:
            return []
        origin = self.origin
        if origin is None or name not in origin.counts:
            return [self]
        return [part for part in origin.removed + origin.added if name not in part.counts]

    def known_counts(self) -> dict[str, int]:
        """Return a copy of the counts, safe to iterate while another thread adds to them."""
        return self.counts.copy()


class SplitText:
    """A text in pieces, joined when first needed."""

    _text: str | None = None
    _whole: Piece | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Stretches whose counts add up."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The whole text."""
        if self._text is None:
            self._text = "".join([piece.text for piece in self.pieces])
        return self._text

    @property
    def whole(self) -> Piece:
        """The whole text as one piece, for tokenizers whose texts cannot be cut."""
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
    """Yield `text` in order, cut at the first safe cut after every `characters` characters.

    Yields at least one string. A stretch without a safe cut is yielded whole, however long.
    """
    start = 0
    while len(text) - start > characters:
        cut = next_cut(text, start + characters - 1)
        if cut is None or cut == len(text):
            break
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def split_pieces(text: str, characters: int = PIECE_CHARACTERS) -> list[Piece]:
    """Return the pieces of a text, at least one. Some milliseconds for 10 MB."""
    return [Piece(part) for part in split(text, characters)]


def edit_piece(old: Piece, text: str, start: int, kept: int, far: int) -> Piece:
    """Return the piece that an edit makes of `old`.

    Its count is the old one, without the stretch between the nearest cuts around the edit and with
    what replaced it: however long the piece is, only a little of it is tokenized. If there is no
    cut near the edit, everything is counted again.

    Args:
        old: The piece before the edit.
        text: Its text after the edit.
        start: How many characters at the start are unchanged.
        kept: How many characters at the end are unchanged.
        far: How far from the edit to look for cuts.
    """
    new, grown = Piece(text), len(text) - len(old.text)
    first = _cut_before(old.text, text, start, far)
    last = _cut_after(old.text, text, len(text) - kept, far)
    if first is not None and last is not None:
        new.origin = _origin(old, old.text[first : last - grown], text[first:last])
    return new


_REACH = 8
"""How far before an edit to look for a cut first; code has one every few characters."""


def _cut_before(old: str, new: str, place: int, far: int) -> int | None:
    """Return the nearest offset up to `place` at which both texts have a safe cut, or None.

    Their start counts as one.
    """
    reach = _REACH
    while reach < min(place, far):
        cut = next_cut(new, place - reach, place + 1)
        if cut is not None and is_cut_at(old, cut):
            return cut
        reach *= 2
    return 0 if place <= far else None


def _cut_after(old: str, new: str, place: int, far: int) -> int | None:
    """Return the nearest such offset from `place` on, in the new text, or None."""
    last = next_cut(new, place, place + far)
    if last is not None and is_cut_at(old, last - len(new) + len(old)):
        return last
    return len(new) if len(new) - place <= far else None


def _origin(old: Piece, gone: str, come: str) -> PieceOrigin | None:
    """Return the origin of an edited piece, or None if counting all of it is less work."""
    removed: tuple[Piece, ...] = (Piece(gone),) if gone else ()
    added: tuple[Piece, ...] = (Piece(come),) if come else ()
    counts, before = old.counts, old.origin
    if not counts and before is not None:  # edited again before it was counted
        counts, removed, added = before.counts, before.removed + removed, before.added + added
    changed = sum([len(part.text) for part in removed + added])
    return PieceOrigin(counts, removed, added) if changed < len(old.text) else None


def pieces_around(text: str, start: int, end: int, near: int, most: int) -> list[list[Piece]]:
    """Return pieces before, around and after a span, at most about `most` characters each.

    The middle reaches roughly `near` characters to both sides of the span.
    """
    if len(text) <= most:
        return [[], [Piece(text)] if text else [], []]
    left = next_cut(text, max(0, start - 2 * near))
    left = left if left is not None and left <= start else 0
    right = next_cut(text, min(end + near, len(text)))
    right = len(text) if right is None else right
    parts = (text[:left], text[left:right], text[right:])
    return [split_pieces(part, most) if part else [] for part in parts]


def link_origin(old: Piece, new: list[list[Piece]]) -> None:
    """Derive the count of the largest part of a cut piece from the piece's own count.

    So an edit in an uncounted piece tokenizes only a part of it.
    """
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
    """Return pieces with word cuts only: neighbours at a line cut are joined.

    They are new pieces, because the given ones hold counts that add up at every cut. The first
    piece of each group remembers the joined one, and so its counts.
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
    """Join small neighbours into pieces of at most `characters` and add their counts.

    Pieces are joined only if a count that both have survives, so nothing in use is tokenized again.
    """
    merged: list[Piece] = []
    for piece in pieces:
        joined = _join(merged[-1], piece, characters) if merged else None
        if joined is None:
            merged.append(piece)
        else:
            merged[-1] = joined
    return merged


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Join neighbours, adding the counts that all of them have."""
    if len(pieces) == 1:
        return pieces[0]
    memos = [piece.known_counts() for piece in pieces]
    names = set(memos[0]).intersection(*memos[1:])
    counts = {name: sum([memo[name] for memo in memos]) for name in names}
    return Piece("".join([piece.text for piece in pieces]), counts)


def _join(left: Piece, right: Piece, characters: int) -> Piece | None:
    if len(left) + len(right) > characters:
        return None
    joined = join_pieces((left, right))
    return joined if joined.counts or not (left.counts or right.counts) else None


_STRETCH = 256
"""How many pieces a running sum is extended by at once."""


class PiecePlace(NamedTuple):
    """A piece, its index in the list, and the characters and line ends before it."""

    number: int
    piece: Piece
    offset: int
    line: int


class TokenTally:
    """The tokens of a document's pieces for one tokenizer: a sum, and the pieces not yet in it."""

    __slots__ = ("_missing", "_name", "_total")

    def __init__(self, name: str, pieces: Iterable[Piece]) -> None:
        self._name = name
        self._total = 0
        self._missing = dict.fromkeys(pieces)

    def replace(self, old: Iterable[Piece], new: Iterable[Piece]) -> None:
        """Replace some pieces by others."""
        for piece in old:
            if piece in self._missing:
                del self._missing[piece]
            else:
                self._total -= piece.counts[self._name]
        self._missing.update(dict.fromkeys(new))

    def missing(self) -> Collection[Piece]:
        """Return the uncounted pieces, after adding those counted since to the sum."""
        name, missing = self._name, self._missing
        for piece in [piece for piece in missing if name in piece.counts]:
            self._total += piece.counts[name]
            del missing[piece]
        return missing.keys()

    def total(self) -> int | None:
        """Return the tokens of all pieces; None while some are uncounted."""
        return None if self.missing() else self._total


class _RunningSums:
    """Sums of one number per piece: element k is the sum over the first k pieces."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = list(numbers)
        self._sums = [0]
        self.total = sum(self._numbers)

    def replace(self, first: int, end: int, new: list[int]) -> None:
        """Replace the numbers from index `first` to before `end`."""
        self.total += sum(new) - sum(self._numbers[first:end])
        self._numbers[first:end] = new
        del self._sums[first + 1 :]

    def before(self, index: int) -> int:
        """Return the sum over the pieces before `index`."""
        while len(self._sums) <= index:
            self._extend()
        return self._sums[index]

    def at_least(self, amount: int) -> int:
        """Return the first k at which the sum reaches `amount`, or one more than the pieces."""
        while self._sums[-1] < amount and len(self._sums) <= len(self._numbers):
            self._extend()
        return bisect_left(self._sums, amount)

    def above(self, amount: int) -> int:
        """Return the first k at which the sum exceeds `amount`, or one more than the pieces."""
        while self._sums[-1] <= amount and len(self._sums) <= len(self._numbers):
            self._extend()
        return bisect_right(self._sums, amount)

    def _extend(self) -> None:
        known = len(self._sums) - 1
        following = self._numbers[known : known + _STRETCH]
        self._sums[known:] = accumulate(following, initial=self._sums[known])


class PieceList:
    """The pieces of a document, at least one, with its length, lines and token counts."""

    def __init__(self, pieces: Sequence[Piece], encoding: Encoding) -> None:
        """Sum up the pieces' lengths, `encoding` being the client's. 10 ms for 10 MB."""
        self._pieces, self._encoding = list(pieces), encoding
        self._tallies: dict[str, TokenTally] = {}
        self._offsets = _RunningSums([len(piece.text) for piece in pieces])
        self._lines = _RunningSums([piece.line_ends for piece in pieces])
        self._units = _RunningSums([units(piece.text, encoding) for piece in pieces])

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def characters(self) -> int:
        """The length in Unicode code points."""
        return self._offsets.total

    @property
    def line_ends(self) -> int:
        """The number of line ends."""
        return self._lines.total

    def snapshot(self) -> tuple[Piece, ...]:
        """Return the pieces at this moment; no edit changes them."""
        return tuple(self._pieces)

    def tally(self, name: str) -> TokenTally:
        """Return the sum of the pieces' counts by the tokenizer `name`."""
        if name not in self._tallies:
            self._tallies[name] = TokenTally(name, self._pieces)
        return self._tallies[name]

    def at(self, index: int) -> PiecePlace:
        """Return the piece with this index, which must exist."""
        return PiecePlace(
            index, self._pieces[index], self._offsets.before(index), self._lines.before(index)
        )

    def at_offset(self, offset: int) -> PiecePlace:
        """Return the piece that holds the character after `offset`, or the last piece."""
        return self.at(min(self._offsets.above(offset), len(self)) - 1)

    def before_offset(self, offset: int) -> PiecePlace:
        """Return the piece that holds the character before `offset`, or the first piece."""
        return self.at(max(0, self._offsets.at_least(offset) - 1))

    def before_line(self, line: int) -> PiecePlace:
        """Return the piece that holds the line end before line `line`, which is at least 1."""
        return self.at(self._lines.at_least(line) - 1)

    def between(self, first: int, last: int) -> list[Piece]:
        """Return the pieces from index `first` to index `last`, both included."""
        return self._pieces[first : last + 1]

    def units(self, first: int, last: int) -> int:
        """Return the length in code units of the pieces from `first` to before `last`."""
        return self._units.before(last) - self._units.before(first)

    def skip(self, index: int, units: int) -> tuple[int, int]:
        """Pass whole pieces from `index` on that have no line end and fit into `units`.

        Returns:
            The index after them, and the units that are left.
        """
        before = self._units.before(index)
        by_line = self._lines.above(self._lines.before(index)) - 1
        by_units = self._units.above(before + units) - 1
        passed = min(by_line, by_units, len(self))
        return passed, units - (self._units.before(passed) - before)

    def splice(self, first: int, last: int, new: Sequence[Piece]) -> None:
        """Replace the pieces from index `first` to index `last` by `new`."""
        end = last + 1
        old = self._pieces[first:end]
        self._pieces[first:end] = new
        self._offsets.replace(first, end, [len(piece.text) for piece in new])
        self._lines.replace(first, end, [piece.line_ends for piece in new])
        self._units.replace(first, end, [units(piece.text, self._encoding) for piece in new])
        for tally in self._tallies.values():
            tally.replace(old, new)
