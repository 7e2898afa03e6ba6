"""The base class of all tokenizers and estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.counting.count import Measure, Method

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation


INLINE_CHARACTERS = 8_192
"""How many characters the event loop may tokenize: about a millisecond with any engine."""


SAMPLE_CHARACTERS = 4_096
"""How many characters determine a text's kind."""


class Tokenizer(ABC):
    """Counts tokens. Thread-safe; never raises on any `str`."""

    name: str
    """The vocabulary's usual name, such as `o200k_base`, or the estimator's."""
    method: Method = "exact"
    error_percent: float | None = 0.0
    """Error band (±%) for any text, or None if not measured."""
    has_safe_cuts: bool = False
    """Whether counts add up where `sidecar.text.cuts` cuts a text."""
    inline_characters: int = INLINE_CHARACTERS
    """How many characters of ordinary text it counts in about a millisecond."""

    @abstractmethod
    def count(self, text: str) -> int:
        """Count the tokens of `text`. Special tokens in it are ordinary characters."""

    @property
    def base(self) -> Tokenizer:
        """The tokenizer that counts pieces: this one, or the one whose counts it scales."""
        return self

    def scale(self, tokens: int) -> int:
        """Return this tokenizer's count for a sum of `base`'s counts."""
        return tokens

    def unscale(self, allowance: int) -> int:
        """Return the largest count by `base` that scales to at most `allowance`."""
        return max(0, allowance)

    def is_slow(self, text: str) -> bool:  # noqa: ARG002
        """Return whether `text` may take longer than a millisecond, however short it is."""
        return False

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, counted separately."""
        return [self.count(text) for text in texts]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:  # noqa: ARG002
        """Return the UTF-8 bytes of a text's first `tokens` tokens, or None if that is not
        possible."""
        return None

    def truncated(self, text: str, max_tokens: int, mode: Truncation) -> str | None:  # noqa: ARG002
        """Return the text cut to `max_tokens`, or None if the tokenizer cannot cut texts."""
        return None

    def band(self, tokens: int, sample: str = "") -> float | None:  # noqa: ARG002
        """Return the 95 % error band of a count, in percent.

        Args:
            tokens: The count.
            sample: The beginning of the text; "" for a text of unknown kind.
        """
        return self.error_percent

    def measure_base(self, base_tokens: int, text: str = "") -> Measure:
        """Scale a sum of the base's counts, and add method and error band."""
        return self.measure(self.scale(base_tokens), text)

    def measure(self, tokens: int, text: str = "") -> Measure:
        """Return a count with its method and error band. 0 tokens are exact.

        Args:
            tokens: The count.
            text: The text or its beginning, whose kind and size determine the band.
        """
        if tokens == 0:
            return Measure(0, "exact", self.name, 0.0)
        return Measure(tokens, self.method, self.name, self.band(tokens, text[:SAMPLE_CHARACTERS]))
