"""How a conversation counts for one model: its tokenizer, with what its format adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting import messages
from sidecar.counting.count import Measure
from sidecar.counting.incremental import basis_of, count_pieces, count_text, cuts_of, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.context.counter import Truncation
    from sidecar.context.turns import Turn
    from sidecar.counting.count import Tokenizer
    from sidecar.text.pieces import Piece


class ModelCounter:
    """Counts texts, messages and tools for `model`; blocking, for worker threads."""

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.key = model
        self._tokenizer = tokenizer
        self.priming = messages.priming_tokens(model)

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name, for a count of nothing."""
        return self._tokenizer.name

    def text(self, text: str) -> Measure:
        """Tokens of a text on its own."""
        return self._measure(count_text(text, self._tokenizer))

    def pieces(self, pieces: Sequence[Piece]) -> Measure:
        """Tokens of an open document's snapshot: only what is new is tokenized."""
        tokenizer = self._tokenizer
        basis = basis_of(tokenizer)
        if cuts_of(basis) != "lines":
            return self.text("".join(piece.text for piece in pieces))
        return self._measure(scaled(count_pieces(pieces, basis), tokenizer))

    def message(self, turn: Turn) -> Measure:
        """Tokens of a message with what the model's format puts around it."""
        return messages.message_tokens(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Tokens of a set of tool schemas as the model sees them."""
        return messages.tools_tokens(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """`text` cut to `max_tokens` by this counter; the text itself where it fits."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text

    def _measure(self, tokens: int) -> Measure:
        tokenizer = self._tokenizer
        if tokens == 0:
            return Measure(0, "exact", tokenizer.name, 0.0)
        return Measure(tokens, tokenizer.method, tokenizer.name, tokenizer.error_percent)
