"""Token counts, counting methods, and functions that format counts as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from sidecar.text.printable import cost_text, counted, percent_text

Method = Literal["exact", "endpoint", "calibrated", "estimate"]
"""How tokens were counted. `exact`: with the model's own tokenizer, on this machine. `endpoint`: by
the model's server. `calibrated`: with an estimate that was corrected with reported usage.
`estimate`: with any other estimate.
"""

METHODS: tuple[Method, ...] = get_args(Method)
"""All methods, from the most to the least reliable."""


def weakest_method(methods: Iterable[Method]) -> Method:
    """Return the method of a sum: the least reliable of its counts, or `exact` without any."""
    return max(methods, key=METHODS.index, default="exact")


ContentCounts = dict[bytes, dict[str, int]]
"""Uncalibrated token counts, keyed by content digest and then by tokenizer."""


class Measure(msgspec.Struct, frozen=True):
    """A number of tokens, with its method and error band.

    Attributes:
        error_percent: The error band (±%): 0 for exact counts, None if not measured.
        counted: How many of the tokens were counted by the model's server. The rest is an estimate.
    """

    tokens: int
    method: Method
    tokenizer: str
    error_percent: float | None = 0.0
    counted: int = 0


class Count(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The number of tokens in a text, and how they were counted."""

    tokens: int
    method: Method
    tokenizer: str
    model: str
    error_percent: float | None
    characters: int
    limit: int | None = None
    limit_source: str | None = None
    """Where `limit` comes from: `request`, `transcript`, `endpoint`, `catalogue`, `settings`, or
    `default` (an assumption for unknown models).
    """
    percent: int | None = None
    input_cost_usd: float | None = None
    input_cost_text: str | None = None
    """`input_cost_usd` as text: `$0.022`, or `~$0.022` if the tokens are estimated."""
    note: str | None = None
    """Why the text was not counted as requested; for example, because the endpoint cannot count."""
    similar_models: tuple[str, ...] | None = None
    """Known model names that are similar to the requested name; null if that name is known."""


def number_text(tokens: int, method: Method) -> str:
    """Format a number such as `12,345`. Calibrated and estimated numbers start with `~`."""
    return f"{method_mark(method)}{tokens:,}"


def tokens_text(tokens: int, method: Method) -> str:
    """Format a count such as `12,345 tokens`. Calibrated and estimated counts start with `~`."""
    return f"{method_mark(method)}{counted(tokens, 'token')}"


def estimated_percent_text(percent: float, method: Method) -> str:
    """Format a percentage such as `13 %`. That of calibrated and estimated counts has a `~`."""
    return f"{method_mark(method)}{percent_text(percent)}"


def input_cost_text(usd: float, method: Method) -> str:
    """Format the price of tokens, such as `$0.022`. That of an estimated number has a `~`."""
    return cost_text(usd, is_partial=False, is_estimate=bool(method_mark(method)))


def banded_text(tokens: int, method: Method, error_percent: float | None) -> str:
    """Format a count with its 95 % error band, such as `~12,345 tokens (±9 %)`."""
    text = tokens_text(tokens, method)
    if method in ("exact", "endpoint") or error_percent is None:
        return text
    return f"{text} ({band_text(error_percent)})"


def band_text(error_percent: float) -> str:
    """Format an error band with two significant digits, such as `±9.2 %` or `±13 %`."""
    return f"±{error_percent:.{0 if error_percent >= 10 else 1}f} %"


def method_mark(method: Method) -> str:
    """Return the sign in front of a number: `~` if it is calibrated or estimated."""
    return "~" if method in ("calibrated", "estimate") else ""
