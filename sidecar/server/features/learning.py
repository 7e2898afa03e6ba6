"""What was learned is written soon, and what others have written is taken over: the command line
and all editors count alike."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.workspace.events import Event
from sidecar.workspace.gauges import may_ask

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.file_watcher import Subscription

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
"""An endpoint teaches with every edit; one write has all of that time."""


class Learning:
    """Writes what reports and endpoints have taught, on a worker."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        server.services.listeners.append(self._on_event)
        self._watch: Subscription | None = None

    def watch(self) -> None:
        """Follow what other processes learn."""
        if self._watch is None:
            path = str(self._services.calibrations.path)
            find = lambda: (path,)  # noqa: E731
            self._watch = self._server.watch(find, self._changed, math.inf)

    def _changed(self, _changes: object) -> None:
        self._server.scheduler.soon(("learned",), 0.0, self._sync)

    def _on_event(self, event: Event) -> None:
        if event.what == "learned":
            self._server.scheduler.soon(("learned",), SAVE_SECONDS, self._sync)

    async def _sync(self) -> None:
        """Write what was learned, or read what others have. A full disk is no defect: it is tried
        again with what is learned next."""
        calibrations = self._services.calibrations
        work = calibrations.begin_sync()
        if work is None:
            return
        try:
            synced = await self._services.workers.run(work)
        except OSError as exc:
            calibrations.changed()
            logger.warning("what was learned was not kept: %s", type(exc).__name__)
            return
        is_new = calibrations.finish_sync(synced)
        if is_new or (synced.has_written and self._is_shown()):
            self._services.publish(Event("endpoint"))  # what rests on it is worked out again

    def _is_shown(self) -> bool:
        """Whether something open is too long for a server to be asked: what others taught holds
        for it."""
        asked = any(may_ask(workspace.settings) for workspace in self._services.roots)
        documents = self._services.documents.values()
        return asked and any(one.characters > LARGEST_CHARACTERS for one in documents)
