"""The interface of all tokenizers and estimators, and counting in pieces.

Each piece caches its token count. Pieces are immutable, so any thread can count them while the
document is edited, and no count becomes stale. Text is split only if the tokenizer has safe split
points. Each piece is counted with the tokenizer's `base`, and the sum of the counts is scaled once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sidecar.counting.count_result import Measure, Method
from sidecar.errors import WorkStoppedError
from sidecar.text.document import Piece, SplitText

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation

INLINE_CHARACTERS = 8_192
"""Maximum number of characters that the event loop may tokenize at once. This takes about a
millisecond with any engine.
"""
WHOLE_INLINE_CHARACTERS = 1_000
"""The same for a tokenizer without safe split points, which always counts the whole text."""


SAMPLE_CHARACTERS = 4_096
"""Number of characters at the beginning of the text that determine its kind."""


class Tokenizer(ABC):
    """Counts the tokens of text. Thread-safe. No method raises for any `str`.

    Attributes:
        name: The vocabulary's common name, such as `o200k_base`, or the estimator's name.
        method: How the counts are made.
        error_percent: The error band (±%) that applies to any text, or None if it was not measured.
        has_safe_cuts: Whether the counts of two parts add up to the count of the whole text, if the
            text is split where `sidecar.text.document` allows.
        inline_characters: Number of characters of ordinary text that are counted in about a
            millisecond.
    """

    name: str
    method: Method = "exact"
    error_percent: float | None = 0.0
    has_safe_cuts: bool = False
    inline_characters: int = INLINE_CHARACTERS

    @abstractmethod
    def count(self, text: str) -> int:
        """Return the text's token count. Special tokens are counted as ordinary characters."""

    @property
    def base(self) -> Tokenizer:
        """The tokenizer that counts pieces. This is either the tokenizer whose counts are scaled,
        or `self`.
        """
        return self

    def scale(self, tokens: int) -> int:
        """Convert a sum of `base` counts to a count by this tokenizer."""
        return tokens

    def unscale(self, allowance: int) -> int:
        """Return the largest `base` count that scales to at most `allowance`."""
        above = 1
        while self.scale(above) <= allowance:
            above *= 2
        return max(0, bisect_right(range(above), allowance, key=self.scale) - 1)

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the token count of each string."""
        return [self.count(text) for text in texts]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:  # noqa: ARG002
        """Return the UTF-8 bytes of the first `tokens` tokens in text, or None if unsupported."""
        return None

    def truncate(self, text: str, max_tokens: int, mode: Truncation) -> str | None:  # noqa: ARG002
        """Return text shortened to `max_tokens` tokens, or None if unsupported."""
        return None

    def band(self, tokens: int, sample: str = "") -> float | None:  # noqa: ARG002
        """Return the 95 % error band of a count, in percent.

        Args:
            tokens: The count.
            sample: The beginning of the text; "" if the kind of text is unknown.
        """
        return self.error_percent

    def measure_base(self, base_tokens: int, text: str = "") -> Measure:
        """Scale a sum of `base` counts, and return the result with its method and error band."""
        return self.measure(self.scale(base_tokens), text)

    def measure(self, tokens: int, text: str = "") -> Measure:
        """Return a count with its method and error band. A count of 0 is always exact.

        Args:
            tokens: The count.
            text: The text or its beginning, which determines the error band.
        """
        if tokens == 0:
            return Measure(0, "exact", self.name, 0.0)
        return Measure(tokens, self.method, self.name, self.band(tokens, text[:SAMPLE_CHARACTERS]))


BATCH = 64
"""Number of pieces to count at a time, between two checks whether to stop. This takes 3 ms."""


def countable_pieces(text: SplitText, tokenizer: Tokenizer) -> Sequence[Piece]:
    """Return the pieces of the text that a tokenizer can count separately.

    Pieces are immutable, so another thread may count them while the document is edited.
    """
    return text.pieces if tokenizer.has_safe_cuts else (text.whole,)


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
