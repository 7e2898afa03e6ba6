"""Updates contexts after a change of a document, of settings, of costs or of an endpoint."""

from __future__ import annotations

from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event

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
