"""Counts documents incrementally, by caching each piece's token count.

Pieces are immutable, so any thread can count them while the document is edited, and no count
becomes stale. Text is split only if the tokenizer has safe split points. Each piece is counted with
the tokenizer's `base`, and the sum of the counts is scaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from sidecar.errors import WorkStoppedError

if TYPE_CHECKING:
    from sidecar.counting.count_result import Measure
    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece, SplitText


BATCH = 64
"""Number of pieces to count at a time, between two checks whether to stop. This takes 3 ms."""


def countable_pieces(text: SplitText, tokenizer: Tokenizer) -> Sequence[Piece]:
    """Return the pieces of the text that a tokenizer can count separately.

    Pieces are immutable, so another thread may count them while the document is edited.
    """
    return text.pieces if tokenizer.has_safe_cuts else (text.whole,)


def count_if_quick(doc: TextDocument, base: Tokenizer, most: int) -> int | None:
    """Return a document's token count, or None if more than `most` characters are uncounted.

    The tokenizer must have safe split points.
    """
    missing = doc.uncounted_pieces(base.name)
    if missing and count_uncounted_characters(missing, base.name, most) > most:
        return None
    count_pieces([*missing], base)
    return cast("int", doc.token_total(base.name))


def count_uncounted_characters(pieces: Iterable[Piece], name: str, enough: int) -> int:
    """Return the number of characters in the pieces that have no cached count.

    Args:
        pieces: The pieces.
        name: The tokenizer's name.
        enough: Counting stops once the number of characters exceeds this value.
    """
    total = 0
    for piece in pieces:
        if name not in piece.counts:
            total += len(piece)
            if total > enough:
                break
    return total


def count_pieces(
    pieces: Collection[Piece],
    tokenizer: Tokenizer,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Return the pieces' total token count. Only pieces without a cached count are tokenized.

    Args:
        pieces: The pieces.
        tokenizer: Counts the pieces.
        should_stop: Called before each batch that must be tokenized. Returns whether to stop.

    Raises:
        WorkStoppedError: `should_stop` returned true. Earlier counts remain cached.
    """
    name = tokenizer.name
    uncounted = [piece for piece in pieces if name not in piece.counts]
    for start in range(0, len(uncounted), BATCH):
        if should_stop is not None and should_stop():
            raise WorkStoppedError
        batch = uncounted[start : start + BATCH]
        counts = tokenizer.count_many([piece.text for piece in batch])
        for piece, tokens in zip(batch, counts, strict=True):
            piece.counts[name] = tokens
    return sum([piece.counts[name] for piece in pieces])


def measure_text(text: str, tokenizer: Tokenizer) -> Measure:
    """Return the text's token count, with its method and error band."""
    return tokenizer.measure_base(tokenizer.base.count(text), text)
