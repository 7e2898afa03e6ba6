"""What a workspace spends: recording, caps, and the sums that its status shows. Blocking."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from decimal import Decimal

    from sidecar.cost.book import CostBook, CostDetailParams, CostRecorded, CostRecordParams
    from sidecar.cost.caps import CostVerdict
    from sidecar.cost.reports import Cancelled, Progress
    from sidecar.cost.rows import CostReport
    from sidecar.endpoints.reply import Reply
    from sidecar.workspace.workspace import Workspace


@dataclass(eq=False)
class Costs:
    """What was last read of a workspace's spending, in USD."""

    today: Decimal | None = None
    """Everywhere, since local midnight; None until something was recorded here."""
    workspace: Decimal | int = 0
    severity: Literal["ok", "warning", "error"] = "ok"
    sessions: dict[str, float | None] = field(default_factory=dict)
    warned: bool = False
    """Whether a cap is crossed and the client was told."""


class Spending:
    """One workspace's view of the user's ledger."""

    def __init__(self, book: CostBook, workspace: Workspace) -> None:
        self._book = book
        self._workspace = workspace
        self._uri = workspace.uri or ""

    @property
    def warned(self) -> bool:
        """Whether a cap is crossed and the client was told."""
        return self._workspace.costs.warned

    @warned.setter
    def warned(self, value: bool) -> None:
        self._workspace.costs.warned = value

    def record(self, params: CostRecordParams) -> CostRecorded:
        """Keep a call. Raises ValueError for a usage in no known form, LedgerError."""
        talk = self._workspace.known_talk
        current = talk.conversations.current() if talk else None
        session = params.session or (current.session.id if current else None)
        placed = msgspec.structs.replace(params, workspace=self._uri, session=session)
        recorded = self._book.record(placed)
        self.refresh(session or "")
        return recorded

    def record_reply(
        self,
        session: str,
        reply: Reply,
        *,
        model: str,
        category: str,
        request_id: str | None,
        raw: Any,
        estimate: int | None,
    ) -> None:
        """Keep the call that a reply answered. Raises LedgerError."""
        from sidecar.cost.book import provider_of
        from sidecar.cost.events import Event, buckets_of, service_tier

        if reply.usage is None:
            return
        event = Event(
            at=datetime.now(UTC),
            model=model,
            provider=provider_of(model),
            buckets=buckets_of(reply.usage, raw),
            category=category,
            tier=service_tier(raw),
            workspace=self._uri,
            session=session,
            request_id=request_id,
            estimated_tokens=estimate,
            reported_cost=reply.cost,
        )
        self._book.record_event(event, reply.usage)
        self.refresh(session)

    def detail(
        self, params: CostDetailParams, cancelled: Cancelled, progress: Progress
    ) -> CostReport:
        """Rows, totals and text of this workspace.

        Raises ValueError, ReadCancelledError, LedgerError.
        """
        placed = msgspec.structs.replace(params, workspace=self._uri or None)
        return self._book.detail(placed, cancelled=cancelled, progress=progress)

    def preflight(
        self, model: str, prompt_tokens: int, output_tokens: int, session: str
    ) -> CostVerdict:
        """What a call would cost, and what the caps say to it."""
        caps = self._workspace.settings.cost
        return self._book.preflight(
            caps, model, prompt_tokens, output_tokens, workspace=self._uri, session=session
        )

    def refresh(self, session: str) -> None:
        """Read the sums that the status shows."""
        from decimal import Decimal

        from sidecar.cost.caps import judge

        costs = self._workspace.costs
        spend = self._book.spend(self._uri, session)
        recorded = bool(spend.workspace) or "workspace" in spend.unknown
        costs.today = spend.day if recorded and "day" not in spend.unknown else None
        costs.workspace = spend.workspace
        costs.sessions[session] = None if "session" in spend.unknown else float(spend.session)
        # Nothing is about to be sent: the caps judge what was spent alone.
        verdict = judge(self._workspace.settings.cost, spend, Decimal(0), self._workspace.model)
        ranks = {"ok": "ok", "warn": "warning", "refuse": "error"}
        costs.severity = ranks[verdict.verdict]  # type: ignore[assignment]
