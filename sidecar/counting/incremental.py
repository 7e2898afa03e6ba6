"""Counts of documents that cost what an edit costs: pieces remember theirs, and they add up.

Pieces never change, so any thread can fill in a count while the document is edited, and no result
can be stale. A tokenizer's `cuts` says where its texts may be cut. Its `basis` counts the pieces,
and the sum is scaled once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from sidecar.errors import WorkStoppedError
from sidecar.text.pieces import Piece, SplitText, split_pieces, word_pieces

if TYPE_CHECKING:
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.text.document import TextDocument


SLOW = 1_000_000
SLICE_CHARACTERS = 32_768
"""After so many characters, about a millisecond, a worker lets other threads run."""


def countable_pieces(text: SplitText, tokenizer: Tokenizer) -> Sequence[Piece]:
    """Return the pieces of a text that a tokenizer can count separately.

    Pieces are immutable, so another thread may count them while the document is edited.
    """
    cuts = tokenizer.cuts
    if cuts == "none":
        return (text.whole,)
    return text.pieces if cuts == "lines" else word_pieces(text.pieces)


def count_if_quick(doc: TextDocument, basis: Tokenizer, most: int) -> int | None:
    """Return a document's tokens if that takes tokenizing at most `most` characters, else None.

    For tokenizers whose texts may be cut at lines.
    """
    missing = doc.missing(basis.name)
    if missing and uncounted_characters(missing, basis, most) > most:
        return None
    for piece in [*missing]:
        _count_piece(piece, basis, None)
    return cast("int", doc.total(basis.name))


def uncounted_characters(pieces: Iterable[Piece], basis: Tokenizer, enough: int) -> int:
    """Return how many characters of these pieces must be tokenized.

    Pieces that are slow for the tokenizer count as a million more: they are too slow for an event
    loop.

    Args:
        pieces: The pieces.
        basis: The tokenizer.
        enough: Stop adding once the number exceeds this.
    """
    needed: set[Piece] = set()
    total = 0
    for piece in pieces:
        for part in piece.uncounted_parts(basis.name):
            if part not in needed:
                needed.add(part)
                total += len(part.text) + SLOW * basis.is_slow(part.text)
        if total > enough:
            break
    return total


def count_pieces(
    pieces: Collection[Piece],
    tokenizer: Tokenizer,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Return the sum over pieces, counting each at most once.

    Args:
        pieces: The pieces.
        tokenizer: Counts them.
        should_stop: For workers: checked before each piece. Other threads run after each slice.

    Raises:
        WorkStoppedError: `should_stop` returned true; the counts made so far are kept.
    """
    name = tokenizer.name
    slices = None if should_stop is None else _Slices(should_stop)
    for piece in [piece for piece in pieces if name not in piece.counts]:
        _count_piece(piece, tokenizer, slices)
    return sum([piece.counts[name] for piece in pieces])


class _Slices:
    """Lets other threads run now and then: releasing the GIL costs a tenth of counting a piece."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop
        self._since = 0

    def before_counting(self, characters: int) -> None:
        """Prepare to tokenize so many characters. Raises WorkStoppedError."""
        if self._should_stop():
            raise WorkStoppedError
        if self._since > SLICE_CHARACTERS:
            self._since = 0
            time.sleep(0)  # releases the GIL, which an engine may hold for the whole slice
        self._since += characters


def _count_piece(piece: Piece, tokenizer: Tokenizer, slices: _Slices | None) -> None:
    name = tokenizer.name
    for part in piece.uncounted_parts(name):
        if slices is not None:
            slices.before_counting(len(part))
        part.counts[name] = tokenizer.count(part.text)
    if name not in piece.counts and piece.origin is not None:
        piece.counts[name] = piece.origin.derive_count(name)


def measure_text(text: str, tokenizer: Tokenizer) -> Measure:
    """Return a text's count, calibrated, with its method and band."""
    return tokenizer.measure(count_text(text, tokenizer), text)


def count_text(
    text: str, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None = None
) -> int:
    """Count a text outside documents, in pieces where the tokenizer allows it.

    Raises:
        WorkStoppedError: `should_stop` returned true.
    """
    basis = tokenizer.basis
    if basis.cuts == "none":
        return tokenizer.count(text)
    pieces: Sequence[Piece] = split_pieces(text)
    if basis.cuts == "words":
        pieces = word_pieces(pieces)
    return tokenizer.scale(count_pieces(pieces, basis, should_stop))
