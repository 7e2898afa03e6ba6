"""Model servers that were away are asked again when it is time, while a number rests on them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sidecar.workspace.budgets import model_of
from sidecar.workspace.events import Event
from sidecar.workspace.gauges import may_ask

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

GRACE_SECONDS = 0.05
"""After the end of a back-off, so that it is over."""


class Retries:
    """One timer for each model whose endpoint is away, and none that nothing open waits for.

    An untouched document would else stay an estimate until somebody types.
    """

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        server.services.counts.missed = self._missed

    def _missed(self, model: str, settings: Settings) -> None:
        seconds = self._services.counts.endpoints(settings).away_for(model)
        if seconds is not None and self._is_used(model, settings):
            key = ("endpoint", model, settings.endpoints)
            work = partial(self._ask_again, model, settings)
            self._server.scheduler.soon(key, seconds + GRACE_SECONDS, work)

    async def _ask_again(self, model: str, settings: Settings) -> None:
        endpoints = self._services.counts.endpoints(settings)
        if not self._is_used(model, settings):
            return
        await endpoints.wake(model)
        if endpoints.away_for(model) is None:
            self._services.publish(Event("endpoint"))
        else:
            self._missed(model, settings)

    def _is_used(self, model: str, settings: Settings) -> bool:
        """Whether an open document or a conversation counts for the model by these endpoints."""
        roots = [
            workspace
            for workspace in self._services.roots
            if may_ask(workspace.settings) and workspace.settings.endpoints == settings.endpoints
        ]
        return any(self._counts_for(workspace, model) for workspace in roots)

    def _counts_for(self, workspace: Workspace, model: str) -> bool:
        services = self._services
        sessions = services.sessions(workspace)
        if sessions is not None and any(one.session.model == model for one in sessions.store):
            return True
        mine = [uri for uri in services.documents if services.roots.of_document(uri) is workspace]
        return any(model_of(uri, workspace) == model for uri in mine)
