"""A workspace's spending: recording calls, caps, and the sums in its status. Blocking."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.errors import BadParamsError, SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sidecar.config.settings import Settings
    from sidecar.context.window import Severity
    from sidecar.cost.book import Cancelled, CostBook, Progress
    from sidecar.cost.caps import CostVerdict
    from sidecar.cost.prompt_file_costs import CallGroup
    from sidecar.cost.protocol import (
        CostDetailParams,
        CostKey,
        CostRecorded,
        CostRecordParams,
        CostReport,
        CostRow,
    )
    from sidecar.messages.reply import Reply
    from sidecar.workspace.state import State

RECENT = timedelta(days=30)
_READINGS = itertools.count(1)
"""Numbers the readings of ledgers by when they began: what a later one says is no older."""


class Spent(NamedTuple):
    """Sums as they were read of the ledger, in USD."""

    session: str
    session_usd: float | None
    today: Decimal | None
    """Everywhere, since local midnight; None until something was recorded in the workspace."""
    workspace: Decimal
    severity: Severity
    sessions: Mapping[str, float | None] = MappingProxyType({})
    """USD of every session of the workspace, where all were asked for."""
    reading: int = 0
    """When it was read: of two, the higher number says no less."""


@dataclass(eq=False)
class Costs:
    """A workspace's spending as it was last read. For the event loop; only its methods write it."""

    today: Decimal | None = None
    workspace: Decimal = Decimal(0)
    severity: Severity = "ok"
    sessions: dict[str, float | None] = field(default_factory=dict)
    read: bool = False
    """Whether the calls in the agents' files are in the ledger."""
    reading: bool = True
    """Whether this process reads them unasked when they are shown."""
    over_cap: bool = False
    """Whether the last preflight crossed a cap; a warning is sent once per crossing."""
    _reading: int = 0
    _readings: dict[str, int] = field(default_factory=dict)
    """Which reading each session's sum is of."""

    def note_history(self, *, read: bool, reading: bool = True) -> None:
        """Note whether the agents' calls are in the ledger, and whether they are read unasked."""
        self.read, self.reading = read, reading

    def cross_cap(self, *, is_over: bool) -> bool:
        """Note whether a cap is crossed. Returns whether that is new."""
        is_new = is_over and not self.over_cap
        self.over_cap = is_over
        return is_new

    def update(self, spent: Spent | None) -> None:
        """Show newly read sums, except where a later reading is shown: workers end in any order."""
        if spent is None:
            return
        if spent.reading >= self._reading:
            self._reading = spent.reading
            self.today, self.workspace, self.severity = spent.today, spent.workspace, spent.severity
        for session, usd in {**spent.sessions, spent.session: spent.session_usd}.items():
            if spent.reading >= self._readings.get(session, 0):
                self.sessions[session], self._readings[session] = usd, spent.reading


