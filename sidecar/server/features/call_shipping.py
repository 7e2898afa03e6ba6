"""Sends recorded calls to the user's collector."""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from sidecar.config.settings import Settings
from sidecar.errors import SidecarError
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler, backoff
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

if TYPE_CHECKING:
    from sidecar.cost.shipping import Collector, ShippingQueue

logger = logging.getLogger(__name__)

SHIP_SECONDS = 15.0
"""How often recorded calls are sent to a collector."""
LONGEST_SHIP_SECONDS = 900.0
"""Maximum delay after failed attempts to send calls."""
SHIP_BATCH = 100
"""Maximum number of calls in a request to a collector."""
SHIP_PAUSE_SECONDS = 1.0
"""Pause between requests, so that sending a large backlog does not slow down typing."""


class CallShipping(Feature):
    """Sends recorded calls to the user's collector, at low priority."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self._failures = 0
        self._opened: tuple[Settings, ShippingQueue] | None = None
        self._warned: set[str] = set()

    def on_event(self, event: Event) -> None:
        if event.what != "settings" or self._workspace() is None:
            return
        if self._failures:  # the new settings may have fixed the cause
            self._failures = 0
            self._scheduler.run_now(("shipping",), self._ship)
        else:
            self._scheduler.schedule(("shipping",), SHIP_SECONDS, self._ship)

    def _workspace(self) -> Workspace | None:
        roots = self._services.roots
        return next((root for root in roots if root.settings.ledger.otel_endpoint), None)

    async def _ship(self) -> None:
        workspace = self._workspace()
        if workspace is None:
            return
        delay = LONGEST_SHIP_SECONDS  # used if the run raises an unexpected exception
        try:
            await self._ship_queued(workspace)
            self._failures, delay = 0, SHIP_SECONDS
        except SidecarError as error:
            # The next run opens the queue again, because the ledger may have been replaced.
            self._opened = None
            self._failures += 1
            if self._failures == 1:
                logger.warning("cannot send calls to the collector: %s", error)
            delay = SHIP_SECONDS + backoff(self._failures, SHIP_SECONDS, LONGEST_SHIP_SECONDS)
            delay = max(delay, getattr(error, "retry_after", 0.0))
        finally:
            self._scheduler.schedule(("shipping",), delay, self._ship)

    async def _ship_queued(self, workspace: Workspace) -> None:
        run, settings = self._services.workers.run, workspace.settings
        shipping, repricing = [
            await run(partial(import_module, f"sidecar.cost.{name}"))
            for name in ("shipping", "repricing")
        ]
        if self._opened is None or self._opened[0] != settings:
            spending = self._services.spending(workspace)
            queue = await run(lambda: shipping.open_queue(spending.book, settings))
            self._opened = settings, queue
        _settings, queue = self._opened
        # Calls without a price are not sent.
        await run(partial(repricing.price_new_calls, queue.ledger))
        async with shipping.open_collector(queue, settings.ledger.otel_endpoint) as collector:
            shipped = await shipping.ship(
                queue, collector, run, limit=SHIP_BATCH, pause=SHIP_PAUSE_SECONDS
            )
            if shipped.rejected:
                self._warn_once("calls", shipped.reason)
            for root in tuple(self._services.roots):
                await self._ship_files(root, queue, collector)

    async def _ship_files(
        self, workspace: Workspace, queue: ShippingQueue, collector: Collector
    ) -> None:
        """Once a day, report the cost of a workspace's prompt files."""
        from sidecar.cost.protocol import CostFilesParams
        from sidecar.cost.shipping import send_file_report
        from sidecar.workspace.prompt_files import file_costs, file_records

        run, uri = self._services.workers.run, workspace.uri
        if uri is None or await run(partial(queue.has_file_report, uri)):
            return
        workspaces = {*(await run(queue.reported_workspaces)), *self._open_workspaces()}
        params = CostFilesParams()
        files = await file_costs(self._services, workspace, params, reported=workspaces)
        records = file_records(files, uri, queue.identity)
        if reason := await send_file_report(queue, collector, run, uri, records):
            self._warn_once("the costs of prompt files", reason)

    def _open_workspaces(self) -> list[str]:
        return [root.uri for root in self._services.roots if root.uri is not None]

    def _warn_once(self, what: str, reason: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("the collector rejected %s: %s", what, reason)
