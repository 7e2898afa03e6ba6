"""Checks spending against the caps in the settings before a call is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from sidecar.cost.cap_rule import CapSpan, ExceededCap, find_exceeded_cap
from sidecar.cost.context_costs import BranchCost
from sidecar.cost.days import TimeRange, local_day
from sidecar.cost.sums import Scope, Tally, count_sessions, read_tallies, read_total
from sidecar.cost.worktrees import nested_repositories, repository_inside
from sidecar.text.printable import printable

if TYPE_CHECKING:
    import sqlite3

    from sidecar.config.settings import Caps
    from sidecar.cost.ledger_events import Cost
    from sidecar.models.window import Severity

CapVerdict = Literal["ok", "warn", "refuse"]


class CapReason(msgspec.Struct, frozen=True, rename="camel"):
    """A reason for a warning or a refusal. `kind` is `softCap`, `hardCap` or `unpriced`."""

    kind: str
    message: str
    span: CapSpan | None = None
    """What the cap applies to; null if the reason is not a cap."""
    cap_usd: float | None = None
    """The cap in USD; null if the reason is not a cap."""


class CostSplit(NamedTuple):
    """The cost of a session's main conversation and of its sub-agents."""

    main: Cost
    subagents: Cost


class SpendingSums(NamedTuple):
    """Sums from the ledger, in USD."""

    today: Decimal | None
    """Spending in all workspaces since local midnight, or None if this workspace has no calls."""
    workspace: Decimal
    severity: Severity
    sessions: Mapping[str, Cost]
    """The cost of the requested session or of all sessions, keyed by ID."""
    partial: frozenset[CapSpan]
    """The spans whose sums are lower bounds, because calls have no price, or agents omit calls."""
    read_number: int
    """A counter that increases with each read. Sums from later reads replace earlier sums."""
    calls: int
    """The number of this workspace's calls."""
    tokens: int
    """The number of tokens in this workspace's calls."""
    caps: tuple[CapReason, ...] = ()
    """The exceeded caps."""
    splits: Mapping[str, CostSplit] = MappingProxyType({})
    """See `Costs.splits`."""
    branch: BranchCost | None = None
    """The cost of the branch that is checked out, or None if none is."""


class SpentAmounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent today, in a session, in a workspace and on a branch of it, in USD."""

    day: Decimal = Decimal(0)
    session: Decimal = Decimal(0)
    workspace: Decimal = Decimal(0)
    branch: Decimal = Decimal(0)
    unknown: frozenset[CapSpan] = frozenset()
    """Spans (day, session, workspace or branch) that contain calls, but none with a known price."""
    partial: frozenset[CapSpan] = frozenset()
    """Spans with calls, or parts of calls, without a known price, or with agents that omit calls.
    """
    calls: int = 0
    """The number of calls ever made in the workspace."""
    tokens: int = 0
    """The number of tokens in all of the workspace's calls."""
    branch_cost: BranchCost | None = None
    """The cost of the branch, or None if none was given."""


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
) -> SpentAmounts:
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
    return SpentAmounts(
        **{span: total.cost for span, total in totals.items()},
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


def judge(caps: Caps, spend: SpentAmounts, estimate: Decimal | None, model: str) -> CostVerdict:
    """Check spending against the caps. A soft cap causes a warning, a hard cap a refusal.

    Args:
        caps: The caps in the settings.
        spend: The amounts already spent.
        estimate: The planned call's cost in USD, or None if its price is unknown.
        model: The planned call's model.
    """
    reasons = [
        CapReason(exceeded.kind, exceeded.message, span, float(exceeded.cap))
        for span, soft, hard in _limits_of(caps)
        if (exceeded := _exceeded_cap(span, soft, hard, spend, estimate)) is not None
    ]
    if estimate is None and has_caps(caps):
        message = f"The price of {printable(model)} is unknown, so no cap applies to this call."
        reasons.append(CapReason("unpriced", message))
    return CostVerdict(_worst_verdict(reasons), estimate, tuple(reasons))


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


def _exceeded_cap(
    span: CapSpan,
    soft: Decimal | None,
    hard: Decimal | None,
    spend: SpentAmounts,
    estimate: Decimal | None,
) -> ExceededCap | None:
    is_partial = span in spend.partial
    return find_exceeded_cap(
        span, soft, hard, getattr(spend, span), estimate, is_partial=is_partial
    )


def _worst_verdict(reasons: list[CapReason]) -> CapVerdict:
    if any(reason.kind == "hardCap" for reason in reasons):
        return "refuse"
    return "warn" if reasons else "ok"
