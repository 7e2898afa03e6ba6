"""Records calls, reports costs, and sums up what caps apply to. All methods block.

The ledger and the price list are opened on first use.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from sidecar.config.paths import STORED_LIST
from sidecar.config.settings import Price
from sidecar.cost.context_costs import BranchCost, CapSpan, SpendingSums, UsageBlock
from sidecar.cost.cost_protocol import (
    CostDetailParams,
    CostRecorded,
    CostRecordParams,
    CostReport,
)
from sidecar.cost.days import TimeRange, local_day, time_range
from sidecar.cost.ledger import (
    FILE_NAME,
    Ledger,
    LedgerError,
    workspace_key,
)
from sidecar.cost.ledger_events import (
    Buckets,
    LedgerEvent,
    buckets_of,
    check_names,
    checked_numbers,
)
from sidecar.cost.prices import Prices
from sidecar.cost.reports import overview, report
from sidecar.cost.repricing import price_new_calls
from sidecar.cost.sums import (
    Scope,
    Tally,
    current_block,
    first_call_ms,
    read_tallies,
    read_total,
    scope_of_block,
)
from sidecar.cost.worktrees import (
    nested_repositories,
    save_worktrees,
    unsaved_worktrees,
    with_known_worktrees,
)
from sidecar.errors import BadParamsError
from sidecar.messages.vendor_usage import Usage, reported_cost, service_tier
from sidecar.models.catalogue import provider_name, provider_of

Cancelled = Callable[[], bool]

_log = logging.getLogger(__name__)


class CostBook:
    """Records model calls in the user's ledger, and reports their costs. Thread-safe."""

    def __init__(
        self,
        state: Path,
        entries: Sequence[Price] = (),
        *,
        zone: tzinfo | None = None,
    ) -> None:
        """Create a cost book.

        Args:
            state: The user's state folder.
            entries: The user's `[[price]]` entries.
            zone: The time zone that determines local days; defaults to this machine's.
        """
        self.prices = Prices(entries, state / STORED_LIST)
        self.ledger = Ledger(state / FILE_NAME, zone, self.prices)
        self._zone = zone

    def record(self, params: CostRecordParams) -> CostRecorded:
        """Record a call, and return its cost.

        Raises:
            BadParamsError: The usage is in an unknown format.
            LedgerError: Storage failed.
        """
        from sidecar.messages.vendor_usage import normalize_usage

        is_xai = _billing_provider_of(params) == "x-ai"
        usage = normalize_usage(params.usage, "xai" if is_xai else None)
        if usage is None:
            raise BadParamsError("`usage` is not in a known vendor's format")
        return self.record_usage(params, usage, params.usage, reported_cost(params.usage))

    def record_usage(
        self, params: CostRecordParams, usage: Usage, raw: object, reported: Decimal | None
    ) -> CostRecorded:
        """Record a call with a normalized usage.

        Args:
            params: The request's params.
            usage: The normalized usage.
            raw: The vendor's usage object.
            reported: The cost in USD that the vendor reported, or None.

        Raises:
            BadParamsError: A number is out of range.
            LedgerError: Storage failed.
        """
        event = LedgerEvent(
            at=params.at or datetime.now(UTC),
            model=params.model,
            provider=_billing_provider_of(params),
            buckets=buckets_of(usage, raw, params.model),
            category=params.category,
            tier=service_tier(raw),
            workspace=params.workspace or "",
            branch=params.branch or "",
            session=params.session or "",
            request_id=params.request_id,
            estimated_tokens=params.estimated_tokens,
            reported_cost=reported,
        )
        checked_numbers(event)  # before they are priced
        cost = self.prices.cost(event)
        recorded = self.ledger.record(msgspec.structs.replace(event, cost=cost))
        return CostRecorded(
            id=recorded.id,
            usage=usage,
            cost_usd=None if cost.usd is None else float(cost.usd),
            unpriced=not cost.whole,
            duplicate=recorded.duplicate,
        )

    def detail(
        self,
        params: CostDetailParams,
        *,
        agent: str | None = None,
        folders: Iterable[str] = (),
        cancelled: Cancelled | None = None,
        block_ends: Mapping[str, datetime] = MappingProxyType({}),
    ) -> CostReport:
        """Return the report for `cost/detail`.

        Args:
            params: The request's params.
            agent: The agent whose calls to report; defaults to all agents.
            folders: Additional folders of the workspace.
            cancelled: Called repeatedly. If it returns true, the report is cancelled.
            block_ends: For some agents, when a five-hour block ends.

        Raises:
            BadParamsError: The params are invalid.
            LedgerError: Reading failed, or was cancelled (ReadCancelledError).
        """
        scope = self.scope(params, agent, folders)
        with self.report_reader(cancelled) as connection:
            if params.charts:
                return overview(
                    connection, self.prices, scope, params.by, block_ends, params.width or 0
                )
            return report(connection, self.prices, scope, params.by, block_ends)

    @contextmanager
    def report_reader(self, cancelled: Cancelled | None = None) -> Iterator[sqlite3.Connection]:
        """Open a snapshot of the ledger in which all new calls have a price.

        If the ledger can be read but not written, they stay unpriced.

        Raises:
            LedgerError: Reading failed, or was cancelled (ReadCancelledError).
        """
        try:
            price_new_calls(self.ledger, cancelled or (lambda: False))
        except LedgerError as error:
            _log.warning("cannot price new calls: %s", error)
        with self.ledger.reader(cancelled) as connection:
            yield connection

    def folders_of(self, worktrees: Mapping[str, str]) -> tuple[str, ...]:
        """Return a repository's worktrees, including those that have been removed.

        The given worktrees are remembered, if the ledger can be written.

        Args:
            worktrees: The repository of each worktree (`agents.roots`).
        """
        try:
            with self.ledger.reader() as connection:
                folders = with_known_worktrees(connection, worktrees)
                is_new = bool(unsaved_worktrees(connection, worktrees))
        except LedgerError:
            return tuple(worktrees)
        if is_new and len(worktrees) > 1 and self.ledger.path.exists():
            with suppress(LedgerError), self.ledger.transaction() as connection:
                save_worktrees(connection, worktrees)
        return folders

    def scope(
        self, params: CostDetailParams, agent: str | None = None, folders: Iterable[str] = ()
    ) -> Scope:
        """Return the scope that the params select.

        The calls of a branch exclude those of other repositories inside the workspace.

        Raises:
            BadParamsError: A time or a name is invalid.
            LedgerError: Reading failed.
        """
        workspace = params.workspace
        names = {"session": params.session, "branch": params.branch, "agent": agent}
        check_names(
            workspace=workspace or "", **{name: value or "" for name, value in names.items()}
        )
        scope = Scope(
            times=time_range(params.since, params.until, self._zone),
            workspace=None if workspace is None else workspace_key(workspace),
            folders=tuple(map(workspace_key, folders)),
            session=params.session,
            branch=params.branch,
            agent=agent,
        )
        if not scope.branch or workspace is None:
            return scope
        with self.ledger.reader() as connection:
            return _scope_of_branch(connection, scope, scope.branch)

    def branch_cost(self, workspace: str, branch: str, folders: Iterable[str] = ()) -> BranchCost:
        """Return the cost of a workspace's calls on a git branch.

        Raises:
            LedgerError: Reading failed.
        """
        scope = self.scope(CostDetailParams(workspace=workspace, branch=branch), folders=folders)
        with self.report_reader() as connection:
            return _read_branch(connection, scope)[1]

    def estimate(
        self, model: str, prompt_tokens: int, max_output_tokens: int = 0
    ) -> Decimal | None:
        """Estimate a call's highest possible cost in USD, or return None if its price is unknown.

        The estimate assumes that no input is cached and that the output reaches its limit.
        """
        buckets = Buckets(input=prompt_tokens, output=max_output_tokens)
        return self.prices.price(buckets, model, provider_of(model))

    def spend(
        self,
        workspace: str,
        session: str,
        folders: Iterable[str] = (),
        branch: str | None = None,
    ) -> SpendingSums:
        """Return what was spent today (local time), in a session, in a workspace, and on a branch.

        Raises:
            LedgerError: Reading failed.
        """
        today = local_day(datetime.now(UTC), self._zone)
        whole = Scope(
            workspace=workspace_key(workspace), folders=tuple(map(workspace_key, folders))
        )
        with self.report_reader() as connection:
            totals: dict[CapSpan, Tally] = {
                "day": read_total(connection, Scope(times=TimeRange(today, today))),
                "session": read_total(connection, msgspec.structs.replace(whole, session=session)),
                "workspace": read_total(connection, whole),
            }
            cost = None
            if branch:
                scope = _scope_of_branch(connection, whole, branch)
                totals["branch"], cost = _read_branch(connection, scope)
        buckets = totals["workspace"].buckets
        amounts: dict[str, Any] = {span: total.cost for span, total in totals.items()}
        return SpendingSums(
            **amounts,
            unknown=frozenset(span for span, total in totals.items() if total.total.usd is None),
            partial=frozenset(span for span, total in totals.items() if total.is_partial),
            calls=totals["workspace"].calls,
            calls_today=totals["day"].calls,
            tokens=buckets.prompt + buckets.completion,
            branch_cost=cost,
        )

    def current_block(
        self, agent: str, ends_at: datetime | None, now: datetime
    ) -> UsageBlock | None:
        """Return an agent's current five-hour block, or None if it contains no calls.

        Args:
            agent: The agent.
            ends_at: When the block ends, if the agent reports it.
            now: The current time.

        Raises:
            LedgerError: Reading failed.
        """
        from sidecar.cost.forecast import SHORTEST_PACE

        with self.report_reader() as connection:
            block = current_block(connection, agent, ends_at, now)
            if block is None:
                return None
            scope = scope_of_block(Scope(), agent, block)
            total, first_ms = read_total(connection, scope), first_call_ms(connection, scope)
        if first_ms is None:
            return None
        first_call_at = datetime.fromtimestamp(first_ms / 1000, UTC)
        tokens, passed = total.buckets.prompt + total.buckets.completion, now - first_call_at
        pace = None if passed < SHORTEST_PACE else round(tokens / (passed / timedelta(minutes=1)))
        return UsageBlock(
            began_at=datetime.fromtimestamp(block.begin_ms / 1000, UTC),
            ends_at=datetime.fromtimestamp(block.end_ms / 1000, UTC),
            cost_usd=total.cost_usd,
            unpriced=total.is_partial,
            first_call_at=first_call_at,
            tokens_per_minute=pace,
        )

    def close(self) -> None:
        self.ledger.close()


def _scope_of_branch(connection: sqlite3.Connection, scope: Scope, branch: str) -> Scope:
    """Return a workspace's calls on a branch, without those of other repositories inside it."""
    nested = nested_repositories(connection, scope.all_folders)
    return msgspec.structs.replace(scope, branch=branch, without=tuple(nested))


def _read_branch(connection: sqlite3.Connection, scope: Scope) -> tuple[Tally, BranchCost]:
    """Return the sum of the calls on the git branch that a scope selects, and their cost."""
    by_session = read_tallies(connection, scope, ("session",))
    total = sum(by_session.values(), Tally())
    return total, BranchCost(
        name=scope.branch or "",
        calls=total.calls,
        sessions=len(by_session.keys() - {("",)}),
        cost_usd=total.cost_usd,
        partial=total.is_partial,
    )


def _billing_provider_of(params: CostRecordParams) -> str:
    return provider_name(params.provider) if params.provider else provider_of(params.model)
