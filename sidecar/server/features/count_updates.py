"""Counts again after other changes and failures, and shares conversations and calibrations with
other processes.
"""

from __future__ import annotations

import logging
from functools import partial

from sidecar.config.settings import Settings
from sidecar.conversations.context_protocol import ContextUsage
from sidecar.counting.tokenizer_choice import has_enabled_endpoints
from sidecar.endpoints.outcome import LARGEST_CHARACTERS
from sidecar.project.file_watcher import FileWatcher, FollowedPaths
from sidecar.server.protocol import Feature
from sidecar.tasks import GRACE_SECONDS, JobKey, Scheduler
from sidecar.workspace.document_budgets import model_of
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

logger = logging.getLogger(__name__)

DELAY_SECONDS = 0.075
SHARING_DELAY_SECONDS = 0.5
"""Delay before a changed conversation is written."""
SAVE_SECONDS = 1.0
"""Delay before calibrations are written. Endpoints may change them frequently."""


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


class EndpointRetries(Feature):
    """Retries unavailable or slow endpoints while a document or conversation uses them."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler

    def on_event(self, event: Event) -> None:
        if event.missed is not None:
            self._retry_later(*event.missed)
        if event.what == "settings":
            self._scheduler.schedule(("endpoints-closed",), 0.0, self._close_unused)

    async def _close_unused(self) -> None:
        """Close the endpoints that have been removed from all settings."""
        used = [workspace.settings for workspace in self._services.roots]
        await self._services.counts.close_unused_endpoints(used)

    def _retry_later(self, model: str, settings: Settings, seconds: float) -> None:
        if self._is_used(model, settings):
            key: JobKey = ("endpoint", model, settings.endpoints)
            work = partial(self._ask_again, model, settings)
            self._scheduler.schedule(key, seconds + GRACE_SECONDS, work)

    async def _ask_again(self, model: str, settings: Settings) -> None:
        endpoints = self._services.counts.endpoints(settings)
        if not self._is_used(model, settings):
            return
        await endpoints.probe_if_due(model)
        if (seconds := endpoints.unavailable_for(model)) is not None:
            self._retry_later(model, settings, seconds)
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


class CalibrationSync(Feature):
    """Writes this process's calibrations, and reads those from other processes."""

    def __init__(self, services: Services, scheduler: Scheduler, watcher: FileWatcher) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed = FollowedPaths(watcher)

    def on_event(self, event: Event) -> None:
        if event.what == "learned":
            self._scheduler.schedule(("calibrations",), SAVE_SECONDS, self._sync)
        elif event.what == "settings":
            paths = (str(self._services.calibrations.path),)
            self._followed.follow("calibrations", paths, lambda: paths, self._file_changed)

    def _file_changed(self, _changes: object) -> None:
        self._scheduler.schedule(("calibrations",), 0.0, self._sync)

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
