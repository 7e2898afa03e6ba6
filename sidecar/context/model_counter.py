"""The counter of a real model: its tokenizer, and what its format puts around messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.counting.count import Measure, Method
from sidecar.counting.fit import fit
from sidecar.counting.messages import message_tokens, priming_tokens, tools_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.context.counter import Truncation
    from sidecar.context.turns import Turn
    from sidecar.counting.count import Tokenizer

REMEMBERED = 4096
"""Counts of texts that are kept, so that what was counted elsewhere is there at once."""


class ModelCounter:
    """Counts for one model.

    Counts of longer texts are remembered (not the texts): a caller that must not wait counts them
    on a worker thread first, and then asks again.
    """

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = _Remembering(tokenizer)

    @property
    def key(self) -> str:
        """The model."""
        return self._model

    @property
    def tokenizer(self) -> str:
        """The tokenizer's name."""
        return self._tokenizer.name

    @property
    def priming(self) -> int:
        """What a request carries beside its messages and tools."""
        return priming_tokens(self._model)

    def text(self, text: str) -> Measure:
        """Tokens of a text on its own."""
        counted = self._tokenizer
        if not text:
            return Measure(0, "exact", counted.name, 0.0)
        tokens = counted.count(text)
        return Measure(tokens, counted.method, counted.name, counted.error_percent)

    def message(self, turn: Turn) -> Measure:
        """Tokens of a message, in whatever vendor's form it is."""
        return message_tokens(msgspec.to_builtins(turn), self._model, self._tokenizer)

    def tools(self, tools: Sequence[Any]) -> Measure:
        """Tokens of a set of tool schemas."""
        return tools_tokens(tools, self._model, self._tokenizer)

    def fit(self, text: str, max_tokens: int, truncation: Truncation) -> str:
        """`text` in `max_tokens` tokens at most."""
        return fit(text, max_tokens, truncation, self._tokenizer).text


class _Remembering:
    """A tokenizer that counts no long text twice."""

    _SHORT = 200
    """Characters up to which counting costs about what looking up does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int, int], int] = {}
        """By hash and length: two texts of a conversation that share both are not to be expected
        in 2**64, and a text keeps its hash, so that asking again costs nothing."""

    @property
    def name(self) -> str:
        return self._tokenizer.name

    @property
    def method(self) -> Method:
        return self._tokenizer.method

    @property
    def error_percent(self) -> float | None:
        return self._tokenizer.error_percent

    def count(self, text: str) -> int:
        """Tokens in `text`."""
        if len(text) <= self._SHORT:
            return self._tokenizer.count(text)
        key = (hash(text), len(text))
        found = self._known.get(key)
        if found is None:
            found = self._tokenizer.count(text)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found
