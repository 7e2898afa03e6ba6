"""Updates conversations after other changes, and shares them with other servers."""

from __future__ import annotations

import logging
from functools import partial

from sidecar.conversations.context_protocol import ContextUsage
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

DELAY_SECONDS = 0.075


class ContextUpdates(Feature):
    """Computes the affected contexts once for several changes in quick succession."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler

    def on_event(self, event: Event) -> None:
        if event.what not in ("document", "settings", "endpoint", "ledger"):
            return
        services = self._services
        for workspace in services.roots:
            sessions = services.known_sessions(workspace)
            if sessions is None or not event.concerns(workspace):
                continue
            if event.uri is None or sessions.follows_document(event.uri):
                # Agents' sessions are not counted, so do not import the counting modules for them.
                has_conversations = bool(sessions.conversations)
                work = (
                    services.conversations(workspace).refresh
                    if has_conversations
                    else sessions.publish
                )
                self._scheduler.schedule(("context", workspace), DELAY_SECONDS, work)


logger = logging.getLogger(__name__)

SHARING_DELAY_SECONDS = 0.5
"""Delay before a changed conversation is written."""


class ConversationSharing(Feature):
    """Shares conversations' usage with the `usage` and `statusline` commands."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self._shared: set[str] = set()

    def on_event(self, event: Event) -> None:
        if event.what == "context" and event.workspace is not None:
            work = partial(self._write_conversations, event.workspace)
            self._scheduler.schedule(("sharing", event.workspace), SHARING_DELAY_SECONDS, work)
        elif event.what == "settings":
            self._scheduler.schedule(("sharing",), SHARING_DELAY_SECONDS, self._forget_closed)

    async def _write_conversations(self, workspace: Workspace) -> None:
        sessions, uri = self._services.known_sessions(workspace), workspace.uri
        if sessions is None or uri is None or not (sessions.conversations or uri in self._shared):
            return
        await self._services.conversations(workspace).recount()
        self._shared.add(uri)
        await self._write(uri, sessions.conversation_usages())

    async def _forget_closed(self) -> None:
        for uri in self._shared - {workspace.uri for workspace in self._services.roots}:
            self._shared.discard(uri)
            await self._write(uri, [])

    async def _write(self, uri: str, usages: list[ContextUsage]) -> None:
        try:
            await self._services.shared_conversations.write(uri, usages)
        except OSError as exc:  # the disk may be full; the next change triggers a retry
            logger.warning(
                "cannot share conversations with other processes: %s", type(exc).__name__
            )
