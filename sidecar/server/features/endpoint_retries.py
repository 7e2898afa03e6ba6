"""Asks unavailable or slow endpoints again."""

from __future__ import annotations

from functools import partial

from sidecar.config.settings import Settings
from sidecar.endpoints.outcome import MissKind
from sidecar.server.feature import Feature
from sidecar.tasks import JobKey, Scheduler
from sidecar.workspace.budgets import model_of
from sidecar.workspace.counter_choice import has_enabled_endpoints
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

GRACE_SECONDS = 0.05
"""Added to delays to make sure that timers do not fire too early."""


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

    def _retry_later(self, model: str, settings: Settings, kind: MissKind) -> None:
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
            self._retry_later(model, settings, "unreachable")
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
