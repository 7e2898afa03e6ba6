"""A document's pieces in order: where each begins, and what is known of their token counts.

The pieces stand in blocks of a few each, and each block knows the offsets and lines of its own
pieces only. Finding, reading and replacing pieces touches the blocks at the place and one number
a block beside it, so that an edit costs the same at the start as at the end of a long document.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sidecar.text.pieces import Piece
    from sidecar.text.positions import Encoding

BLOCK_PIECES = 8
"""How many pieces a block holds at most."""


class PieceBlock:
    """A few neighbouring pieces. `offsets` (in code points) and `lines` give what lies before each
    of them in the block, and last what the whole block holds."""

    __slots__ = ("_units", "lines", "offsets", "pieces")

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        self.offsets = [*accumulate([len(piece.text) for piece in pieces], initial=0)]
        self.lines = [*accumulate([piece.line_ends for piece in pieces], initial=0)]
        self._units: dict[Encoding, int] = {}

    def units(self, encoding: Encoding) -> int:
        """The length in code units of `encoding`."""
        if encoding not in self._units:
            self._units[encoding] = sum([piece.units(encoding) for piece in self.pieces])
        return self._units[encoding]


class PiecePlace(NamedTuple):
    """A piece, with its index in the list and what lies before it in the document."""

    number: int
    piece: Piece
    offset: int
    line: int


class TokenTally:
    """The tokens of a document's pieces for one tokenizer: a sum, and the pieces not in it yet."""

    __slots__ = ("_missing", "_name", "_total")

    def __init__(self, name: str, pieces: Iterable[Piece]) -> None:
        self._name = name
        self._total = 0
        self._missing = dict.fromkeys(pieces)

    def replace(self, old: Iterable[Piece], new: Iterable[Piece]) -> None:
        """Take some pieces out and put others in."""
        for piece in old:
            if piece in self._missing:
                del self._missing[piece]
            else:
                self._total -= piece.counts[self._name]
        self._missing.update(dict.fromkeys(new))

    def missing(self) -> Collection[Piece]:
        """The pieces whose tokens are not known; those that were counted since join the sum."""
        name, missing = self._name, self._missing
        for piece in [piece for piece in missing if name in piece.counts]:
            self._total += piece.counts[name]
            del missing[piece]
        return missing.keys()

    def total(self) -> int | None:
        """The tokens of all pieces; None while some are not known."""
        return None if self.missing() else self._total


