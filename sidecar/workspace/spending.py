"""Records a workspace's calls, checks spending caps and sums up costs. All functions block."""

from __future__ import annotations

import contextlib
import itertools
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.cost.context_costs import BranchCost, CostVerdict, SessionCost, SpendingSums
from sidecar.errors import BadParamsError, SidecarError
from sidecar.text.printable import local_time_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sidecar.agents.session_index import Unread
    from sidecar.config.settings import Settings
    from sidecar.conversations.context_protocol import Forecast
    from sidecar.cost.book import Cancelled, CostBook
    from sidecar.cost.cost_protocol import (
        CostDetailParams,
        CostKey,
        CostRecorded,
        CostRecordParams,
        CostReport,
        CostRow,
    )
    from sidecar.cost.prompt_file_costs import CallGroup, UsageProfile
    from sidecar.cost.sums import Scope
    from sidecar.messages.replies import Reply
    from sidecar.models.window import Severity
    from sidecar.workspace.state_folder import State

RECENT = timedelta(days=30)


def recent_day() -> str:
    """Return the local day from which calls are recent, in ISO 8601."""
    return (datetime.now().astimezone() - RECENT).date().isoformat()


SUBAGENT = "subagent"
"""The category of sub-agents' calls."""
_READ_NUMBERS = itertools.count(1)
"""Numbers the reads of the ledger in the order in which they start."""


class TeamSpent(NamedTuple):
    """The team's spending this month in USD, as last read from the team's store."""

    usd: Decimal
    severity: Severity


class TeamOutage(NamedTuple):
    """A period during which the team's store cannot be read."""

    since: datetime
    is_unreachable: bool

    @property
    def text(self) -> str:
        """The message for the user, such as ``unreachable since 14:02; run `…` ``."""
        state = "unreachable" if self.is_unreachable else "unreadable"
        return f"{state} since {local_time_text(self.since)}; run `token-sidecar doctor`"


@dataclass(eq=False)
class Costs:
    """A workspace's spending, as last read from the ledger."""

    sums: SpendingSums = field(default_factory=SpendingSums)
    """The sums from the latest read, of which `sessions` has only some sessions."""
    sessions: dict[str, SessionCost] = field(default_factory=dict)
    read: bool = False
    """Whether all calls in agents' session files are in the ledger."""
    reading: bool = True
    """Whether this process records agents' calls automatically."""
    unread: Unread | None = None
    """What the ledger lacks, if known."""
    problem: str = ""
    """Why the ledger cannot be used and what to do, or an empty string if it can be used."""
    team: TeamSpent | None = None
    """The team's spending, or None if it has not been read or the team has no caps."""
    shipping_problem: str = ""
    """Why the collector does not accept this machine's calls, or an empty string."""
    team_outage: TeamOutage | None = None
    """The team store's outage, or None if the last attempt to read the store succeeded."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """The forecast of the agent's session that is shown, keyed by the session's ID."""
    revision: int = 0
    """Increases when a call in the workspace is recorded or amended, even if it has no price."""
    _session_read_numbers: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Costs:
        """Return a copy for a worker."""
        return replace(self, sessions={**self.sessions})

    def session_usd(self, session: str) -> float | None:
        """Return a session's cost in USD, or None if it is unknown."""
        usd = self.sessions[session].total.usd if session in self.sessions else None
        return None if usd is None else float(usd)

    def set_forecast(self, session: str, forecast: Forecast | None) -> None:
        """Replace the forecast of the session that is shown."""
        self.forecasts = {} if forecast is None else {session: forecast}

    def set_history(self, *, read: bool, unread: Unread | None = None) -> None:
        """Store whether past agent calls have been recorded, and what the ledger lacks if known."""
        self.read, self.unread = read, None if read else unread or self.unread

    def stop_reading(self) -> None:
        """Store that this process does not record agents' calls automatically."""
        self.reading = False

    def set_problem(self, problem: str) -> None:
        """Store why the ledger cannot be used, or that it can be used (an empty string)."""
        self.problem = problem

    def set_shipping_problem(self, problem: str) -> bool:
        """Store why calls are not sent, or that they are. Returns whether this has changed."""
        is_new, self.shipping_problem = problem != self.shipping_problem, problem
        return is_new

    @property
    def caps_text(self) -> str:
        """The exceeded caps and the amounts, or an empty string."""
        return " ".join(reason.message for reason in self.sums.caps)

    def set_team(self, spent: TeamSpent | None) -> bool:
        """Set the team's spending, and end any outage. Returns whether anything has changed."""
        is_new = spent != self.team or self.team_outage is not None
        self.team, self.team_outage = spent, None
        return is_new

    def set_team_outage(self, *, is_unreachable: bool) -> TeamOutage:
        """Record that the team's store cannot be read. Keeps the last known spending."""
        since = self.team_outage.since if self.team_outage else datetime.now(UTC)
        self.team_outage = TeamOutage(since, is_unreachable)
        return self.team_outage

    def update(self, spent: SpendingSums | None) -> None:
        """Replace the sums, unless the current sums are from a later read."""
        if spent is None:
            return
        if spent.read_number >= self.sums.read_number:
            recorded = self.sums.calls, self.sums.tokens
            self.revision += (spent.calls, spent.tokens) != recorded
            self.sums = spent
        self.update_sessions(spent.sessions, spent.read_number)

    def update_sessions(self, costs: Mapping[str, SessionCost], read_number: int) -> None:
        """Replace the costs of some sessions, unless the current costs are from a later read."""
        for session, cost in costs.items():
            if read_number >= self._session_read_numbers.get(session, 0):
                self.sessions[session] = cost
                self._session_read_numbers[session] = read_number


