"""The one base class of everything that turns text into a number of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.counting.count import Measure, Method

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.text.cuts import Cuts


INLINE_CHARACTERS = 4_096
"""What an event loop may tokenize: under a millisecond of ordinary text with the slowest engine."""


SAMPLED = 4_096
"""Characters of a text that show its kind: the count of a keystroke asks too."""


class Tokenizer(ABC):
    """One way of turning text into a number of tokens. Thread-safe; never raises on any `str`."""

    name: str
    """The field's name of the vocabulary, such as `o200k_base`, or of the estimator."""
    method: Method = "exact"
    """How its counts are made."""
    error_percent: float | None = 0.0
    """Half of the band of its counts in percent, for any text; None when it was not measured."""
    cuts: Cuts = "none"
    """Which cuts of a text leave its counts exact (see `sidecar.text.cuts.Cuts`)."""
    inline_characters: int = INLINE_CHARACTERS
    """How many characters of ordinary text it counts in under a millisecond."""

    @abstractmethod
    def count(self, text: str) -> int:
        """Tokens in `text`, special tokens written in it counted as ordinary characters."""

    @property
    def basis(self) -> Tokenizer:
        """What counts the pieces of a text: itself, or the tokenizer whose counts it scales."""
        return self

    def scale(self, tokens: int) -> int:
        """Its own number for a sum of its basis' counts."""
        return tokens

    def unscaled(self, allowance: int) -> int:
        """The most tokens of the basis that are, scaled, no more than `allowance`."""
        return max(0, allowance)

    def slow(self, text: str) -> bool:  # noqa: ARG002
        """Whether `text`, however short, may take longer than `inline_characters` promises."""
        return False

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, counted as a text of its own."""
        return [self.count(text) for text in texts]

    def first_bytes(self, text: str, tokens: int) -> bytes | None:  # noqa: ARG002
        """The UTF-8 bytes of the first `tokens` tokens of a text that is not cut further.

        None where it cannot show its tokens.
        """
        return None

    def truncated(self, text: str, max_tokens: int, mode: Truncation) -> str | None:  # noqa: ARG002
        """What it keeps of a text itself, in no more than `max_tokens`; None where it cuts none."""
        return None

    def band(self, tokens: int, sample: str = "") -> float | None:  # noqa: ARG002
        """Half of the 95 % band of a count, in percent.

        Args:
            tokens: the count.
            sample: how the text begins; a text of unknown kind where nothing is given.
        """
        return self.error_percent

    def measure(self, tokens: int, text: str = "") -> Measure:
        """Return a count of this tokenizer with its method and band; 0 tokens are exact.

        `text`: what was counted, or how it begins; the band depends on its kind and size.
        """
        if tokens == 0:
            return Measure(0, "exact", self.name, 0.0)
        return Measure(tokens, self.method, self.name, self.band(tokens, text[:SAMPLED]))
