"""Checks spending against the caps in the settings before a call is sent."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from typing import Any, Literal

import msgspec

from sidecar.config.settings import Caps
from sidecar.cost.cap_rule import CapSpan, find_exceeded_cap
from sidecar.cost.context_costs import BranchCost, CapReason, SpendingSums
from sidecar.cost.days import TimeRange, local_day
from sidecar.cost.sums import Scope, Tally, count_sessions, read_tallies, read_total
from sidecar.cost.worktrees import nested_repositories, repository_inside
from sidecar.text.printable import printable

CapVerdict = Literal["ok", "warn", "refuse"]


class CostVerdict(msgspec.Struct, frozen=True):
    """The verdict on a planned call. `estimate` is the call's cost in USD, or None if unknown."""

    verdict: CapVerdict
    estimate: Decimal | None
    reasons: tuple[CapReason, ...] = ()


def spend_so_far(
    connection: sqlite3.Connection,
    workspace: str,
    session: str,
    *,
    folders: tuple[str, ...] = (),
    branch: str | None = None,
    zone: tzinfo | None = None,
) -> SpendingSums:
    """Return what was spent today (local time), in a session, in a workspace, and on a branch."""
    today = local_day(datetime.now(UTC), zone)
    whole = Scope(workspace=workspace, folders=folders)
    nested = nested_repositories(connection, whole.all_folders) if branch else {}
    # One query for the workspace and its branches, because it reads the calls of all time.
    by_branch = read_tallies(connection, whole, ("branch", *["workspace"] * bool(nested)))
    totals: dict[CapSpan, Tally] = {
        "day": read_total(connection, Scope(times=TimeRange(today, today))),
        "session": read_total(connection, msgspec.structs.replace(whole, session=session)),
        "workspace": sum(by_branch.values(), Tally()),
    }
    cost = None
    if branch:
        own = (
            tally
            for (name, *folder), tally in by_branch.items()
            if name == branch and not any(repository_inside(nested, one) for one in folder)
        )
        totals["branch"] = sum(own, Tally())
        scope = msgspec.structs.replace(whole, branch=branch, without=tuple(nested))
        cost = branch_cost(connection, scope, totals["branch"])
    buckets = totals["workspace"].buckets
    amounts: dict[str, Any] = {span: total.cost for span, total in totals.items()}
    return SpendingSums(
        **amounts,
        unknown=frozenset(span for span, total in totals.items() if total.total.usd is None),
        partial=frozenset(span for span, total in totals.items() if total.is_partial),
        calls=totals["workspace"].calls,
        tokens=buckets.prompt + buckets.completion,
        branch_cost=cost,
    )


def branch_cost(connection: sqlite3.Connection, scope: Scope, total: Tally) -> BranchCost:
    """Return the cost of the git branch that a scope selects. `total` is the sum of its calls."""
    return BranchCost(
        name=scope.branch or "",
        calls=total.calls,
        sessions=count_sessions(connection, scope),
        cost_usd=total.cost_usd,
        partial=total.is_partial,
    )


def judge(caps: Caps, spent: SpendingSums, estimate: Decimal | None, model: str) -> CostVerdict:
    """Check spending against the caps. A soft cap causes a warning, a hard cap a refusal.

    Args:
        caps: The caps in the settings.
        spent: What was already spent.
        estimate: The planned call's cost in USD, or None if its price is unknown.
        model: The planned call's model.
    """
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