_SEVERITIES: Mapping[str, Severity] = MappingProxyType(
    {"ok": "ok", "warn": "warning", "refuse": "error"}
)


def has_team_caps(settings: Settings) -> bool:
    caps = settings.cost
    return caps.team_soft_cap_usd is not None or caps.team_hard_cap_usd is not None


def read_team(settings: Settings, *, after_outage: bool) -> TeamSpent | None:
    """Read the team's spending this month, or return None if the team has no caps.

    Args:
        settings: The settings.
        after_outage: Whether to connect to the store even if the team has no caps.

    Raises:
        TeamStoreError: The team's store cannot be read.
    """
    caps, team = settings.cost, settings.team
    if not has_team_caps(settings) and not (after_outage and team.store):
        return None
    from sidecar.cost.caps import judge_team
    from sidecar.cost.team import TeamStore

    with TeamStore(team) as store:
        usd = store.spent_this_month(team.team, datetime.now(UTC))
    return TeamSpent(usd, _SEVERITIES[judge_team(caps, usd)]) if has_team_caps(settings) else None


def repository_folders(book: CostBook, folder: Path) -> tuple[str, ...]:
    """Return a workspace folder, and all former and current worktrees of its repository.

    This function blocks.
    """
    from sidecar.agents.branches import resolve, worktrees_beside

    real = resolve(str(folder))
    return book.folders_of(worktrees_beside(real) or {real: ""})


def branch_cost(book: CostBook, folder: Path) -> BranchCost | None:
    """Return the cost of the git branch that is checked out in a workspace folder.

    Returns None if there is no branch.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    from sidecar.agents.branches import head_around

    head, folders = head_around(str(folder)), repository_folders(book, folder)
    return book.branch_cost(folder.as_uri(), head.branch, folders) if head and head.branch else None


def profile_workspace(book: CostBook, folder: Path, days: int = RECENT.days) -> UsageProfile:
    """Return how agents have called models in a workspace folder and its worktrees.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    from sidecar.cost.cost_protocol import CostDetailParams
    from sidecar.cost.prompt_file_costs import profile_usage

    wanted = CostDetailParams(workspace=folder.as_uri(), since=f"{24 * days}h")
    scope = book.scope(wanted, folders=repository_folders(book, folder))
    return profile_usage(book.ledger, scope, days)


