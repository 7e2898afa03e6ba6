"""What changes as time passes: "today" at midnight, and which session is shown."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.events import Event
    from sidecar.workspace.workspace import Workspace

GRACE_SECONDS = 0.05
"""After the moment itself, so that it has passed."""


class PassingTime:
    """Schedules one job for each of these moments; nothing is due where nothing can change."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        server.services.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.what == "context" and event.workspace is not None:
            self._schedule_session(event.workspace)
        if not self._server.scheduler.is_due(("midnight",)) and self._spending_workspaces():
            now = datetime.now().astimezone()
            seconds = (_next_midnight(now) - now).total_seconds() + GRACE_SECONDS
            self._server.scheduler.soon(("midnight",), seconds, self._begin_day)

    def _schedule_session(self, workspace: Workspace) -> None:
        """Publish the workspace's sessions again when another one is to be shown."""
        key = "session age", workspace
        self._server.scheduler.cancel(key)
        sessions = self._services.known_sessions(workspace)
        at = None if sessions is None else sessions.next_change()
        if sessions is not None and at is not None:
            seconds = (at - datetime.now(at.tzinfo)).total_seconds() + GRACE_SECONDS
            work = partial(self._publish, workspace)
            self._server.scheduler.soon(key, max(0.0, seconds), work)

    def _publish(self, workspace: Workspace) -> None:
        sessions = self._services.known_sessions(workspace)
        if sessions is not None:
            sessions.publish()

    async def _begin_day(self) -> None:
        """Sum up what was spent today, which is nothing yet."""
        for workspace in self._spending_workspaces():
            await self._server.history.refresh(workspace)

    def _spending_workspaces(self) -> list[Workspace]:
        return [one for one in self._services.roots if one.costs.today is not None]


def _next_midnight(now: datetime) -> datetime:
    """The beginning of the next local day, which may be 23 or 25 hours long."""
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()