class PieceList:
    """At least one piece, in blocks. Indices are those of a flat list of the pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._tallies: dict[str, TokenTally] = {}
        self._blocks: list[PieceBlock] = []
        # What each block holds, and what lies before each: pieces, characters, line ends.
        self._sizes: list[int] = []
        self._lengths: list[int] = []
        self._line_ends: list[int] = []
        self._starts, self._offsets, self._lines = [0], [0], [0]
        self._set_blocks(0, 0, _blocks(pieces))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Piece]:
        return in_order(self._blocks)

    @property
    def characters(self) -> int:
        """The length in Unicode code points."""
        return self._offsets[-1]

    @property
    def line_ends(self) -> int:
        """How many line ends there are."""
        return self._lines[-1]

    def frozen(self) -> tuple[PieceBlock, ...]:
        """The blocks as they are now, which no edit changes: an eighth of the pieces to copy."""
        return tuple(self._blocks)

    def tally(self, name: str) -> TokenTally:
        """What is known of the pieces' counts by the tokenizer `name`."""
        if name not in self._tallies:
            self._tallies[name] = TokenTally(name, self)
        return self._tallies[name]

    # Finding

    def at(self, index: int) -> PiecePlace:
        """The piece with this index, from 0 to the length less one."""
        return self._place(bisect_right(self._starts, index) - 1, index)

    def at_offset(self, offset: int) -> PiecePlace:
        """The piece that the character after `offset` is in, or the last piece."""
        number = min(bisect_right(self._offsets, offset), len(self._blocks)) - 1
        block = self._blocks[number]
        local = bisect_right(block.offsets, offset - self._offsets[number])
        return self._place(number, self._starts[number] + min(local, len(block.pieces)) - 1)

    def before_offset(self, offset: int) -> PiecePlace:
        """The piece that the character before `offset` is in, or the first piece."""
        number = max(0, bisect_left(self._offsets, offset) - 1)
        local = bisect_left(self._blocks[number].offsets, offset - self._offsets[number])
        return self._place(number, self._starts[number] + max(0, local - 1))

    def before_line(self, line: int) -> PiecePlace:
        """The piece that holds the line end before line `line`, which is at least 1."""
        number = bisect_left(self._lines, line) - 1
        local = bisect_left(self._blocks[number].lines, line - self._lines[number])
        return self._place(number, self._starts[number] + local - 1)

    def between(self, first: int, last: int) -> list[Piece]:
        """The pieces from index `first` to index `last`, both included."""
        if first == last:
            return [self.at(first).piece]
        number, end = (bisect_right(self._starts, index) - 1 for index in (first, last))
        touched = self._blocks[number : end + 1]
        pieces = [piece for block in touched for piece in block.pieces]
        start = self._starts[number]
        return pieces[first - start : last - start + 1]

    def _place(self, number: int, index: int) -> PiecePlace:
        block = self._blocks[number]
        local = index - self._starts[number]
        offset, line = block.offsets[local], block.lines[local]
        return PiecePlace(
            index, block.pieces[local], self._offsets[number] + offset, self._lines[number] + line
        )

    # Long lines

    def units(self, first: int, last: int, encoding: Encoding) -> int:
        """The length of the pieces from index `first` to before index `last`, in code units."""
        total = 0
        while first < last:
            number = bisect_right(self._starts, first) - 1
            start, end = self._starts[number], self._starts[number + 1]
            if start == first and end <= last:
                total += self._blocks[number].units(encoding)
            else:
                pieces = self._blocks[number].pieces[first - start : last - start]
                total += sum([piece.units(encoding) for piece in pieces])
            first = end
        return total

    def skip(self, index: int, units: int, encoding: Encoding) -> tuple[int, int]:
        """Pass whole pieces from `index` on while they have no line end and fit into `units`.

        Returns the index after them, and what is left of the units.
        """
        while index < len(self):
            number = bisect_right(self._starts, index) - 1
            block = self._blocks[number]
            local = index - self._starts[number]
            if local == 0 and block.lines[-1] == 0 and block.units(encoding) <= units:
                units -= block.units(encoding)
                index = self._starts[number + 1]
                continue
            for piece in block.pieces[local:]:
                length = piece.units(encoding)
                if piece.line_ends or length > units:
                    return index, units
                index, units = index + 1, units - length
        return index, units

    # Changing

    def splice(self, first: int, last: int, new: Sequence[Piece]) -> None:
        """Put `new` in the place of the pieces from index `first` to index `last`."""
        if first == last and len(new) == 1:
            self._swap(first, new[0])
            return
        number, end = (bisect_right(self._starts, index) - 1 for index in (first, last))
        start = self._starts[number]
        pieces = [piece for block in self._blocks[number : end + 1] for piece in block.pieces]
        old = pieces[first - start : last - start + 1]
        pieces[first - start : last - start + 1] = new
        if len(pieces) < BLOCK_PIECES // 2 and end + 1 < len(self._blocks):
            end += 1  # small blocks are joined, so that there are never many of them
            pieces += self._blocks[end].pieces
        self._set_blocks(number, end + 1, _blocks(pieces))
        for tally in self._tallies.values():
            tally.replace(old, new)

    def _swap(self, index: int, new: Piece) -> None:
        """Put one piece in the place of another, which is what an edit does as a rule."""
        number = bisect_right(self._starts, index) - 1
        pieces = [*self._blocks[number].pieces]
        local = index - self._starts[number]
        old, pieces[local] = pieces[local], new
        self._blocks[number] = PieceBlock(tuple(pieces))
        for sums, totals, grown in (
            (self._offsets, self._lengths, len(new.text) - len(old.text)),
            (self._lines, self._line_ends, new.line_ends - old.line_ends),
        ):
            if grown:
                totals[number] += grown
                sums[number + 1 :] = [before + grown for before in sums[number + 1 :]]
        for tally in self._tallies.values():
            tally.replace((old,), (new,))

    def _set_blocks(self, first: int, end: int, new: list[PieceBlock]) -> None:
        """Replaces blocks, and sums up again what lies before each block from there on."""
        self._blocks[first:end] = new
        self._sizes[first:end] = [len(block.pieces) for block in new]
        self._lengths[first:end] = [block.offsets[-1] for block in new]
        self._line_ends[first:end] = [block.lines[-1] for block in new]
        for sums, totals in (
            (self._starts, self._sizes),
            (self._offsets, self._lengths),
            (self._lines, self._line_ends),
        ):
            sums[first:] = accumulate(totals[first:], initial=sums[first])


def in_order(blocks: Iterable[PieceBlock]) -> Iterator[Piece]:
    """The pieces of blocks."""
    return chain.from_iterable([block.pieces for block in blocks])


def _blocks(pieces: Sequence[Piece]) -> list[PieceBlock]:
    """The pieces in blocks of about the same size."""
    if 0 < len(pieces) <= BLOCK_PIECES:
        return [PieceBlock(tuple(pieces))]
    count = -(-len(pieces) // BLOCK_PIECES)
    bounds = [len(pieces) * number // max(1, count) for number in range(count + 1)]
    return [PieceBlock(tuple(pieces[start:end])) for start, end in pairwise(bounds)]
