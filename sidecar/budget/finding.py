"""What is said of a budget that is near or exceeded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.config.settings import Truncation
from sidecar.counting.count import Method

if TYPE_CHECKING:
    from sidecar.counting.count import Measure

Severity = Literal["information", "warning", "error"]
Code = Literal["budget-near", "budget-exceeded"]
ScopeKind = Literal["file", "section", "region"]

DOCUMENTATION = "https://github.com/token-sidecar/token-sidecar/blob/main/docs/how-to/budgets.md"
"""Where each code is explained (`codeDescription`), by anchor."""


class Finding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One rule at or above its `warn-at`; the same for the editor and the command line.

    `tokens` are those the budget is for: of all files together for a sum. Offsets are characters
    of the text: `start` to `end` is what to point at, `scope_start` to `scope_end` what the budget
    is for. `allowance` is what the scope may hold: the budget, less the other files of a sum.
    """

    severity: Severity
    code: Code
    budget: int
    tokens: int
    over: int
    """Tokens over the budget; 0 while it is only near."""
    section: str | None
    """The heading path of a section, `lines 3 to 9` of a region, None for a whole file."""
    method: Method
    model: str
    message: str
    rule: str
    """The rule's key (`budget[0]`, `preset[1]`), or `region`."""
    rule_section: str | None
    """The heading path as the rule has it, for a section."""
    kind: ScopeKind
    start: int
    end: int
    scope_start: int
    scope_end: int
    allowance: int
    files: int = 1
    """How many files the budget is for together."""
    truncation: Truncation = "start"
    """What the rule wants kept where the text is cut to fit."""


def severity_of(tokens: int, budget: int, warn_at: float) -> Severity | None:
    """Information from `warn_at`, Warning when over, Error from twice; None below all that."""
    if tokens >= 2 * budget:
        return "error"
    if tokens > budget:
        return "warning"
    # A hair less than the product, so that 0.7 * 10 in binary is not above 7.
    return "information" if tokens >= math.ceil(warn_at * budget - 1e-9) else None


def sentence(
    name: str, section: str | None, files: int, measure: Measure, budget: int, model: str
) -> str:
    """`AGENTS.md is 2,431 tokens, 431 over its budget of 2,000 (gpt-5, exact)`."""
    mark = "~" if measure.method in ("calibrated", "estimate") else ""
    over = measure.tokens - budget
    if files > 1:
        others = f"{files - 1} other file{'s' if files > 2 else ''}"
        subject, owner = f"{name} and {others} together are", "their"
    elif section is not None:
        subject, owner = f"{section} in {name} is", "its"
    else:
        subject, owner = f"{name} is", "its"
    percent = 100 * measure.tokens // budget
    distance = f"{mark}{over:,} over" if over > 0 else f"{percent}% of"
    tokens = f"{mark}{measure.tokens:,} token{'' if measure.tokens == 1 else 's'}"
    how = f"({model}, {_method_text(measure)})"
    return f"{subject} {tokens}, {distance} {owner} budget of {budget:,} {how}"


def _method_text(measure: Measure) -> str:
    if measure.method in ("exact", "endpoint"):
        return measure.method
    if measure.error_percent is None:
        return f"{measure.method}, error not measured"
    return f"{measure.method} ±{measure.error_percent:g} %"
