"""Sends the status and the warnings that the editor shows, also when only time has passed.

While the user types, an update is sent every 75 ms. Keystrokes do not restart the timer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, time, timedelta
from functools import partial
from importlib import import_module
from weakref import WeakKeyDictionary, ref

import msgspec

from sidecar.conversations.context_rows import current_step, is_cold
from sidecar.counting.count_result import Count
from sidecar.counting.counts import seconds_until_pause
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import INLINE_CHARACTERS
from sidecar.server.client import Client
from sidecar.server.protocol import Feature
from sidecar.tasks import GRACE_SECONDS, PATIENCE_SECONDS, Scheduler, wait_or_fall_back
from sidecar.text.document import TextDocument
from sidecar.workspace.document_budgets import find_lowest_budget, model_of
from sidecar.workspace.services import Services
from sidecar.workspace.status import (
    StatusUpdate,
    cache_status,
    document_status,
    status_update,
    with_forecast,
    worse_severity,
)
from sidecar.workspace.workspace import Event, Workspace

DEBOUNCE_SECONDS = 0.075
FORECAST_SECONDS = 5.0
"""Minimum time between two forecasts of a session, in seconds."""
RECHECK_SECONDS = 60.0
"""Time between two forecasts if the cache expires during a turn."""
_LONGEST_WAIT_SECONDS = 60.0
"""Timers stop while a laptop sleeps, so a longer wait could end long after the expiry."""
_CacheKey = tuple[str, str]
"""A session's id, and when its cache expires."""


class StatusUpdates(Feature):
    """Sends each open document's status. If none is open, sends a workspace's status."""

    def __init__(self, services: Services, client: Client, scheduler: Scheduler) -> None:
        self._services, self._client, self._scheduler = services, client, scheduler
        self._sent: dict[str, StatusUpdate | None] = {}
        """The last update sent for each open document."""
        self._documents: dict[str, TextDocument] = {}
        self._last_without_document: StatusUpdate | None = None
        self._last_workspace: Workspace | None = None
        """The last workspace whose status was sent while no document was open."""

    def on_event(self, event: Event) -> None:
        if not event.shows:
            return
        if event.uri is not None:
            self._document_changed(event.uri)
            return
        if not self._sent and self._services.configured.is_set():
            self._update_without_document(event.workspace)
        for uri, sent in self._sent.items():
            if not event.concerns(self._services.roots.of_document(uri)):
                continue
            if sent is None and not self._scheduler.is_due(("status", uri)):
                self._refresh_now(uri)
            else:
                self._refresh_soon(uri)

    def _document_changed(self, uri: str) -> None:
        document = self._services.documents.get(uri)
        if document is None:
            self._closed(uri)
        elif self._documents.get(uri) is document:
            self._refresh_soon(uri)
        else:  # opened, perhaps again
            self._documents[uri] = document
            self._last_without_document = self._sent[uri] = None
            if self._services.configured.is_set():
                self._refresh_now(uri)

    def _closed(self, uri: str) -> None:
        """Forget a closed document. If it was the last one, show a workspace's context."""
        self._sent.pop(uri, None)
        self._documents.pop(uri, None)
        self._scheduler.cancel(("status", uri))
        if not self._sent:
            self._update_without_document(self._services.roots.of_document(uri))

    def _refresh_soon(self, uri: str) -> None:
        work = partial(self._refresh, uri)
        self._scheduler.schedule(("status", uri), DEBOUNCE_SECONDS, work)

    def _refresh_now(self, uri: str) -> None:
        self._scheduler.run_now(("status", uri), partial(self._refresh, uri))

    def _refresh(self, uri: str) -> Awaitable[None] | None:
        services = self._services
        if not services.configured.is_set():  # another update follows when the settings are loaded
            return None
        workspace, document = services.roots.of_document(uri), services.documents[uri]
        if not document.is_synced:
            self._send(uri, None)
            return None
        snapshot, model = services.documents.snapshot(uri), model_of(uri, workspace)
        count = services.counts.count_if_quick(snapshot, model, workspace)
        if count is not None:
            self._send(uri, count)
            return None
        if self._sent[uri] is None and document.characters > INLINE_CHARACTERS:
            self._send(uri, services.counts.extrapolate(document, model, workspace))
        return self._count(uri)

    async def _count(self, uri: str) -> None:
        services = self._services
        workspace, snapshot = services.roots.of_document(uri), services.documents.snapshot(uri)
        model = model_of(uri, workspace)

        async def send_estimate() -> None:
            if services.counts.asks_endpoint(model, workspace.settings):
                estimate = await services.counts.count_locally(snapshot, model, workspace)
                self._send_if_current(uri, snapshot, estimate)

        counting = services.counts.count(snapshot, model, workspace)
        # Large documents are not sent to an endpoint while the user is typing.
        patience = 0.0 if seconds_until_pause(snapshot) else PATIENCE_SECONDS
        count = await wait_or_fall_back(counting, send_estimate, patience)
        self._send_if_current(uri, snapshot, count)

    def _send_if_current(self, uri: str, snapshot: Snapshot, count: Count) -> None:
        """Send a count unless the document has changed."""
        documents = self._services.documents
        if documents[uri].is_synced and documents.snapshot(uri) is snapshot:
            self._send(uri, count)
        else:
            self._refresh_soon(uri)

    def _send(self, uri: str, count: Count | None) -> None:
        workspace = self._services.roots.of_document(uri)
        version = self._services.documents[uri].version
        document_part, severity = None, self._services.severities.get(uri, "ok")
        if count is not None:
            budget = find_lowest_budget(self._services.documents.snapshot(uri), workspace)
            document_part = document_status(count, budget, workspace.loaded)
            severity = worse_severity(document_part.severity, severity)
        update = status_update(workspace, uri, version, document_part, severity)
        if not _is_same(self._sent[uri], update):
            self._sent[uri] = update
            self._client.protocol.push("status/update", update)

    def _update_without_document(self, changed: Workspace | None) -> None:
        """Send a workspace's status while no document is open.

        Prefers the workspace that changed last, unless its status is empty.
        """
        roots = list(self._services.roots)
        preferred = [root for root in (changed, self._last_workspace) if root in roots]
        first, *others = dict.fromkeys((*preferred, *roots))
        for workspace in (first, *others, first):
            update = status_update(workspace, None, None, None, "ok")
            if update.text:
                break
        if self._last_without_document is None and not (update.context or update.cost):
            return
        if not _is_same(self._last_without_document, update):
            self._last_without_document, self._last_workspace = update, workspace
            self._client.protocol.push("status/update", update)


def _is_same(before: StatusUpdate | None, after: StatusUpdate) -> bool:
    return before is not None and msgspec.structs.replace(before, version=after.version) == after


class Warnings(Feature):
    """Sends the warnings about thresholds, caps and full context windows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def on_event(self, event: Event) -> None:
        if event.warning is not None:
            self._client.protocol.push("context/warning", event.warning)


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
        return [root for root in self._services.roots if root.costs.sums.calls]


def _next_midnight(now: datetime) -> datetime:
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()


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