class Spending:
    """One workspace's view of the user's ledger, by frozen settings: any thread may use it."""

    def __init__(
        self,
        state: State,
        settings: Settings,
        uri: str | None,
        model: str,
        path: Path | None = None,
    ) -> None:
        """`path`: of the root folder, by which agents may call it in other ways."""
        self._state, self._settings = state, settings
        self._uri, self._model, self._path = uri or "", model, path

    @property
    def book(self) -> CostBook:
        """The user's ledger and prices."""
        return self._state.book(self._settings)

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        """What an agent may call this workspace: links resolved, other working trees."""
        from sidecar.agents.roots import Roots

        return () if self._path is None else Roots.of([self._path]).paths

    def record(
        self, params: CostRecordParams, reply: Reply | None = None, raw: object = None
    ) -> tuple[CostRecorded, Spent | None]:
        """Record a call, and read the sums with it.

        Args:
            params: The call.
            reply: The call's reply, if it was read already; its usage is recorded, not the params'.
            raw: The vendor's object that the reply was read from.

        Raises:
            BadParamsError: The call has no usage, or one in no known form.
            LedgerError: The ledger cannot be written.
        """
        call = msgspec.structs.replace(params, workspace=self._uri)
        if reply is None:
            recorded = self.book.record(call)
        elif reply.usage is None:
            raise BadParamsError(reply.usage_problem or "the reply reports no usage")
        else:
            recorded = self.book.record_usage(call, reply.usage, raw, reply.cost)
        return recorded, self._late(params.session or "")

    def detail(
        self, params: CostDetailParams, cancelled: Cancelled, progress: Progress
    ) -> CostReport:
        """Rows, totals and text of this workspace.

        Raises BadParamsError, ReadCancelledError, LedgerError.
        """
        placed = msgspec.structs.replace(params, workspace=self._uri or None)
        return self.book.detail(
            placed, folders=self._folders, cancelled=cancelled, progress=progress
        )

    def models(self) -> list[str]:
        """The models of this workspace's calls of the last 30 days; none where the ledger cannot
        be read."""
        since = (datetime.now(UTC) - RECENT).date().isoformat()
        with contextlib.suppress(SidecarError):
            rows = self._rows("model", since=since)
            return [row.model for row in sorted(rows, key=lambda row: -row.calls) if row.model]
        return []

    def _by_session(self) -> dict[str, float | None]:
        """USD of each session of this workspace; None where nothing of it is priced."""
        rows = self._rows("session")
        return {row.session: row.cost_usd for row in rows if isinstance(row.session, str)}

    def _rows(self, *by: CostKey, since: str | None = None) -> list[CostRow]:
        """What this workspace's calls have cost."""
        from sidecar.cost.protocol import CostDetailParams

        wanted = CostDetailParams(workspace=self._uri or None, by=by, since=since)
        return self.book.detail(wanted, folders=self._folders).rows

    def agents_models(self, since: str) -> dict[str, dict[str, int]]:
        """How many calls each agent's session made of each model in this workspace.

        Raises BadParamsError for a time that is none, LedgerError.
        """
        found: dict[str, dict[str, int]] = {}
        for row in self._rows("agent", "model", since=since):
            if row.agent and row.model:
                found.setdefault(row.agent, {})[row.model] = row.calls
        return found

    def prompt_file_calls(self, since: str, sizes: Iterable[int]) -> list[CallGroup]:
        """Return this workspace's calls, grouped as prompt files of these sizes need them.

        Raises BadParamsError for an invalid time, LedgerError.
        """
        from sidecar.cost.prompt_file_costs import group_calls
        from sidecar.cost.protocol import CostDetailParams

        wanted = CostDetailParams(workspace=self._uri or None, since=since)
        scope = self.book.scope(wanted, folders=self._folders)
        return group_calls(self.book.ledger, self.book.prices, scope, sizes)

    def preflight(
        self, model: str, prompt_tokens: int, output_tokens: int, session: str
    ) -> CostVerdict:
        """What a call would cost, and what the caps say to it."""
        caps = self._settings.cost
        return self.book.preflight(
            caps,
            model,
            prompt_tokens,
            output_tokens,
            workspace=self._uri,
            session=session,
            folders=self._folders,
        )

    def spent(self, session: str, *, every: bool = False) -> Spent:
        """The sums that the status shows; `every` session's too. Raises LedgerError."""
        from sidecar.cost.caps import judge

        reading = next(_READINGS)
        spend = self.book.spend(self._uri, session, self._folders)
        recorded = bool(spend.workspace) or "workspace" in spend.unknown
        # Nothing is about to be sent: the caps judge what was spent alone.
        verdict = judge(self._settings.cost, spend, Decimal(0), self._model).verdict
        severities: dict[str, Severity] = {"ok": "ok", "warn": "warning", "refuse": "error"}
        return Spent(
            session,
            None if "session" in spend.unknown else float(spend.session),
            spend.day if recorded and "day" not in spend.unknown else None,
            spend.workspace,
            severities[verdict],
            self._by_session() if every else {},
            reading,
        )

    def recall(self) -> Spent | None:
        """What earlier runs have recorded; None where there is no ledger, or it is broken."""
        from sidecar.cost.ledger import FILE_NAME

        exists = (self._state.folder / FILE_NAME).exists()
        return self._late("", every=True) if exists else None

    def _late(self, session: str, *, every: bool = False) -> Spent | None:
        from sidecar.cost.ledger import LedgerError

        with contextlib.suppress(LedgerError):  # it is recorded: only the status is late
            return self.spent(session, every=every)
        return None
