"""Model servers that were away or late are asked again, while a number rests on them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sidecar.workspace.budgets import model_of
from sidecar.workspace.events import Event
from sidecar.workspace.gauges import may_ask

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.endpoints.outcome import MissKind
    from sidecar.server.scheduler import JobKey
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

GRACE_SECONDS = 0.05
"""After the end of a back-off, so that it is over."""


ROUND_SECONDS = 60.0
"""What is missed so soon after it was asked again is asked later the next time."""


class _Round(NamedTuple):
    """How often a model's endpoint was asked again of late, and until when that counts."""

    tries: int = 0
    over_at: float = 0.0


class Retries:
    """One timer for each model whose endpoint is away or was late, and none that nothing open
    waits for.

    An untouched document would else stay an estimate until somebody types.
    """

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._rounds: dict[JobKey, _Round] = {}
        server.services.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.what == "settings":
            self._server.scheduler.soon(("endpoints-closed",), 0.0, self._close_unused)
        elif event.missed is not None:
            self._schedule(*event.missed)

    async def _close_unused(self) -> None:
        """Let go of the model servers that no root's settings declare any more."""
        used = [workspace.settings for workspace in self._services.roots]
        now = {settings.endpoints for settings in used}
        self._rounds = {key: one for key, one in self._rounds.items() if key[2] in now}
        await self._services.counts.keep_endpoints(used)

    def _schedule(self, model: str, settings: Settings, kind: MissKind) -> None:
        """Ask again when that is worth it, later after each miss in a row."""
        key: JobKey = ("endpoint", model, settings.endpoints)
        last = self._rounds.get(key, _Round())
        if asyncio.get_running_loop().time() > last.over_at:
            last = _Round()
        seconds = self._services.counts.endpoints(settings).again_in(model, kind, last.tries + 1)
        if seconds is not None and self._is_used(model, settings):
            work = partial(self._ask_again, key, model, settings, last.tries + 1)
            self._server.scheduler.soon(key, seconds + GRACE_SECONDS, work)

    async def _ask_again(self, key: JobKey, model: str, settings: Settings, tries: int) -> None:
        endpoints = self._services.counts.endpoints(settings)
        if not self._is_used(model, settings):
            self._rounds.pop(key, None)
            return
        self._rounds[key] = _Round(tries, asyncio.get_running_loop().time() + ROUND_SECONDS)
        await endpoints.wake(model)
        if endpoints.away_for(model) is not None:
            self._schedule(model, settings, "unreachable")
            return
        self._services.publish(Event("endpoint"))
        for workspace in self._roots(settings):
            if self._services.known_sessions(workspace) is not None:
                await self._services.conversations(workspace).ask_missed(model)

    def _roots(self, settings: Settings) -> list[Workspace]:
        return [
            workspace
            for workspace in self._services.roots
            if may_ask(workspace.settings) and workspace.settings.endpoints == settings.endpoints
        ]

    def _is_used(self, model: str, settings: Settings) -> bool:
        """Whether an open document or a conversation counts for the model by these endpoints."""
        return any(self._counts_for(workspace, model) for workspace in self._roots(settings))

    def _counts_for(self, workspace: Workspace, model: str) -> bool:
        services = self._services
        sessions = services.known_sessions(workspace)
        if sessions is not None and any(one.session.model == model for one in sessions.store):
            return True
        mine = [uri for uri in services.documents if services.roots.of_document(uri) is workspace]
        return any(model_of(uri, workspace) == model for uri in mine)
