"""The workspaces' conversations, shared with `token-sidecar usage` and `statusline` by counts."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.context.usage import ContextUsage
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.events import Event
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

SHARE_SECONDS = 0.5
"""Seconds from a change of a conversation until other processes can read it."""


class Sharing:
    """Writes the sizes of each workspace's conversations a little after one has changed."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._shared: set[str] = set()
        server.services.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.what == "context" and event.workspace is not None:
            key = "sharing", event.workspace
            self._server.scheduler.soon(key, SHARE_SECONDS, partial(self._share, event.workspace))
        elif event.what == "settings":
            self._server.scheduler.soon(("sharing",), SHARE_SECONDS, self._forget_closed)

    async def _share(self, workspace: Workspace) -> None:
        sessions, uri = self._services.known_sessions(workspace), workspace.uri
        if sessions is None or uri is None or not (any(sessions.store) or uri in self._shared):
            return
        await self._services.conversations(workspace).recount()
        self._shared.add(uri)
        await self._write(uri, sessions.own_usages())

    async def _forget_closed(self) -> None:
        for uri in self._shared - {workspace.uri for workspace in self._services.roots}:
            self._shared.discard(uri)
            await self._write(uri, [])

    async def _write(self, uri: str, usages: list[ContextUsage]) -> None:
        """A full disk is no defect: the next change tries again."""
        try:
            await self._services.live.write(uri, usages)
        except OSError as exc:
            logger.warning("conversations are not shared: %s", type(exc).__name__)