class Spending:
    """Accesses the user's ledger for one workspace. Thread-safe."""

    def __init__(
        self,
        state: State,
        settings: Settings,
        uri: str | None,
        model: str,
        path: Path | None = None,
    ) -> None:
        self._state, self._settings = state, settings
        self._merged: CostBook | None = None
        self._uri, self._model, self._path = uri or "", model, path

    @property
    def book(self) -> CostBook:
        return self._merged or self._state.book(self._settings)

    @contextmanager
    def merged_with(self, files: Sequence[Path]) -> Iterator[None]:
        """In this block, include the calls in other ledgers and exports. Blocks.

        Raises:
            LedgerError: A file cannot be read.
        """
        from sidecar.cost.export import merge_ledgers

        with closing(merge_ledgers(self.book, files)) as self._merged:
            yield
        self._merged = None

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        return () if self._path is None else repository_folders(self.book, self._path)

    def record(
        self, params: CostRecordParams, reply: Reply | None = None, raw: object = None
    ) -> tuple[CostRecorded, SpendingSums | None]:
        """Record a call and return the workspace's new sums.

        Args:
            params: The call.
            reply: The parsed reply. Its usage replaces the usage in `params`.
            raw: The vendor's object that the reply was parsed from.

        Raises:
            BadParamsError: The call has no usage, or its usage is in an unknown format.
            LedgerError: The ledger cannot be written.
        """
        branch = self.branch_at(params.at) if params.branch is None else params.branch
        call = msgspec.structs.replace(params, workspace=self._uri, branch=branch)
        if reply is None:
            recorded = self.book.record(call)
        elif reply.usage is None:
            raise BadParamsError(reply.usage_problem or "the reply reports no usage")
        else:
            recorded = self.book.record_usage(call, reply.usage, raw, reply.cost)
        return recorded, self._spent_or_none(params.session or "")

    def branch_at(self, at: datetime | None = None) -> str | None:
        """Return the branch that was checked out in the workspace at a time, by default now.

        The result is None if it is unknown, and an empty string if HEAD was detached.
        """
        from sidecar.agents.branches import head_around

        head = None if self._path is None else head_around(str(self._path))
        return None if head is None else head.branch_at(at or datetime.now(UTC))

    def branch_cost(self, branch: str | None = None) -> BranchCost | None:
        """Return the cost of a git branch, or None if no branch is named or checked out.

        Args:
            branch: The branch. Defaults to the one that is checked out.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        branch = self.branch_at() if branch is None else branch
        return self.book.branch_cost(self._uri, branch, self._folders) if branch else None

    def detail(self, params: CostDetailParams, cancelled: Cancelled) -> CostReport:
        """Return a report about this workspace's costs.

        Raises:
            BadParamsError: The params are invalid.
            ReadCancelledError: `cancelled` returned true.
            LedgerError: The ledger cannot be read.
        """
        from sidecar.agents.plan_limits import block_ends

        placed = msgspec.structs.replace(params, workspace=self._uri or None)
        ends = block_ends(params.by, self._settings.agents, self._state.folder)
        return self.book.detail(placed, folders=self._folders, cancelled=cancelled, block_ends=ends)

    def scope(self) -> Scope:
        """Return a filter for this workspace's calls."""
        from sidecar.cost.cost_protocol import CostDetailParams

        return self.book.scope(CostDetailParams(workspace=self._uri or None), folders=self._folders)

    def recent_models(self) -> list[str]:
        """Return the models used in the last 30 days, most frequently called first.

        The result is empty if the ledger cannot be read.
        """
        since = recent_day()
        with contextlib.suppress(SidecarError):
            rows = self._report_rows("model", since=since)
            return [row.model for row in sorted(rows, key=lambda row: -row.calls) if row.model]
        return []

    def cost_by_session(self, sessions: Iterable[str] | None = None) -> dict[str, SessionCost]:
        """Return the cost of each session, highest cost first.

        Args:
            sessions: The sessions' IDs. Defaults to all sessions of the workspace.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        from sidecar.cost.sums import Tally, kinds_in, read_tallies

        scope, tallies = self.scope(), dict[str, list[Tally]]()
        if sessions is not None:
            scope = msgspec.structs.replace(scope, sessions=tuple(sessions))
        with self.book.report_reader() as connection:
            kinds = kinds_in(connection)
            for (name, kind), tally in read_tallies(connection, scope, ("session", "kind")).items():
                is_subagent = kinds[kind][2] == SUBAGENT
                tallies.setdefault(name, [Tally(), Tally()])[is_subagent] += tally
        if sessions is None:
            tallies.pop("", None)  # calls without a session
        by_cost = sorted(tallies.items(), key=lambda item: (-sum(item[1], Tally()).cost, item[0]))
        return {
            name: SessionCost(
                (main + subagents).total,
                (main.total, subagents.total) if subagents.calls else None,
            )
            for name, (main, subagents) in by_cost
        }

    def session_costs(self, session: str) -> tuple[dict[str, SessionCost], int]:
        """Return a session's cost and the number of the read. Raises LedgerError."""
        read_number = next(_READ_NUMBERS)
        return self.cost_by_session([session]), read_number

    def sessions_by_cost(self) -> list[str]:
        """Return the IDs of the workspace's sessions, highest cost first. Raises LedgerError."""
        return list(self.cost_by_session())

    def _report_rows(
        self, *by: CostKey, since: str | None = None, until: str | None = None
    ) -> list[CostRow]:
        from sidecar.cost.cost_protocol import CostDetailParams

        wanted = CostDetailParams(workspace=self._uri or None, by=by, since=since, until=until)
        return self.book.detail(wanted, folders=self._folders).rows

    def count_calls_by_agent_and_model(
        self, since: str, until: str | None
    ) -> dict[str, dict[str, int]]:
        """Return the number of this workspace's calls for each agent and model.

        Raises:
            BadParamsError: A time is invalid.
            LedgerError: The ledger cannot be read.
        """
        found: dict[str, dict[str, int]] = {}
        for row in self._report_rows("agent", "model", since=since, until=until):
            if row.agent and row.model:
                found.setdefault(row.agent, {})[row.model] = row.calls
        return found

    def prompt_file_calls(
        self,
        since: str,
        until: str | None,
        sizes: Iterable[int],
        *,
        with_worktrees: bool,
        without: Iterable[str] = (),
    ) -> list[CallGroup]:
        """Return this workspace's calls, grouped for computing the costs of prompt files.

        Args:
            since: Earlier calls are skipped.
            until: Later calls are skipped.
            sizes: The prompt files' sizes in tokens.
            with_worktrees: Whether to include calls in other worktrees of the repository.
            without: The URIs of nested workspaces to exclude.

        Raises:
            BadParamsError: A time is invalid.
            LedgerError: The ledger cannot be read.
        """
        from sidecar.cost.cost_protocol import CostDetailParams
        from sidecar.cost.ledger import workspace_key
        from sidecar.cost.prompt_file_costs import group_calls

        wanted = CostDetailParams(workspace=self._uri or None, since=since, until=until)
        scope = self.book.scope(wanted, folders=self._folders if with_worktrees else ())
        scope = msgspec.structs.replace(scope, without=tuple(map(workspace_key, without)))
        return group_calls(self.book.ledger, self.book.prices, scope, sizes)

    def preflight(
        self, model: str, prompt_tokens: int, output_tokens: int, session: str
    ) -> CostVerdict:
        """Return a call's expected cost and whether the caps allow the call."""
        from sidecar.cost.caps import has_caps, judge

        estimate = self.book.estimate(model, prompt_tokens, output_tokens)
        if not has_caps(self._settings.cost):
            return CostVerdict("ok", estimate)
        return judge(self._settings.cost, self._spend(session), estimate, model)

    def _spend(self, session: str) -> SpendingSums:
        return self.book.spend(self._uri, session, self._folders, self.branch_at())

    def spent(self, session: str, *, every: bool = False) -> SpendingSums:
        """Return the sums for the status.

        Args:
            session: The ID of the session whose caps apply.
            every: Whether to return the costs of all sessions with calls, instead of this one's.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        from sidecar.cost.caps import judge
        from sidecar.cost.ledger_events import Cost

        read_number = next(_READ_NUMBERS)
        spent = self._spend(session)
        # No call is about to be made, so the estimated cost is 0.
        verdict = judge(self._settings.cost, spent, Decimal(0), self._model)
        if every:
            sessions = self.cost_by_session()
        elif session:
            nothing = SessionCost(Cost(Decimal(0)))
            sessions = {session: nothing, **self.cost_by_session([session])}
        else:
            sessions = {}
        return msgspec.structs.replace(
            spent,
            severity=_SEVERITIES[verdict.verdict],
            caps=verdict.reasons,
            sessions=sessions,
            read_number=read_number,
        )

    def stored_sums(self, session: str = "", *, every: bool = True) -> SpendingSums | None:
        """Return the sums as `spent` does, or None if the ledger is missing or unreadable."""
        from sidecar.cost.ledger import FILE_NAME

        exists = (self._state.folder / FILE_NAME).exists()
        return self._spent_or_none(session, every=every) if exists else None

    def _spent_or_none(self, session: str, *, every: bool = False) -> SpendingSums | None:
        from sidecar.cost.ledger import LedgerError

        try:
            return self.spent(session, every=every)
        except LedgerError:  # the status is outdated, but the call has been recorded
            return None
