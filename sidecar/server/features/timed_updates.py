"""Updates what the time of day changes: today's costs, and which session is shown."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from functools import partial
from weakref import ref

from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.agent_watcher import HistoryRecorder
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

GRACE_SECONDS = 0.05
"""Added to delays to make sure that timers do not fire too early."""


class TimedUpdates(Feature):
    """Resets today's costs at midnight, and hides sessions that are too old."""

    def __init__(self, services: Services, scheduler: Scheduler, history: HistoryRecorder) -> None:
        self._services, self._scheduler, self._history = services, scheduler, history

    def on_event(self, event: Event) -> None:
        if event.what == "context" and event.workspace is not None:
            self._await_session_change(event.workspace)
        if not self._scheduler.is_due(("midnight",)) and self._spending_workspaces():
            now = datetime.now().astimezone()
            seconds = (_next_midnight(now) - now).total_seconds() + GRACE_SECONDS
            self._scheduler.schedule(("midnight",), seconds, self._begin_day)

    def _await_session_change(self, workspace: Workspace) -> None:
        """Schedule an update for the time at which the shown session becomes too old."""
        # The job must not keep a closed workspace alive until then.
        key = "session age", workspace.uri
        self._scheduler.cancel(key)
        sessions = self._services.known_sessions(workspace)
        at = None if sessions is None else sessions.next_switch_at()
        if at is not None:
            seconds = (at - datetime.now(at.tzinfo)).total_seconds() + GRACE_SECONDS
            publish = partial(self._publish, ref(workspace))
            self._scheduler.schedule(key, max(0.0, seconds), publish)

    def _publish(self, workspace: ref[Workspace]) -> None:
        known = workspace()
        sessions = None if known is None else self._services.known_sessions(known)
        if sessions is not None:
            sessions.publish()

    async def _begin_day(self) -> None:
        for workspace in self._spending_workspaces():
            await self._history.refresh(workspace)

    def _spending_workspaces(self) -> list[Workspace]:
        return [root for root in self._services.roots if root.costs.today is not None]


def _next_midnight(now: datetime) -> datetime:
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()
