"""Counts of documents that cost what an edit costs: pieces remember theirs, and they add up.

Pieces never change, so a count can be filled in by any thread while the document is edited: no
result can be stale. How far a tokenizer lets a text be cut, its attribute `cuts` says (see
`sidecar.text.cuts.Cuts`; a tokenizer without it is counted in full). One that scales another's
counts has that as `basis`: pieces are counted by the basis and the sum is scaled, once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from sidecar.text.pieces import pieces_of, word_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.counting.count import Tokenizer
    from sidecar.text.cuts import Cuts
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.text.positions import Range


SLOW = 1_000_000


class Stopped(Exception):  # noqa: N818 - it is no error
    """A count was given up because `should_stop` said so. What was counted is remembered."""


def cuts_of(tokenizer: Tokenizer) -> Cuts:
    """Which cuts leave a tokenizer's counts exact."""
    return cast("Cuts", getattr(tokenizer, "cuts", "none"))


def units_of(doc: TextDocument, tokenizer: Tokenizer) -> Sequence[Piece]:
    """What to count of a document for a tokenizer: immutable, their counts add up.

    A snapshot: safe to count in another thread while the document is edited.
    """
    cuts = cuts_of(tokenizer)
    if cuts == "lines":
        return doc.pieces
    return word_pieces(doc.pieces) if cuts == "words" else (doc.whole,)


def basis_of(tokenizer: Tokenizer) -> Tokenizer:
    """What counts the pieces: the tokenizer itself, or the one whose counts it scales."""
    return cast("Tokenizer", getattr(tokenizer, "basis", tokenizer))


def scaled(tokens: int, tokenizer: Tokenizer) -> int:
    """The tokenizer's number for a sum of its basis' counts."""
    scale = getattr(tokenizer, "scale", None)
    return tokens if scale is None else int(scale(tokens))


def document_tokens(doc: TextDocument, tokenizer: Tokenizer) -> int:
    """Tokens of the whole document; only pieces that are new since the last count are tokenized."""
    return scaled(_document_tokens(doc, basis_of(tokenizer)), tokenizer)


def _document_tokens(doc: TextDocument, tokenizer: Tokenizer) -> int:
    if cuts_of(tokenizer) != "lines":
        return count_pieces(units_of(doc, tokenizer), tokenizer)
    count_pieces(doc.missing(tokenizer.name), tokenizer)
    return cast("int", doc.total(tokenizer.name))


def range_tokens(doc: TextDocument, span: Range, tokenizer: Tokenizer) -> int:
    """Tokens of a range counted as a text of its own, inner pieces remembered.

    Raises ValueError for a negative or reversed range.
    """
    basis = basis_of(tokenizer)
    if cuts_of(basis) == "lines":
        return scaled(count_pieces(doc.pieces_in(span), basis), tokenizer)
    return count_text(doc.slice(span), tokenizer)


def pending_characters(doc: TextDocument, tokenizer: Tokenizer) -> int:
    """How many characters a count of the document would have to tokenize now.

    A piece that the tokenizer says is slow (its method `slow`, where it has one) counts as a
    million more: that is nothing to wait for on an event loop.
    """
    tokenizer = basis_of(tokenizer)
    name = tokenizer.name
    pieces = doc.missing(name) if cuts_of(tokenizer) == "lines" else units_of(doc, tokenizer)
    needed = {part for piece in pieces for part in piece.needs(name)}
    slow = getattr(tokenizer, "slow", None)
    return sum([len(part) + SLOW * bool(slow and slow(part.text)) for part in needed])


def count_pieces(
    pieces: Sequence[Piece],
    tokenizer: Tokenizer,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """The sum over pieces, each counted at most once and then remembered.

    With `should_stop` (for work off the event loop) it is asked before each piece, and the other
    threads get their turn after each. Raises Stopped when it says so.
    """
    name = tokenizer.name
    for piece in [piece for piece in pieces if name not in piece.counts]:
        _count_piece(piece, tokenizer, should_stop)
    return sum([piece.counts[name] for piece in pieces])


def _count_piece(
    piece: Piece, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None
) -> None:
    name = tokenizer.name
    for part in piece.needs(name):
        part.counts[name] = _tokenize(part.text, tokenizer, should_stop)
    if name not in piece.counts and piece.origin is not None:
        others = [part.counts[name] for part in piece.origin.others]
        piece.counts[name] = piece.origin.counts[name] - sum(others)


def _tokenize(text: str, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None) -> int:
    if should_stop is not None:
        if should_stop():
            raise Stopped
        time.sleep(0)  # gives the GIL away: an engine may have held it for the last piece
    return tokenizer.count(text)


def count_text(
    text: str, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None = None
) -> int:
    """Tokens of a text that is no document, in pieces where the tokenizer allows it.

    Raises Stopped when `should_stop` says so.
    """
    basis = basis_of(tokenizer)
    if cuts_of(basis) == "none":
        return tokenizer.count(text)
    pieces: Sequence[Piece] = pieces_of(text)
    if cuts_of(basis) == "words":
        pieces = word_pieces(pieces)
    return scaled(count_pieces(pieces, basis, should_stop), tokenizer)
