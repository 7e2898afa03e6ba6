"""How a conversation counts for one model: its tokenizer, with what its format adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.counting import fit as fitting
from sidecar.counting import messages
from sidecar.counting.incremental import measure_text

if TYPE_CHECKING:
    from sidecar.config.settings import Truncation
    from sidecar.counting.count import Measure
    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.messages.turns import Turn


class ModelCounter:
    """Counts texts, messages and tools for `model`; blocking, for worker threads."""

    def __init__(self, model: str, tokenizer: Tokenizer, server: str | None = None) -> None:
        self.key = model
        self._tokenizer, self._server = tokenizer, server
        self.priming = messages.priming_tokens(model)

    @property
    def tokenizer(self) -> str:
        """What counts, for a count of nothing: the model's server where that counts the turns."""
        return self._server or self._tokenizer.name

    @property
    def basis(self) -> str:
        """The tokenizer that counts here, whoever counts the turns."""
        return self._tokenizer.name

    def is_like(self, other: ModelCounter) -> bool:
        """Whether the other counts as this one; a server counts whatever is set."""
        return self._server is not None or self.basis == other.basis

    def served_by(self, server: str) -> ModelCounter:
        """The same for a conversation whose texts this server counts."""
        return ModelCounter(self.key, self._tokenizer, server)

    def text(self, text: str) -> Measure:
        """Tokens of a text on its own."""
        return measure_text(text, self._tokenizer)

    def message(self, turn: Turn) -> Measure:
        """Tokens of a message with what the model's format puts around it."""
        return messages.message_tokens(msgspec.to_builtins(turn), self.key, self._tokenizer)

    def around(self, turn: Turn, counted: int) -> Measure:
        """The same where the model's server has counted the message's texts: so many tokens."""
        message = msgspec.to_builtins(turn)
        return messages.message_tokens(message, self.key, self._tokenizer, counted)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Tokens of a set of tool schemas as the model sees them."""
        return messages.tools_tokens(tools, self.key, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """`text` cut to `max_tokens` by this counter; the text itself where it fits."""
        return fitting.fit(text, max_tokens, truncation, self._tokenizer).text
