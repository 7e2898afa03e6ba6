"""Types of costs that a context or the status shows.

They are apart from other costs, because the first token count needs neither the ledger nor prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from sidecar.cost.ledger_events import Cost
    from sidecar.models.window import Severity


class BranchCost(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The cost of the calls on a git branch."""

    name: str
    calls: int
    sessions: int
    """The number of sessions with calls on the branch."""
    cost_usd: float | None
    """The cost of all calls with a price; null if no call has a price."""
    partial: bool = False
    """Whether `cost_usd` is a lower bound: calls have no price, or the agent's files omit calls."""


CapSpan = Literal["day", "session", "workspace", "branch"]
CapVerdict = Literal["ok", "warn", "refuse"]


class CapReason(msgspec.Struct, frozen=True, rename="camel"):
    """A reason for a warning or a refusal. `kind` is `softCap`, `hardCap` or `unpriced`."""

    kind: str
    message: str
    span: CapSpan | None = None
    """What the cap applies to; null if the reason is not a cap."""
    cap_usd: float | None = None
    """The cap in USD; null if the reason is not a cap."""


class CostVerdict(msgspec.Struct, frozen=True):
    """The verdict on a planned call. `estimate` is the call's cost in USD, or None if unknown."""

    verdict: CapVerdict
    estimate: Decimal | None
    reasons: tuple[CapReason, ...] = ()


class SessionCost(NamedTuple):
    """The cost of a session."""

    total: Cost
    split: tuple[Cost, Cost] | None = None
    """The costs of the main conversation and of sub-agents, or None if no sub-agent made a call."""


class UsageBlock(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The current five-hour period of a subscription's usage limit."""

    began_at: datetime
    ends_at: datetime
    first_call_at: datetime
    cost_usd: float | None
    """Cost of the agent's calls in this period, in USD; null if no call has a price."""
    unpriced: bool = False
    """Whether a call, or part of a call, has no known price and is excluded from `cost_usd`."""
    tokens_per_minute: int | None = None
    """The average number of tokens per minute since the first call, including those read from a
    cache. Null in the first five minutes.
    """


class SpendingSums(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent, as read from the ledger at one time, in USD."""

    day: Decimal = Decimal(0)
    """What was spent in all workspaces since local midnight."""
    session: Decimal = Decimal(0)
    workspace: Decimal = Decimal(0)
    branch: Decimal = Decimal(0)
    unknown: frozenset[CapSpan] = frozenset()
    """Spans (day, session, workspace or branch) that contain calls, but none with a known price."""
    partial: frozenset[CapSpan] = frozenset()
    """The spans whose sums are lower bounds, because calls have no price, or agents omit calls."""
    calls: int = 0
    """The number of calls ever made in the workspace."""
    calls_today: int = 0
    """The number of calls in all workspaces since local midnight."""
    tokens: int = 0
    """The number of tokens in all of the workspace's calls."""
    branch_cost: BranchCost | None = None
    """The cost of the branch, or None if none was given or is checked out."""
    severity: Severity = "ok"
    caps: tuple[CapReason, ...] = ()
    """The exceeded caps, with the amounts."""
    sessions: Mapping[str, SessionCost] = {}
    """The cost of the requested session or of all sessions, keyed by ID."""
    read_number: int = 0
    """A counter that increases with each read. Sums from later reads replace earlier sums."""

    @property
    def today(self) -> Decimal | None:
        """What was spent today, or None if it is unknown or this workspace has no calls."""
        is_recorded = self.workspace or "workspace" in self.unknown
        return self.day if is_recorded and "day" not in self.unknown else None
