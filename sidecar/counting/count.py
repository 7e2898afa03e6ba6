"""What a count is, and how every count says how it was made."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Method = Literal["exact", "endpoint", "calibrated", "estimate"]
"""`exact`: the model's own tokenizer, run here. `endpoint`: the model server's own count.
`calibrated`: an estimate corrected by reported usage. `estimate`: a guess, and said to be one."""


class Measure(msgspec.Struct, frozen=True):
    """A number of tokens and how it was made, before a model's window or price is put to it."""

    tokens: int
    method: Method
    tokenizer: str
    error_percent: float | None = 0.0
    """Expected error in percent; 0 when exact or endpoint, None when not measured."""


class Count(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The public answer to "how many tokens is this" (contract: `Count`)."""

    tokens: int
    method: Method
    tokenizer: str
    model: str
    error_percent: float | None
    characters: int
    limit: int | None = None
    limit_source: str | None = None
    """What decided `limit`: `request`, `transcript`, `endpoint`, `catalogue`, `settings` or
    `default`, which is an assumption for a model that nothing knows."""
    percent: int | None = None
    input_cost_usd: float | None = None
    note: str | None = None
    """Why it was not counted as asked, such as an endpoint that gave no count."""


class Tokenizer(Protocol):
    """One way of turning text into a number of tokens. Thread-safe; never raises on any `str`."""

    @property
    def name(self) -> str:
        """The field's name of the vocabulary, such as `o200k_base`, or of the estimator."""

    @property
    def method(self) -> Method:
        """How its counts are made."""

    @property
    def error_percent(self) -> float | None:
        """Expected error of its counts in percent; None when it was not measured."""

    def count(self, text: str) -> int:
        """Tokens in `text`, special tokens written in it counted as ordinary characters."""
