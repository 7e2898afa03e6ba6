"""Findings: budgets that are exceeded or nearly used up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from sidecar.budget.rules import DEFAULT_WARN_AT, Rule
from sidecar.config.settings import Truncation
from sidecar.counting.count import Measure, Method, band_text, number_text, tokens_text
from sidecar.text.printable import counted, percent_text, printable

FindingSeverity = Literal["information", "warning", "error"]
Code = Literal["budget-near", "budget-exceeded"]
ScopeKind = Literal["file", "section", "region"]

DOCUMENTATION = "https://github.com/token-sidecar/token-sidecar/blob/main/docs/how-to/budgets.md"
"""The page that describes the diagnostic codes."""


class Finding(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A rule at or above its `warn-at`; the same for the editor and the command line.

    `tokens` is the measured size: of all files together for a sum. Offsets are in characters:
    `start` to `end` is the range to underline, `scope_start` to `scope_end` the budget's scope.
    `allowance` is the budget of the scope: the budget, less the other files of a sum.
    """

    severity: FindingSeverity
    code: Code
    budget: int
    tokens: int
    over: int
    """Tokens over the budget; 0 if it is only near."""
    section: str | None
    """The heading path of a section, `lines 3 to 9` for a region, None for a whole file."""
    method: Method
    model: str
    message: str
    rule: str
    """The rule's key (`budget[0]`, `preset[1]`), or `region`."""
    rule_section: str | None
    """The heading path as written in the rule, for a section."""
    kind: ScopeKind
    start: int
    end: int
    scope_start: int
    scope_end: int
    allowance: int
    files: int = 1
    """Number of files that share the budget."""
    truncation: Truncation = "start"
    """The part of the text to keep when it is cut to fit."""


class Together(msgspec.Struct, frozen=True):
    """The other files of a rule over several files: their tokens, and how many files there are."""

    tokens: int
    files: int


class BudgetScope(msgspec.Struct, frozen=True):
    """The range of a text that one budget applies to."""

    kind: ScopeKind
    start: int
    end: int
    heading_end: int
    """End of the first line, which is underlined while the budget is only nearly used up."""
    section: str | None = None
    rule_section: str | None = None


_ALONE = Together(0, 1)


def finding_of(
    name: str,
    rule: Rule | None,
    limit: int,
    own: Measure,
    scope: BudgetScope,
    seam: Callable[[int], int],
    model: str,
    others: Together | None = None,
) -> Finding | None:
    """Return the finding of a rule for a scope, or None if it is below `warn-at`.

    Args:
        name: The path shown in the message.
        rule: The rule, or None for a region's mark.
        limit: The budget in tokens.
        own: The scope's tokens.
        scope: The range that the budget applies to.
        seam: Returns the offset of the first token beyond a number of tokens.
        model: The model that the tokens are counted for.
        others: The other files of a rule over several files.
    """
    other = others or _ALONE
    tokens = own.tokens + other.tokens
    warn_at = rule.budget.warn_at if rule else DEFAULT_WARN_AT
    severity = severity_of(tokens, limit, warn_at)
    if severity is None or tokens == 0:
        return None
    measure = msgspec.structs.replace(own, tokens=tokens)
    near = severity == "information"
    allowance = max(0, limit - other.tokens)
    return Finding(
        severity=severity,
        code="budget-near" if near else "budget-exceeded",
        budget=limit,
        tokens=measure.tokens,
        over=max(0, measure.tokens - limit),
        section=scope.section,
        method=measure.method,
        model=model,
        message=sentence(name, scope, other.files, measure, limit, model),
        rule=rule.key if rule else "region",
        rule_section=scope.rule_section,
        kind=scope.kind,
        start=scope.start if near else seam(allowance),
        end=scope.heading_end if near else scope.end,
        scope_start=scope.start,
        scope_end=scope.end,
        allowance=allowance,
        files=other.files,
        truncation=(rule and rule.budget.truncation) or "start",
    )


def severity_of(
    tokens: int, budget: int, warn_at: float = DEFAULT_WARN_AT
) -> FindingSeverity | None:
    """Return the severity of a finding, or None below `warn_at`.

    It is information up to the budget, warning above, and error from twice the budget on.
    """
    if tokens >= 2 * budget:
        return "error"
    if tokens > budget:
        return "warning"
    # Slightly less than the product, since 0.7 * 10 is above 7 in binary.
    return "information" if tokens >= math.ceil(warn_at * budget - 1e-9) else None


def percent_of(tokens: int, budget: int) -> int:
    """Return the used share of a budget in whole percent, rounded down."""
    return 100 * tokens // max(1, budget)


def sentence(
    name: str, scope: BudgetScope, files: int, measure: Measure, budget: int, model: str
) -> str:
    """Return a text such as `AGENTS.md is 2,431 tokens, 431 over its budget of 2,000 (gpt-5,
    exact)`."""
    over = measure.tokens - budget
    if files > 1:
        others = counted(files - 1, "other file")
        subject, owner = f"{name} and {others} together are", "their"
    elif scope.kind == "region" and (scope.section or "").startswith("lines "):
        subject, owner = f"{scope.section} in {name} are", "their"
    elif scope.section is not None:
        subject, owner = f"{scope.section} in {name} is", "its"
    else:
        subject, owner = f"{name} is", "its"
    distance = (
        f"{number_text(over, measure.method)} over"
        if over > 0
        else f"{percent_text(percent_of(measure.tokens, budget))} of"
    )
    tokens = tokens_text(measure.tokens, measure.method)
    how = f"({model}, {_method_text(measure)})"
    return printable(f"{subject} {tokens}, {distance} {owner} budget of {budget:,} {how}")


def _method_text(measure: Measure) -> str:
    if measure.method in ("exact", "endpoint"):
        return measure.method
    if measure.error_percent is None:
        return f"{measure.method}, error not measured"
    return f"{measure.method} {band_text(measure.error_percent)}"
