"""Background work triggered by events. `SidecarServer.on_event` selects the work to do."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from datetime import datetime, time, timedelta
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.errors import SidecarError
from sidecar.server.progress import progress
from sidecar.tasks import backoff
from sidecar.workspace.budgets import model_of
from sidecar.workspace.counter_choice import has_enabled_endpoints
from sidecar.workspace.spending import has_team_caps, read_team
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.protocol import ContextUsage
    from sidecar.cost.shipping import Collector, ShippingQueue
    from sidecar.cost.team import TeamStoreError
    from sidecar.endpoints.outcome import MissKind
    from sidecar.server.server import SidecarServer
    from sidecar.tasks import JobKey
    from sidecar.workspace.file_watcher import PathSubscription
    from sidecar.workspace.spending import TeamOutage
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

CONTEXT_SECONDS = 0.075
"""Delay before contexts are updated after a change."""
SHARE_SECONDS = 0.5
"""Delay before a changed conversation is shared with other processes."""
SAVE_SECONDS = 1.0
"""Delay before calibrations are written. Endpoints may change them frequently."""
GRACE_SECONDS = 0.05
"""Added to delays to make sure that timers do not fire too early."""
SHIP_SECONDS = 15.0
"""How often recorded calls are sent to a collector."""
LONGEST_SHIP_SECONDS = 900.0
"""Maximum delay after failed attempts to send calls."""
TEAM_FIRST_SECONDS = 5.0
"""Delay before the team's store is read for the first time."""
TEAM_SECONDS = 300.0
"""How often the team's store is read again."""
SHIP_BATCH = 100
"""Maximum number of calls in a request to a collector."""
SHIP_PAUSE_SECONDS = 1.0
"""Pause between requests, so that sending a large backlog does not slow down typing."""
PRICING_SECONDS = 0.5
"""Delay before recorded calls are priced again after a change of settings."""
PAUSE_RATIO = 3.0
"""How long to pause between batches of calls to price, relative to the time that a batch takes."""


def update_contexts_soon(server: SidecarServer, event: Event) -> None:
    """Schedule an update of the contexts affected by an event."""
    services = server.services
    for workspace in services.roots:
        sessions = services.known_sessions(workspace)
        if sessions is None or not event.concerns(workspace):
            continue
        if event.uri is None or sessions.follows_document(event.uri):
            # Agents' sessions are not counted, so do not import the counting modules for them.
            has_conversations = bool(sessions.conversations)
            work = (
                services.conversations(workspace).refresh if has_conversations else sessions.publish
            )
            server.scheduler.schedule(("context", workspace), CONTEXT_SECONDS, work)


class EndpointRetries:
    """Retries unavailable or slow endpoints while a document or conversation uses them."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler

    def close_unused_soon(self) -> None:
        """Schedule closing the endpoints that have been removed from all settings."""
        self._scheduler.schedule(("endpoints-closed",), 0.0, self._close_unused)

    async def _close_unused(self) -> None:
        used = [workspace.settings for workspace in self._services.roots]
        await self._services.counts.close_unused_endpoints(used)

    def retry_later(self, model: str, settings: Settings, kind: MissKind) -> None:
        """Schedule a retry, unless the failure is permanent."""
        seconds = self._services.counts.endpoints(settings).retry_delay(model, kind)
        if seconds is not None and self._is_used(model, settings):
            key: JobKey = ("endpoint", model, settings.endpoints)
            work = partial(self._ask_again, model, settings)
            self._scheduler.schedule(key, seconds + GRACE_SECONDS, work)

    async def _ask_again(self, model: str, settings: Settings) -> None:
        endpoints = self._services.counts.endpoints(settings)
        if not self._is_used(model, settings):
            return
        await endpoints.probe_if_due(model)
        if endpoints.unavailable_for(model) is not None:
            self.retry_later(model, settings, "unreachable")
            return
        self._services.publish(Event("endpoint"))
        for workspace in self._roots_using(settings):
            if self._services.known_sessions(workspace) is not None:
                await self._services.conversations(workspace).retry_missed_counts(model)

    def _roots_using(self, settings: Settings) -> list[Workspace]:
        return [
            workspace
            for workspace in self._services.roots
            if has_enabled_endpoints(workspace.settings)
            and workspace.settings.endpoints == settings.endpoints
        ]

    def _is_used(self, model: str, settings: Settings) -> bool:
        return any(
            self._is_counted_for(workspace, model) for workspace in self._roots_using(settings)
        )

    def _is_counted_for(self, workspace: Workspace, model: str) -> bool:
        services = self._services
        sessions = services.known_sessions(workspace)
        if sessions is not None and any(
            one.model == model for one in sessions.conversations.values()
        ):
            return True
        return any(
            services.roots.of_document(uri) is workspace and model_of(uri, workspace) == model
            for uri in services.documents
        )


class ConversationSharing:
    """Shares conversations' usage with the `usage` and `statusline` commands."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler
        self._shared: set[str] = set()

    def share_soon(self, workspace: Workspace) -> None:
        self._scheduler.schedule(
            ("sharing", workspace), SHARE_SECONDS, partial(self._write_conversations, workspace)
        )

    def forget_closed_soon(self) -> None:
        self._scheduler.schedule(("sharing",), SHARE_SECONDS, self._forget_closed)

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


