"""What a count is, and how every count says how it was made."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from sidecar.text.printable import counted

Method = Literal["exact", "endpoint", "calibrated", "estimate"]
"""`exact`: the model's own tokenizer, run here. `endpoint`: the model server's own count.
`calibrated`: an estimate corrected by reported usage. `estimate`: a guess, and marked as one."""

METHODS: tuple[Method, ...] = get_args(Method)
"""The methods, the surest first."""


class Measure(msgspec.Struct, frozen=True):
    """A number of tokens and how it was made, before a model's window or price is put to it."""

    tokens: int
    method: Method
    tokenizer: str
    error_percent: float | None = 0.0
    """Expected error in percent; 0 when exact or endpoint, None when not measured."""
    counted: int = 0
    """Tokens of it that the model's server has counted, where the rest is an estimate."""


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
    similar_models: tuple[str, ...] | None = None
    """Where no list and no known family has the model's name: the known names most like it, if any.
    The count is then that of an unknown model. Null where the name is known."""


def number_text(tokens: int, method: Method) -> str:
    """`12,345`, with `~` before what is calibrated or estimated."""
    return f"{_mark(method)}{tokens:,}"


def tokens_text(tokens: int, method: Method) -> str:
    """`12,345 tokens`, with `~` before what is calibrated or estimated."""
    return f"{_mark(method)}{counted(tokens, 'token')}"


def banded_text(tokens: int, method: Method, error_percent: float | None) -> str:
    """`~12,345 tokens (±9 %)`: with the 95 % band of what is calibrated or estimated."""
    text = tokens_text(tokens, method)
    if method in ("exact", "endpoint") or error_percent is None:
        return text
    return f"{text} ({band_text(error_percent)})"


def band_text(error_percent: float) -> str:
    """`±9.2 %`, `±13 %`: half the width of a band, in two digits."""
    return f"±{error_percent:.{0 if error_percent >= 10 else 1}f} %"


def _mark(method: Method) -> str:
    return "~" if method in ("calibrated", "estimate") else ""
