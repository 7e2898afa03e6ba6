"""Counts documents incrementally: pieces cache their counts, which add up.

Pieces never change, so any thread can count them while the document is edited, and no count
becomes stale. Texts are cut only for tokenizers with safe cuts. A tokenizer's `base` counts the
pieces, and their sum is scaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from sidecar.errors import WorkStoppedError
from sidecar.text.pieces import Piece, SplitText, split_pieces

if TYPE_CHECKING:
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.text.document import TextDocument


SLOW = 1_000_000
"""Added to the characters of a slow piece, so that the event loop does not count it."""


def countable_pieces(text: SplitText, tokenizer: Tokenizer) -> Sequence[Piece]:
    """Return the pieces of a text that a tokenizer can count separately.

    Pieces are immutable, so another thread may count them while the document is edited.
    """
    return text.pieces if tokenizer.has_safe_cuts else (text.whole,)


def count_if_quick(doc: TextDocument, base: Tokenizer, most: int) -> int | None:
    """Return a document's tokens, or None if more than `most` characters have no count yet.

    Only for tokenizers with safe cuts.
    """
    missing = doc.uncounted_pieces(base.name)
    if missing and count_uncounted_characters(missing, base, most) > most:
        return None
    count_pieces([*missing], base)
    return cast("int", doc.token_total(base.name))


def count_uncounted_characters(pieces: Iterable[Piece], base: Tokenizer, enough: int) -> int:
    """Return how many characters of these pieces must be tokenized.

    A piece that is slow for the tokenizer counts as a million more.

    Args:
        pieces: The pieces.
        base: The tokenizer.
        enough: Stop adding once the number exceeds this.
    """
    name, total = base.name, 0
    for piece in pieces:
        if name not in piece.counts:
            total += len(piece) + SLOW * base.is_slow(piece.text)
            if total > enough:
                break
    return total


def count_pieces(
    pieces: Collection[Piece],
    tokenizer: Tokenizer,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Return the sum over pieces, counting only those without a cached count.

    Args:
        pieces: The pieces.
        tokenizer: Counts them.
        should_stop: Checked before each piece.

    Raises:
        WorkStoppedError: `should_stop` returned true. Counts made so far are kept.
    """
    name = tokenizer.name
    for piece in pieces:
        if name not in piece.counts:
            if should_stop is not None and should_stop():
                raise WorkStoppedError
            piece.counts[name] = tokenizer.count(piece.text)
    return sum([piece.counts[name] for piece in pieces])


def measure_text(text: str, tokenizer: Tokenizer) -> Measure:
    """Return a text's calibrated count, with its method and error band."""
    return tokenizer.measure_base(count_text(text, tokenizer.base), text)


def count_text(
    text: str, tokenizer: Tokenizer, should_stop: Callable[[], bool] | None = None
) -> int:
    """Count a text that is not a document, in pieces where the tokenizer allows it.

    Raises:
        WorkStoppedError: `should_stop` returned true.
    """
    base = tokenizer.base
    if not base.has_safe_cuts:
        return tokenizer.count(text)
    return tokenizer.scale(count_pieces(split_pieces(text), base, should_stop))