class CalibrationSync:
    """Writes this process's calibrations, and reads those from other processes."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._watch: PathSubscription | None = None

    def watch(self) -> None:
        if self._watch is None:
            paths = (str(self._services.calibrations.path),)
            self._watch = self._server.watch(lambda: paths, self._changed, math.inf)

    def _changed(self, _changes: object) -> None:
        self._server.scheduler.schedule(("calibrations",), 0.0, self._sync)

    def save_soon(self) -> None:
        self._server.scheduler.schedule(("calibrations",), SAVE_SECONDS, self._sync)

    async def _sync(self) -> None:
        calibrations = self._services.calibrations
        try:
            synced = await self._services.workers.run(calibrations.begin_sync())
        except OSError as exc:  # the disk may be full; the next change triggers a retry
            calibrations.changed()
            logger.warning("cannot write calibrations: %s", type(exc).__name__)
            return
        is_new = calibrations.finish_sync(synced)
        if is_new or (synced.written_version is not None and self._has_long_documents()):
            self._services.publish(Event("endpoint"))

    def _has_long_documents(self) -> bool:
        """Return whether an open document is estimated because it is too long for endpoints."""
        are_used = any(
            has_enabled_endpoints(workspace.settings) for workspace in self._services.roots
        )
        documents = self._services.documents.values()
        return are_used and any(row.characters > LARGEST_CHARACTERS for row in documents)


class CallShipping:
    """Sends recorded calls to the user's collector, at low priority."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler
        self._failures = 0
        self._opened: tuple[Settings, ShippingQueue] | None = None
        self._warned: set[str] = set()

    def settings_changed(self) -> None:
        """Schedule shipping if a collector is configured.

        If the last attempt failed, it is retried immediately.
        """
        if self._workspace() is None:
            return
        if self._failures:
            self._failures = 0
            self._scheduler.run_now(("shipping",), self._ship)
        else:
            self._scheduler.schedule(("shipping",), SHIP_SECONDS, self._ship)

    def _workspace(self) -> Workspace | None:
        roots = self._services.roots
        return next((root for root in roots if root.settings.ledger.otel_endpoint), None)

    async def _ship(self) -> None:
        workspace = self._workspace()
        if workspace is None:
            return
        delay = LONGEST_SHIP_SECONDS  # used if the run raises an unexpected exception
        try:
            await self._ship_queued(workspace)
            self._failures, delay = 0, SHIP_SECONDS
        except SidecarError as error:
            # The next run opens the queue again, because the ledger may have been replaced.
            self._opened = None
            self._failures += 1
            if self._failures == 1:
                logger.warning("cannot send calls to the collector: %s", error)
            delay = SHIP_SECONDS + backoff(self._failures, SHIP_SECONDS, LONGEST_SHIP_SECONDS)
            delay = max(delay, getattr(error, "retry_after", 0.0))
        finally:
            self._scheduler.schedule(("shipping",), delay, self._ship)

    async def _ship_queued(self, workspace: Workspace) -> None:
        run, settings = self._services.workers.run, workspace.settings
        shipping = await run(partial(import_module, "sidecar.cost.shipping"))
        if self._opened is None or self._opened[0] != settings:
            spending = self._services.spending(workspace)
            queue = await run(lambda: shipping.open_queue(spending.book, settings))
            self._opened = settings, queue
        _settings, queue = self._opened
        async with shipping.open_collector(queue, settings.ledger.otel_endpoint) as collector:
            shipped = await shipping.ship(
                queue, collector, run, limit=SHIP_BATCH, pause=SHIP_PAUSE_SECONDS
            )
            if shipped.rejected:
                self._warn_once("calls", shipped.reason)
            for root in tuple(self._services.roots):
                await self._ship_files(root, queue, collector)

    async def _ship_files(
        self, workspace: Workspace, queue: ShippingQueue, collector: Collector
    ) -> None:
        """Once a day, report the cost of a workspace's prompt files."""
        from sidecar.cost.protocol import CostFilesParams
        from sidecar.cost.shipping import send_file_report
        from sidecar.workspace.prompt_files import file_costs, file_records

        run, uri = self._services.workers.run, workspace.uri
        if uri is None or await run(partial(queue.has_file_report, uri)):
            return
        workspaces = {*(await run(queue.reported_workspaces)), *self._open_workspaces()}
        params = CostFilesParams()
        files = await file_costs(self._services, workspace, params, reported=workspaces)
        records = file_records(files, uri, queue.identity)
        if reason := await send_file_report(queue, collector, run, uri, records):
            self._warn_once("the costs of prompt files", reason)

    def _open_workspaces(self) -> list[str]:
        return [root.uri for root in self._services.roots if root.uri is not None]

    def _warn_once(self, what: str, reason: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("the collector rejected %s: %s", what, reason)


class CallPricing:
    """Prices recorded calls after a change of prices, at low priority."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._stop = threading.Event()

    def price_soon(self) -> None:
        """Schedule pricing, unless the price list has not been loaded yet."""
        if self._services.windows.ready:
            self._server.scheduler.schedule(("pricing",), PRICING_SECONDS, self._price)

    def close(self) -> None:
        """Stop. The next process continues where this one stopped."""
        self._stop.set()

    async def _price(self) -> None:
        workspace = next((root for root in self._services.roots if root.has_settings), None)
        if workspace is None:
            return
        repricing = await self._services.workers.run(
            partial(import_module, "sidecar.cost.repricing")
        )
        ledger, stop = self._services.spending(workspace).book.ledger, threading.Event()
        self._stop = stop
        async with progress(self._server, "Computing costs", stop) as report:
            work = partial(
                repricing.price_calls, ledger, stop,
                rest=PAUSE_RATIO, progress=partial(report, "pricing calls"),
            )  # fmt: skip
            try:
                is_changed = await self._services.workers.run(work)
            except asyncio.CancelledError:
                stop.set()
                raise
            except SidecarError as error:  # the next start continues
                logger.warning("cannot price recorded calls: %s", error)
                return
        for root in tuple(self._services.roots) if is_changed else ():
            if root.has_settings:
                await self._server.history.refresh(root)


class TeamSpending:
    """Reads the team's spending if the team has caps, and shows outages of the team's store."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler
        self._has_read = self._is_reported = False

    def settings_changed(self) -> None:
        """Read the team's store if the team has caps, or had caps before."""
        if self._is_needed() or any(root.costs.team for root in self._services.roots):
            if self._has_read:
                self._scheduler.run_now(("team",), self._read)
            else:
                self._scheduler.schedule(("team",), TEAM_FIRST_SECONDS, self._read)

    def begin_outage(self, workspace: Workspace, error: TeamStoreError) -> TeamOutage:
        """Show that the team's store is unavailable, until it has been read successfully."""
        is_new = workspace.costs.team_outage is None
        outage = workspace.costs.set_team_outage(is_unreachable=error.is_unreachable)
        if is_new:
            self._services.publish(Event("ledger", workspace))
        if not self._scheduler.is_due(("team",)):
            self._scheduler.schedule(("team",), TEAM_SECONDS, self._read)
        return outage

    def end_outage(self, workspace: Workspace) -> None:
        """Stop showing an outage after the team's store has been read."""
        if workspace.costs.set_team(workspace.costs.team):
            self._services.publish(Event("ledger", workspace))

    async def _read(self) -> None:
        self._has_read = True
        for workspace in tuple(self._services.roots):
            after_outage = workspace.costs.team_outage is not None
            read = partial(read_team, workspace.settings, after_outage=after_outage)
            try:
                spent = await self._services.workers.run(read)
            except SidecarError as error:
                from sidecar.cost.team import TeamStoreError

                if isinstance(error, TeamStoreError) and workspace.settings.team.store:
                    self.begin_outage(workspace, error)
                if not self._is_reported:
                    self._is_reported = True
                    logger.warning("cannot read the team's costs: %s", error)
                continue
            self._is_reported = False
            if workspace.costs.set_team(spent):
                self._services.publish(Event("ledger", workspace))
        if self._is_needed():
            self._scheduler.schedule(("team",), TEAM_SECONDS, self._read)

    def _is_needed(self) -> bool:
        return any(
            has_team_caps(root.settings) or root.costs.team_outage for root in self._services.roots
        )


class TimedUpdates:
    """Resets today's costs at midnight, and hides sessions that are too old."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services

    def await_midnight(self) -> None:
        """Schedule an update at midnight if any workspace shows today's costs."""
        if not self._server.scheduler.is_due(("midnight",)) and self._spending_workspaces():
            now = datetime.now().astimezone()
            seconds = (_next_midnight(now) - now).total_seconds() + GRACE_SECONDS
            self._server.scheduler.schedule(("midnight",), seconds, self._begin_day)

    def await_session_change(self, workspace: Workspace) -> None:
        """Schedule an update for the time at which the shown session becomes too old."""
        key = "session age", workspace
        self._server.scheduler.cancel(key)
        sessions = self._services.known_sessions(workspace)
        at = None if sessions is None else sessions.next_switch_at()
        if sessions is not None and at is not None:
            seconds = (at - datetime.now(at.tzinfo)).total_seconds() + GRACE_SECONDS
            work = partial(self._publish, workspace)
            self._server.scheduler.schedule(key, max(0.0, seconds), work)

    def _publish(self, workspace: Workspace) -> None:
        sessions = self._services.known_sessions(workspace)
        if sessions is not None:
            sessions.publish()

    async def _begin_day(self) -> None:
        for workspace in self._spending_workspaces():
            await self._server.history.refresh(workspace)

    def _spending_workspaces(self) -> list[Workspace]:
        return [root for root in self._services.roots if root.costs.today is not None]


def _next_midnight(now: datetime) -> datetime:
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()
