"""Counts of documents that cost what an edit costs: pieces remember theirs, and they add up.

Pieces never change, so a count can be filled in by any thread while the document is edited: no
result can be stale. How far a tokenizer lets a text be cut, its `cuts` says. Pieces are counted by
its `basis`, and the sum is scaled, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from sidecar.text.pieces import Piece, Pieced, pieces_of, word_pieces

if TYPE_CHECKING:
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.text.document import TextDocument


SLOW = 1_000_000
SLICE_CHARACTERS = 32_768
"""Off the event loop, the other threads get their turn after so many: a millisecond or so."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """A count was given up because `should_stop` returned true. What was counted is remembered."""


def units_of(text: Pieced, tokenizer: Tokenizer) -> Sequence[Piece]:
    """What to count of a text for a tokenizer: immutable, their counts add up.

    Safe to count in another thread while a document is edited.
    """
    cuts = tokenizer.cuts
    if cuts == "none":
        return (text.whole,)
    return text.pieces if cuts == "lines" else word_pieces(text.pieces)


def soon_counted(doc: TextDocument, basis: Tokenizer, most: int) -> int | None:
    """Return a document's tokens where that takes tokenizing `most` characters or fewer, else None.

    For tokenizers whose texts may be cut at lines.
    """
    missing = doc.missing(basis.name)
    if missing and pending_in(missing, basis, most) > most:
        return None
    for piece in [*missing]:
        _count_piece(piece, basis, None)
    return cast("int", doc.total(basis.name))


def pending_in(pieces: Iterable[Piece], basis: Tokenizer, enough: int) -> int:
    """How many characters of these pieces are to be tokenized.

    Where that is more than `enough`, any number above it. A piece that the tokenizer says is slow
    counts as a million more: that is nothing to wait for on an event loop.
    """
    needed: set[Piece] = set()
    total = 0
    for piece in pieces:
        for part in piece.needs(basis.name):
            if part not in needed:
                needed.add(part)
                total += len(part.text) + SLOW * basis.slow(part.text)
        if total > enough:
            break
    return total


def count_pieces(
    pieces: Collection[Piece],
    tokenizer: Tokenizer,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """The sum over pieces, each counted at most once and then remembered.

    With `should_stop` (for work off the event loop) it is asked before each piece, and the other
    threads get their turn after each `SLICE_CHARACTERS`. Raises Stopped when it says so.
    """
    name = tokenizer.name
    turns = None if should_stop is None else _Turns(should_stop)
    for piece in [piece for piece in pieces if name not in piece.counts]:
        _count_piece(piece, tokenizer, turns)
    return sum([piece.counts[name] for piece in pieces])


class _Turns:
    """Whether a long count goes on, and when the other threads get their turn: giving the GIL away
    costs a tenth of what a piece does, so it is not done at each."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._since = 0

    def take(self, characters: int) -> None:
        """Before so many are tokenized. Raises Stopped."""
        if self._should_stop():
            raise Stopped
        if self._since > SLICE_CHARACTERS:
            self._since = 0
            time.sleep(0)  # gives the GIL away: an engine may have held it for all of the slice
        self._since += characters


def _count_piece(piece: Piece, tokenizer: Tokenizer, turns: _Turns | None) -> None:
    name = tokenizer.name
    for part in piece.needs(name):
        if turns is not None:
            turns.take(len(part))
        part.counts[name] = tokenizer.count(part.text)
    if name not in piece.counts and piece.origin is not None:
        piece.counts[name] = piece.origin.derived(name)


def measure_text(text: str, tokenizer: Tokenizer) -> Measure:
    """Count a text, scaled by what calibrates the tokenizer, with its method and band."""
    return tokenizer.measure(count_text(text, tokenizer), text)


def count_text(
    text: str, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None = None
) -> int:
    """Tokens of a text that is no document, in pieces where the tokenizer allows it.

    Raises Stopped when `should_stop` says so.
    """
    basis = tokenizer.basis
    if basis.cuts == "none":
        return tokenizer.count(text)
    pieces: Sequence[Piece] = pieces_of(text)
    if basis.cuts == "words":
        pieces = word_pieces(pieces)
    return tokenizer.scale(count_pieces(pieces, basis, should_stop))
