"""Updates what time changes: today's costs, the shown session, and whether its cache is cold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from functools import partial
from importlib import import_module
from weakref import WeakKeyDictionary, ref

from sidecar.conversations.context_rows import current_step, is_cold
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.status import cache_status, with_forecast
from sidecar.workspace.workspace import Event, Workspace

GRACE_SECONDS = 0.05
"""Added to delays to make sure that timers do not fire too early."""


class TimedUpdates(Feature):
    """Resets today's costs at midnight, and hides sessions that are too old."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler

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

    def _begin_day(self) -> None:
        for workspace in self._spending_workspaces():
            self._services.publish(Event("calls", workspace))

    def _spending_workspaces(self) -> list[Workspace]:
        return [root for root in self._services.roots if root.costs.sums.today is not None]


def _next_midnight(now: datetime) -> datetime:
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()


FORECAST_SECONDS = 5.0
"""Minimum time between two forecasts of a session, in seconds."""
RECHECK_SECONDS = 60.0
"""Time between two forecasts if the cache expires during a turn."""
_LONGEST_WAIT_SECONDS = 60.0
"""Timers stop while a laptop sleeps, so a longer wait could end long after the expiry."""


class CacheUpdates(Feature):
    """Shows until when the shown session's prompt is cached, and warns once when it is cold.

    Only sessions of agents are followed. There is no warning during a turn, and none about a cache
    that was already cold when the session was first shown.
    """

    def __init__(
        self,
        services: Services,
        scheduler: Scheduler,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._services, self._scheduler, self._clock = services, scheduler, clock
        self._warm: WeakKeyDictionary[Workspace, _CacheKey] = WeakKeyDictionary()
        """The cache of each workspace that was seen warm, until the warning about it is sent."""

    def on_event(self, event: Event) -> None:
        if event.what in ("ledger", "context") and event.workspace is not None:
            self._read_soon(ref(event.workspace))  # jobs must not keep a closed workspace alive

    def _read_soon(self, known: ref[Workspace]) -> None:
        workspace = known()
        usage = None if workspace is None else workspace.context.usage
        if workspace is None or usage is None or usage.session is None:
            return
        if usage.session.source != "protocol":
            key, read = ("forecast", workspace.uri), partial(self._read, known)
            self._scheduler.schedule(key, FORECAST_SECONDS, read)

    async def _read(self, known: ref[Workspace]) -> None:
        # Importing the module blocks the event loop for some time.
        module = "sidecar.workspace.usage_details"
        details = await self._services.workers.run(partial(import_module, module))
        workspace = known()
        sessions = None if workspace is None else self._services.known_sessions(workspace)
        usage = None if workspace is None else workspace.context.usage
        if workspace is None or sessions is None or usage is None or usage.session is None:
            return
        session = sessions.find(None)
        read = details.read_forecast(self._services, workspace, session, usage, self._clock())
        workspace.costs.set_forecast(usage.session.id, await read)
        self._update(ref(workspace))

    def _update(self, known: ref[Workspace]) -> None:
        """Publish the state of the cache, warn if it is cold, and wait until it changes."""
        workspace = known()
        if workspace is None:
            return
        self._services.publish(Event("cache", workspace))
        forecast = workspace.costs.forecasts.get(workspace.shown_session)
        now = self._clock()
        step = None if forecast is None else current_step(forecast, now)
        self._scheduler.cancel(("cache", workspace.uri))
        if forecast is None or forecast.cached_until is None or step is None:
            return
        cache = workspace.shown_session, forecast.cached_until
        if not is_cold(forecast, now):
            self._warm[workspace] = cache
        elif self._warm.get(workspace) == cache:
            if forecast.running:  # a call may have begun before the cache expired
                key, read = ("cache", workspace.uri), partial(self._read_soon, known)
                self._scheduler.schedule(key, RECHECK_SECONDS, read)
                return
            self._warn(workspace)
        if step.until is not None:
            self._wait(known, datetime.fromisoformat(step.until))

    def _wait(self, known: ref[Workspace], until: datetime) -> None:
        workspace = known()
        seconds = (until - self._clock()).total_seconds()
        if workspace is None:
            return
        if seconds <= 0:
            if not self._scheduler.is_due(("forecast", workspace.uri)):
                self._update(known)
            return
        wait = partial(self._wait, known, until)
        seconds = min(seconds + GRACE_SECONDS, _LONGEST_WAIT_SECONDS)
        self._scheduler.schedule(("cache", workspace.uri), seconds, wait)

    def _warn(self, workspace: Workspace) -> None:
        usage = with_forecast(workspace.context.usage, workspace.costs)
        status = cache_status(usage, workspace.settings.cost, self._clock())
        sessions = self._services.known_sessions(workspace)
        if status is not None and sessions is not None:
            del self._warm[workspace]
            sessions.warn("cold", f"{status.text[0].upper()}{status.text[1:]}.", usage)


_CacheKey = tuple[str, str]
"""A session's id, and when its cache expires."""
