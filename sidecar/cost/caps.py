"""Checks spending against the caps in the settings before a call is sent.

The hooks of coding agents also use this module. It imports little, because a prompt waits for it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple

from sidecar.text.printable import (
    AT_LEAST,
    different_usd_texts,
    percent_text,
    printable,
    usd_text,
)

if TYPE_CHECKING:
    from sidecar.config.settings import Caps
    from sidecar.cost.context_costs import CapSpan, CapVerdict, CostVerdict, SpendingSums

_SPANS: dict[CapSpan, str] = {
    "day": "today",
    "session": "in this session",
    "workspace": "in this workspace",
    "branch": "on this branch",
}


class ExceededCap(NamedTuple):
    """A cap that is exceeded."""

    kind: Literal["softCap", "hardCap"]
    message: str
    cap: Decimal
    """The cap in USD, or the share of the usable window."""


def find_exceeded_cap(
    span: CapSpan | Literal["context"],
    soft: Decimal | None,
    hard: Decimal | None,
    value: Decimal,
    estimate: Decimal | None = None,
    *,
    is_partial: bool = False,
) -> ExceededCap | None:
    """Return the exceeded cap, or None if neither is. The hard cap takes precedence.

    Args:
        span: What the caps apply to. If it is a context, all amounts are shares of the usable
            window, and 1 is all of it.
        soft: The soft cap in USD, or None if it is not set.
        hard: The hard cap in USD, or None if it is not set.
        value: The amount already spent, in USD.
        estimate: The cost of a planned call in USD, or None if it is unknown.
        is_partial: Whether `value` is a lower bound.
    """
    planned = value + (estimate or 0)
    if hard is not None and planned > hard:
        name, cap = "hard", hard
    elif soft is not None and planned > soft:
        name, cap = "soft", soft
    else:
        return None
    if span == "context":
        full, limit = (percent_text(float(100 * each)) for each in (value, cap))
        message = f"The context is {full} full, over the {name} cap of {limit}."
        message += " Compact it, or start a new session." if name == "hard" else ""
    else:
        call, shown = "", (usd_text(value), usd_text(cap))
        if estimate:
            call = f" plus up to {usd_text(estimate)} for this call"
        else:
            shown = different_usd_texts(value, cap)
        amount = f"{AT_LEAST if is_partial else ''}{shown[0]}"
        message = f"{amount} spent {_SPANS[span]}{call} exceeds the {name} cap of {shown[1]}."
    return ExceededCap("hardCap" if name == "hard" else "softCap", message, cap)


def judge(caps: Caps, spent: SpendingSums, estimate: Decimal | None, model: str) -> CostVerdict:
    """Check spending against the caps. A soft cap causes a warning, a hard cap a refusal.

    Args:
        caps: The caps in the settings.
        spent: What was already spent.
        estimate: The planned call's cost in USD, or None if its price is unknown.
        model: The planned call's model.
    """
    from sidecar.cost.context_costs import CapReason, CostVerdict

    reasons = list[CapReason]()
    for span, soft, hard in _limits_of(caps):
        amount, is_partial = getattr(spent, span), span in spent.partial
        exceeded = find_exceeded_cap(span, soft, hard, amount, estimate, is_partial=is_partial)
        if exceeded is not None:
            reasons.append(CapReason(exceeded.kind, exceeded.message, span, float(exceeded.cap)))
    if estimate is None and has_caps(caps):
        message = f"The price of {printable(model)} is unknown, so no cap applies to this call."
        reasons.append(CapReason("unpriced", message))
    verdict: CapVerdict = "warn" if reasons else "ok"
    if any(reason.kind == "hardCap" for reason in reasons):
        verdict = "refuse"
    return CostVerdict(verdict, estimate, tuple(reasons))


def judge_team(caps: Caps, spent: Decimal) -> CapVerdict:
    """Check a team's spending this month against its caps."""
    hard, soft = caps.team_hard_cap_usd, caps.team_soft_cap_usd
    if hard is not None and spent > hard:
        return "refuse"
    return "warn" if soft is not None and spent > soft else "ok"


def has_caps(caps: Caps) -> bool:
    """Return whether any cap is set. A cap of 0 is valid and refuses every call with a price."""
    return any(cap is not None for _span, *both in _limits_of(caps) for cap in both)


def _limits_of(caps: Caps) -> tuple[tuple[CapSpan, Decimal | None, Decimal | None], ...]:
    return (
        ("day", caps.soft_cap_usd, caps.hard_cap_usd),
        ("session", caps.session_soft_cap_usd, caps.session_hard_cap_usd),
        ("workspace", caps.workspace_soft_cap_usd, caps.workspace_hard_cap_usd),
        ("branch", caps.branch_soft_cap_usd, caps.branch_hard_cap_usd),
    )
