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
            state = self._services.state
            find = lambda: (str(state.calibrations_path),)  # noqa: E731
            self._watch = self._server.watch(find, self._changed, math.inf)

    def _changed(self, _changes: object) -> None:
        self._server.scheduler.soon(("learned elsewhere",), 0.0, self._look)

    def _on_event(self, event: Event) -> None:
        if event.what == "learned":
            self._server.scheduler.soon(("learned",), SAVE_SECONDS, self._save)

    async def _save(self) -> None:
        """A full disk is no defect: it is tried again with what is learned next."""
        try:
            taken = await self._services.workers.run(self._services.state.save)
        except OSError as exc:
            logger.warning("what was learned was not kept: %s", type(exc).__name__)
            return
        self._tell(taken or self._is_shown())

    def _is_shown(self) -> bool:
        """Whether something open is too long for a server to be asked: what others taught holds
        for it."""
        asked = any(may_ask(workspace.settings) for workspace in self._services.roots)
        documents = self._services.documents.values()
        return asked and any(one.characters > LARGEST_CHARACTERS for one in documents)

    async def _look(self) -> None:
        """Take over what another process has learned, where it has written that."""
        self._tell(await self._services.workers.run(self._services.state.look))

    def _tell(self, is_new: bool) -> None:
        """Have all that rests on what was learned worked out anew, where it is."""
        if is_new:
            self._services.publish(Event("endpoint"))
