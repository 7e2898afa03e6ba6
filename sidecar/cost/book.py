"""What the server and the command line ask of this room: record, report, judge.

Plain and synchronous: a worker thread runs it. Nothing is opened or imported before it is needed.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sidecar.cost.caps import CostVerdict, Spend, has_caps, judge, spend_so_far
from sidecar.cost.days import since_ms, until_ms
from sidecar.cost.events import Buckets, Event, buckets_of, normal_tier, service_tier
from sidecar.cost.ledger import FILE_NAME, Ledger
from sidecar.cost.params import CostDetailParams, CostRecorded, CostRecordParams
from sidecar.cost.price_list import STORED_LIST
from sidecar.cost.prices import Prices
from sidecar.cost.reports import report
from sidecar.cost.sums import END_MS, Scope
from sidecar.cost.workspaces import workspace_key

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from datetime import tzinfo
    from decimal import Decimal
    from pathlib import Path

    from sidecar.config.settings import Caps, Price
    from sidecar.cost.otel import OtelExporter
    from sidecar.cost.reports import Cancelled, Progress
    from sidecar.cost.rows import CostReport
    from sidecar.endpoints.usage import Usage

_log = logging.getLogger(__name__)


class CostBook:
    """The ledger of one user with the prices of one configuration. Safe to share by threads."""

    def __init__(
        self,
        state: Path,
        entries: Sequence[Price] = (),
        *,
        zone: tzinfo | None = None,
        otel_endpoint: str | None = None,
    ) -> None:
        """`state`: the user's state folder. `zone`: whose days count; None is this machine's.

        `otel_endpoint`: the collector that the user named, told of each event that was new.
        """
        self.ledger = Ledger(state / FILE_NAME)
        self.prices = Prices(entries, state / STORED_LIST)
        self._zone = zone
        self._otel_endpoint = otel_endpoint
        self._exporter: OtelExporter | None = None
        self._exporter_lock = threading.Lock()

    def record(self, params: CostRecordParams) -> CostRecorded:
        """Keep a call and price it. Raises ValueError for a usage in no known form, LedgerError."""
        from sidecar.endpoints.usage import normalise_usage, reported_cost

        usage = normalise_usage(params.usage)
        if usage is None:
            raise ValueError("usage has no known vendor's form")
        event = Event(
            at=params.at or datetime.now(UTC),
            model=params.model,
            provider=params.provider or provider_of(params.model),
            buckets=buckets_of(usage, params.usage),
            category=params.category,
            tier=service_tier(params.usage),
            workspace=params.workspace or "",
            session=params.session or "",
            request_id=params.request_id,
            estimated_tokens=params.estimated_tokens,
            reported_cost=reported_cost(params.usage),
        )
        return self.record_event(event, usage)

    def record_event(self, event: Event, usage: Usage) -> CostRecorded:
        """Keep an event that was read already."""
        recorded = self.ledger.record(event)
        if not recorded.duplicate:
            self._export([event])
        cost = self.prices.cost(event)
        return CostRecorded(
            id=recorded.id,
            usage=usage,
            cost_usd=None if cost is None else float(cost),
            duplicate=recorded.duplicate,
        )

    def record_many(
        self,
        events: Iterable[Event],
        *,
        amend: bool = False,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> list[Event]:
        """Keep what a transcript holds (see `Ledger.record_many`); returns the new events."""
        new = self.ledger.record_many(events, amend=amend, also=also)
        self._export(new)
        return new

    def detail(
        self,
        params: CostDetailParams,
        *,
        agent: str | None = None,
        cancelled: Cancelled | None = None,
        progress: Progress | None = None,
    ) -> CostReport:
        """Rows, totals and text.

        Raises ValueError for bad params, ReadCancelledError, LedgerError.
        """
        return report(
            self.ledger, self.prices, self.scope(params, agent), params.by,
            zone=self._zone, cancelled=cancelled, progress=progress,
        )  # fmt: skip

    def scope(self, params: CostDetailParams, agent: str | None = None) -> Scope:
        """Which events are asked for. Raises ValueError for a time that is none."""
        workspace = params.workspace
        return Scope(
            start_ms=0 if params.since is None else since_ms(params.since, self._zone),
            end_ms=END_MS if params.until is None else until_ms(params.until, self._zone),
            workspace=None if workspace is None else workspace_key(workspace),
            session=params.session,
            agent=agent,
        )

    def estimate(
        self,
        model: str,
        prompt_tokens: int,
        max_output_tokens: int = 0,
        *,
        provider: str | None = None,
        tier: str = "",
    ) -> Decimal | None:
        """USD of a call that would be sent now: all input at the uncached price, and output up to
        the limit asked for. None where no price is known."""
        buckets = Buckets(input=prompt_tokens, output=max_output_tokens)
        served_by = provider or provider_of(model)
        return self.prices.price(buckets, model, served_by, tier=normal_tier(tier))

    def spend(self, workspace: str, session: str) -> Spend:
        """USD so far today, in the session and in the workspace."""
        with self.ledger.reader() as connection:
            return spend_so_far(
                connection, self.prices, workspace_key(workspace), session, zone=self._zone
            )

    def preflight(
        self,
        caps: Caps,
        model: str,
        prompt_tokens: int,
        max_output_tokens: int = 0,
        *,
        workspace: str = "",
        session: str = "",
        provider: str | None = None,
    ) -> CostVerdict:
        """What a call would cost, and what the caps say to it. Without caps nothing is read."""
        estimate = self.estimate(model, prompt_tokens, max_output_tokens, provider=provider)
        if not has_caps(caps):
            return CostVerdict("ok", estimate)
        return judge(caps, self.spend(workspace, session), estimate, model)

    def close(self) -> None:
        """Close the ledger, and send what still waits to be exported (seconds at most)."""
        self.ledger.close()
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None

    def _export(self, events: list[Event]) -> None:
        if self._otel_endpoint is None or not events:
            return
        from sidecar.cost.otel import OtelExporter, OtelMissingError

        with self._exporter_lock:
            try:
                self._exporter = self._exporter or OtelExporter(self._otel_endpoint, self.prices)
            except OtelMissingError as error:
                _log.warning("%s", error)
                self._otel_endpoint = None
                return
        for event in events:
            self._exporter.export(event)


def provider_of(model: str) -> str:
    """Who serves a model that came without a provider; "" where its name does not show it."""
    from sidecar.counting.catalogue import provider_of as known

    return known(model) or ""


__all__ = ["CostBook", "CostDetailParams", "CostRecordParams", "CostRecorded", "provider_of"]
