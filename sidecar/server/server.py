"""The server: its features, and the objects that they share."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib import import_module
from typing import Any

from sidecar.project.file_watcher import FileWatcher
from sidecar.server.client import Client, ClientProcess, progress
from sidecar.server.features.code_actions import CodeActions
from sidecar.server.features.code_lens import CodeLens
from sidecar.server.features.configuration import Configuration
from sidecar.server.features.costs import (
    CallPricing,
    CallShipping,
    CostRequests,
    CostSums,
    TeamSpending,
)
from sidecar.server.features.count_requests import Capabilities, Commands, CountRequests, Models
from sidecar.server.features.count_updates import (
    CalibrationSync,
    ContextUpdates,
    ConversationSharing,
    EndpointRetries,
)
from sidecar.server.features.diagnostics import Diagnostics, InstructionUpdates
from sidecar.server.features.document_symbols import DocumentSymbols
from sidecar.server.features.hover import Hover
from sidecar.server.features.inlay_hints import InlayHints
from sidecar.server.features.status_updates import (
    CacheUpdates,
    StatusUpdates,
    TimedUpdates,
    Warnings,
)
from sidecar.server.features.text_sync import TextSync
from sidecar.server.methods import REQUESTS
from sidecar.server.protocol import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.agent_sessions import AgentSessionWatcher
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event

WATCH_SECONDS = 0.5
"""Delay before files are watched. Importing the watcher earlier would delay the first count."""


class SidecarServer:
    """Serves one client. Features do not know each other: they publish and receive events."""

    def __init__(self) -> None:
        _silence_libraries()
        services, client, scheduler = Services(), Client(), Scheduler()
        watcher = FileWatcher(WATCH_SECONDS)
        show_progress = partial(progress, client, scheduler)
        agent_sessions = AgentSessionWatcher(
            services, services.agents, scheduler, watcher, show_progress
        )
        self.services, self.client, self.scheduler = services, client, scheduler
        self.protocol, self.watcher = client.protocol, watcher
        self.agent_sessions = agent_sessions
        self.features = (
            ClientProcess(client, scheduler),
            Configuration(services, client, scheduler, watcher, agent_sessions),
            TextSync(services, scheduler),
            StatusUpdates(services, client, scheduler),
            Warnings(client),
            Diagnostics(services, client, scheduler, watcher),
            InstructionUpdates(services, scheduler, watcher),
            CodeActions(services, client),
            InlayHints(services, client, scheduler),
            CodeLens(services, client, scheduler),
            DocumentSymbols(services, client, scheduler),
            Hover(services),
            Commands(services, client),
            CountRequests(services),
            Models(services),
            Capabilities(services),
            CostRequests(services, show_progress, agent_sessions),
            ContextOnDemand(services, scheduler),
            ContextUpdates(services, scheduler),
            EndpointRetries(services, scheduler),
            CalibrationSync(services, scheduler, watcher),
            ConversationSharing(services, scheduler),
            CallPricing(services, scheduler, show_progress),
            CostSums(services, scheduler, watcher),
            CallShipping(services, scheduler),
            TeamSpending(services, scheduler),
            TimedUpdates(services, scheduler),
            CacheUpdates(services, scheduler),
        )
        for feature in self.features:
            self.protocol.add(feature)
        services.listeners.append(self.on_event)

    def on_event(self, event: Event) -> None:
        """Update everything that depends on an event. Events are handled only here."""
        for listener in (*self.features, self.agent_sessions):
            listener.on_event(event)

    def close(self) -> None:
        self.scheduler.close()
        self.watcher.close()
        self.agent_sessions.close()
        for feature in self.features:
            feature.close()
        self.services.workers.close()


class ContextOnDemand(Feature):
    """Imports the handlers of `context/*` when they are needed, because that takes 0.1 s.

    Calls that arrive during the import are handled in order, before later calls.
    """

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self._feature: Feature | None = None
        self._queue = asyncio.Lock()
        self.handlers = {
            method: partial(self._forward, method)
            for method in REQUESTS
            if method.startswith("context/")
        }

    def on_event(self, event: Event) -> None:
        if self._feature is None and event.what == "settings" and self._services.windows.ready:
            self._scheduler.schedule(("context feature",), 0.0, self._load_early)

    async def _forward(self, method: str, params: Any) -> Any:
        feature = await self._load()
        return await feature.handlers[method](params)

    async def _load_early(self) -> None:
        await self._load()

    async def _load(self) -> Feature:
        # Even after loading, a call waits for those that have waited since before.
        async with self._queue:
            feature = self._feature
            if feature is None:
                module = await self._services.workers.run(import_context_feature)
                feature = module.ContextRequests(self._services)
                self._feature = feature
        return feature


def import_context_feature() -> Any:
    return import_module("sidecar.server.features.context_requests")


def create_server() -> SidecarServer:
    return SidecarServer()


def _silence_libraries() -> None:
    """Silence the loggers of libraries. Their messages may quote text from documents."""
    for name in ("pygls", "asyncio", "httpx", "httpcore", "watchdog"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        logger.handlers[:] = [logging.NullHandler()]
