"""Prices recorded calls after a change of prices, at low priority."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from importlib import import_module

from sidecar.errors import SidecarError
from sidecar.server.client import Client
from sidecar.server.feature import Feature
from sidecar.server.progress import progress
from sidecar.tasks import Scheduler
from sidecar.workspace.agent_reading import HistoryRecorder
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event

logger = logging.getLogger(__name__)

DELAY_SECONDS = 0.5
"""Delay before recorded calls are priced again after a change of settings."""
PAUSE_RATIO = 3.0
"""How long to pause between batches of calls to price, relative to the time that a batch takes."""


class CallPricing(Feature):
    """Prices calls whose prices have changed, and shows progress."""

    def __init__(
        self, services: Services, client: Client, scheduler: Scheduler, history: HistoryRecorder
    ) -> None:
        self._services, self._scheduler, self._history = services, scheduler, history
        self._progress = partial(progress, client, scheduler)
        self._stop = threading.Event()

    def on_event(self, event: Event) -> None:
        # Without a price list, calls cannot be priced. Another event follows when it is loaded.
        if event.what in ("settings", "shared ledger") and self._services.windows.ready:
            self._scheduler.schedule(("pricing",), DELAY_SECONDS, self._price)

    def close(self) -> None:
        """Stop. The next process continues where this one stopped."""
        self._stop.set()

    async def _price(self) -> None:
        workspace = next((root for root in self._services.roots if root.has_settings), None)
        if workspace is None:
            return
        repricing = await self._services.workers.run(
            partial(import_module, "sidecar.cost.repricing")
        )
        ledger, stop = self._services.spending(workspace).book.ledger, threading.Event()
        self._stop = stop
        async with self._progress("Computing costs", stop) as report:
            work = partial(
                repricing.price_calls, ledger, stop,
                rest=PAUSE_RATIO, progress=partial(report, "pricing calls"),
            )  # fmt: skip
            try:
                is_changed = await self._services.workers.run(work)
            except asyncio.CancelledError:
                stop.set()
                raise
            except SidecarError as error:  # the next start continues
                logger.warning("cannot price recorded calls: %s", error)
                return
        for root in tuple(self._services.roots) if is_changed else ():
            if root.has_settings:
                await self._history.refresh(root)
