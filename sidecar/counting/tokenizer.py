"""The base class of all tokenizers and estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.counting.count import Measure, Method

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation


INLINE_CHARACTERS = 8_192
"""Characters that the event loop may tokenize: about a millisecond with any engine."""


SAMPLE_CHARACTERS = 4_096
"""Characters that determine a text's kind; few, because each keystroke's count needs it."""


class Tokenizer(ABC):
    """Counts tokens. Thread-safe; never raises on any `str`."""

    name: str
    """The vocabulary's usual name, such as `o200k_base`, or the estimator's."""
    method: Method = "exact"
    """The method of its counts."""
    error_percent: float | None = 0.0
    """Half of its error band in percent, for any text; None if not measured."""
    has_safe_cuts: bool = False
    """Whether counts of the parts add up where `sidecar.text.cuts` cuts a text."""
    inline_characters: int = INLINE_CHARACTERS
    """Characters of ordinary text that it counts in about a millisecond."""

    @abstractmethod
    def count(self, text: str) -> int:
        """Count the tokens of `text`; special tokens in it are ordinary characters."""

    @property
    def base(self) -> Tokenizer:
        """The tokenizer that counts pieces: this one, or the one whose counts it scales."""
        return self

    def scale(self, tokens: int) -> int:
        """Return this tokenizer's count for a sum of counts by `base`."""
        return tokens

    def unscale(self, allowance: int) -> int:
        """Return the largest count by `base` that scales to at most `allowance`."""
        return max(0, allowance)

    def is_slow(self, text: str) -> bool:  # noqa: ARG002
        """Return whether `text`, however short, may take longer than a millisecond."""
        return False

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, counted separately."""
        return [self.count(text) for text in texts]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:  # noqa: ARG002
        """Return the UTF-8 bytes of the first `tokens` tokens of an uncut text.

        Returns:
            None if the tokenizer cannot return its tokens.
        """
        return None

    def truncated(self, text: str, max_tokens: int, mode: Truncation) -> str | None:  # noqa: ARG002
        """Return the text cut to `max_tokens`, or None if the tokenizer has no way of cutting."""
        return None

    def band(self, tokens: int, sample: str = "") -> float | None:  # noqa: ARG002
        """Return half of the 95 % band of a count, in percent.

        Args:
            tokens: The count.
            sample: How the text begins; "" for a text of unknown kind.
        """
        return self.error_percent

    def measure_base(self, base_tokens: int, text: str = "") -> Measure:
        """Return the scaled count, with method and band, for a sum of the base's counts."""
        return self.measure(self.scale(base_tokens), text)

    def measure(self, tokens: int, text: str = "") -> Measure:
        """Return a count with its method and band; 0 tokens are exact.

        Args:
            tokens: The count.
            text: The text or its beginning; the band depends on its kind and size.
        """
        if tokens == 0:
            return Measure(0, "exact", self.name, 0.0)
        return Measure(tokens, self.method, self.name, self.band(tokens, text[:SAMPLE_CHARACTERS]))
