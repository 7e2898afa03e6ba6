"""Saves calibrations, and shares them with other processes."""

from __future__ import annotations

import logging
import math

from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.counter_choice import has_enabled_endpoints
from sidecar.workspace.file_watcher import FileWatcher, PathSubscription
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
"""Delay before calibrations are written. Endpoints may change them frequently."""


class CalibrationSync(Feature):
    """Writes this process's calibrations, and reads those from other processes."""

    def __init__(self, services: Services, scheduler: Scheduler, watcher: FileWatcher) -> None:
        self._services, self._scheduler, self._watcher = services, scheduler, watcher
        self._watch: PathSubscription | None = None

    def on_event(self, event: Event) -> None:
        if event.what == "learned":
            self._scheduler.schedule(("calibrations",), SAVE_SECONDS, self._sync)
        elif event.what == "settings" and self._watch is None:
            paths = (str(self._services.calibrations.path),)
            self._watch = self._watcher.watch(lambda: paths, self._file_changed, math.inf)

    def _file_changed(self, _changes: object) -> None:
        self._scheduler.schedule(("calibrations",), 0.0, self._sync)

    async def _sync(self) -> None:
        calibrations = self._services.calibrations
        try:
            synced = await self._services.workers.run(calibrations.begin_sync())
        except OSError as exc:  # the disk may be full; the next change triggers a retry
            calibrations.changed()
            logger.warning("cannot write calibrations: %s", type(exc).__name__)
            return
        is_new = calibrations.finish_sync(synced)
        if is_new or (synced.written_version is not None and self._has_long_documents()):
            self._services.publish(Event("endpoint"))

    def _has_long_documents(self) -> bool:
        """Return whether an open document is estimated because it is too long for endpoints."""
        are_used = any(
            has_enabled_endpoints(workspace.settings) for workspace in self._services.roots
        )
        documents = self._services.documents.values()
        return are_used and any(row.characters > LARGEST_CHARACTERS for row in documents)
