"""Work that follows an event: contexts recomputed, endpoints asked again, files shared.

`SidecarServer.react` says which event calls for which of these.
"""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.workspace.budgets import model_of
from sidecar.workspace.counter_choice import may_ask
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context.usage import ContextUsage
    from sidecar.endpoints.outcome import MissKind
    from sidecar.server.scheduler import JobKey
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.file_watcher import Subscription
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

CONTEXT_SECONDS = 0.075
"""Delay after an edit or another change until the contexts that depend on it are recomputed."""
SHARE_SECONDS = 0.5
"""Delay after a change of a conversation until other processes can read it."""
SAVE_SECONDS = 1.0
"""Delay until calibrations are written: an endpoint may change them with every edit."""
GRACE_SECONDS = 0.05
"""Added to the delay until a moment, so that the moment has passed."""
ROUND_SECONDS = 60.0
"""A miss so soon after a retry lengthens the delay of the next one."""


class ContextUpdates:
    """Recomputes contexts after a change of documents, settings, endpoints or the ledger."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler

    def update_soon(self, event: Event) -> None:
        """Recompute the contexts that an event concerns."""
        for workspace in self._services.roots:
            sessions = self._services.known_sessions(workspace)
            if sessions is None or not event.concerns(workspace):
                continue
            if event.uri is None or sessions.follows(event.uri):
                # Of agents' sessions alone nothing is counted, and no module is loaded for it.
                has_conversations = any(sessions.store)
                conversations = self._services.conversations
                work = conversations(workspace).refresh if has_conversations else sessions.publish
                self._scheduler.soon(("context", workspace), CONTEXT_SECONDS, work)


class _Round(NamedTuple):
    """Retries of a model's endpoint within the last minute."""

    tries: int = 0
    over_at: float = 0.0


class Retries:
    """Asks endpoints again that were away or late, while something open depends on their counts.

    Without it an untouched document would stay an estimate until the next edit.
    """

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler
        self._rounds: dict[JobKey, _Round] = {}

    def close_unused_soon(self) -> None:
        """Close the endpoints that no root's settings declare any more."""
        self._scheduler.soon(("endpoints-closed",), 0.0, self._close_unused)

    async def _close_unused(self) -> None:
        used = [workspace.settings for workspace in self._services.roots]
        now = {settings.endpoints for settings in used}
        self._rounds = {key: one for key, one in self._rounds.items() if key[2] in now}
        await self._services.counts.keep_endpoints(used)

    def retry_later(self, model: str, settings: Settings, kind: MissKind) -> None:
        """Ask again when that is worth it, later after each miss in a row."""
        key: JobKey = ("endpoint", model, settings.endpoints)
        last = self._rounds.get(key, _Round())
        if asyncio.get_running_loop().time() > last.over_at:
            last = _Round()
        seconds = self._services.counts.endpoints(settings).retry_delay(model, kind, last.tries + 1)
        if seconds is not None and self._is_used(model, settings):
            work = partial(self._ask_again, key, model, settings, last.tries + 1)
            self._scheduler.soon(key, seconds + GRACE_SECONDS, work)

    async def _ask_again(self, key: JobKey, model: str, settings: Settings, tries: int) -> None:
        endpoints = self._services.counts.endpoints(settings)
        if not self._is_used(model, settings):
            self._rounds.pop(key, None)
            return
        self._rounds[key] = _Round(tries, asyncio.get_running_loop().time() + ROUND_SECONDS)
        await endpoints.probe_if_due(model)
        if endpoints.unavailable_for(model) is not None:
            self.retry_later(model, settings, "unreachable")
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


class Sharing:
    """Shares the sizes of conversations with `token-sidecar usage` and `statusline`."""

    def __init__(self, server: SidecarServer) -> None:
        self._services, self._scheduler = server.services, server.scheduler
        self._shared: set[str] = set()

    def share_soon(self, workspace: Workspace) -> None:
        """Write a workspace's conversations."""
        self._scheduler.soon(("sharing", workspace), SHARE_SECONDS, partial(self._share, workspace))

    def forget_closed_soon(self) -> None:
        """Remove the files of workspaces that were closed."""
        self._scheduler.soon(("sharing",), SHARE_SECONDS, self._forget_closed)

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
        try:
            await self._services.live.write(uri, usages)
        except OSError as exc:  # a full disk is no defect: the next change tries again
            logger.warning("conversations are not shared: %s", type(exc).__name__)


class CalibrationSync:
    """Writes this process's calibrations and reads those of other processes."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._watch: Subscription | None = None

    def watch(self) -> None:
        """Read the file whenever another process has written it."""
        if self._watch is None:
            path = str(self._services.calibrations.path)
            find = lambda: (path,)  # noqa: E731
            self._watch = self._server.watch(find, self._changed, math.inf)

    def _changed(self, _changes: object) -> None:
        self._server.scheduler.soon(("calibrations",), 0.0, self._sync)

    def save_soon(self) -> None:
        """Write the calibrations."""
        self._server.scheduler.soon(("calibrations",), SAVE_SECONDS, self._sync)

    async def _sync(self) -> None:
        calibrations = self._services.calibrations
        work = calibrations.begin_sync()
        if work is None:
            return
        try:
            synced = await self._services.workers.run(work)
        except OSError as exc:  # a full disk is no defect: the next change tries again
            calibrations.changed()
            logger.warning("calibrations were not written: %s", type(exc).__name__)
            return
        is_new = calibrations.finish_sync(synced)
        if is_new or (synced.has_written and self._has_long_documents()):
            self._services.publish(Event("endpoint"))

    def _has_long_documents(self) -> bool:
        """Whether a document is open that is too long for an endpoint, so that it is calibrated."""
        asked = any(may_ask(workspace.settings) for workspace in self._services.roots)
        documents = self._services.documents.values()
        return asked and any(one.characters > LARGEST_CHARACTERS for one in documents)


class Clock:
    """Updates what the time changes: costs of today at midnight, and the shown session by age."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services

    def await_midnight(self) -> None:
        """Sum up today's costs when the day ends, if any workspace shows them."""
        if not self._server.scheduler.is_due(("midnight",)) and self._spending_workspaces():
            now = datetime.now().astimezone()
            seconds = (_next_midnight(now) - now).total_seconds() + GRACE_SECONDS
            self._server.scheduler.soon(("midnight",), seconds, self._begin_day)

    def await_session_change(self, workspace: Workspace) -> None:
        """Publish a workspace's sessions when another one is to be shown by its age."""
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
        for workspace in self._spending_workspaces():
            await self._server.history.refresh(workspace)

    def _spending_workspaces(self) -> list[Workspace]:
        return [one for one in self._services.roots if one.costs.today is not None]


def _next_midnight(now: datetime) -> datetime:
    """Return the beginning of the next local day, which may be 23 or 25 hours long."""
    return datetime.combine(now.date() + timedelta(days=1), time()).astimezone()
