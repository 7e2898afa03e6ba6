"""The server class and a factory function. Importing this module does not create a server."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from sidecar import __version__
from sidecar.server.features import configuration, cost, counting, diagnostics, documents, sections
from sidecar.server.features.agents import AgentSessionWatcher, HistoryRecorder
from sidecar.server.features.background import (
    CalibrationSync,
    CallPricing,
    CallShipping,
    ConversationSharing,
    EndpointRetries,
    TeamSpending,
    TimedUpdates,
    update_contexts_soon,
)
from sidecar.server.features.configuration import SettingsLoader
from sidecar.server.features.diagnostics import DiagnosticsPublisher
from sidecar.server.features.sections import ProviderRegistry
from sidecar.server.features.status import StatusPublisher
from sidecar.server.methods import REQUESTS
from sidecar.server.protocol import SidecarProtocol, strict_converter
from sidecar.tasks import Scheduler, SharedTasks
from sidecar.workspace.file_watcher import POLL_SECONDS, FileWatcher
from sidecar.workspace.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.workspace.file_watcher import Changes, FindPaths, PathSubscription
    from sidecar.workspace.workspace import Event

WATCH_SECONDS = 0.5
"""Delay before files are watched. Importing the watcher earlier would delay the first count."""

FEATURES = (configuration, documents, counting, sections, diagnostics, cost)


class SidecarServer(LanguageServer):
    """A pygls server, with the services that its features use."""

    protocol: SidecarProtocol

    def __init__(self, services: Services) -> None:
        _silence_libraries()
        self.services = services
        super().__init__(
            "token-sidecar",
            __version__,
            protocol_cls=SidecarProtocol,
            converter_factory=strict_converter,
            text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
        )
        self.scheduler = Scheduler()
        self.watcher = FileWatcher(WATCH_SECONDS)
        self.status = StatusPublisher(self)
        self.diagnostics = DiagnosticsPublisher(self)
        self.retries = EndpointRetries(self)
        self.sharing = ConversationSharing(self)
        self.clock = TimedUpdates(self)
        self.shipping = CallShipping(self)
        self.pricing = CallPricing(self)
        self.team_spending = TeamSpending(self)
        self.calibration_sync = CalibrationSync(self)
        self.providers = ProviderRegistry(self)
        self.history = HistoryRecorder(self)
        self.agent_sessions = AgentSessionWatcher(self)
        services.listeners.append(self.on_event)
        self.configuration = SettingsLoader(self)
        self._loading = SharedTasks[str, Any]("importing a feature", outlives_waiters=True)
        self._has_context_feature = False

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Do nothing. pygls would show a popup, but errors are already logged and answered."""

    def on_event(self, event: Event) -> None:
        """Update everything that depends on an event. Events are handled only here."""
        what, workspace = event.what, event.workspace
        if event.warning is not None:
            self.protocol.push("context/warning", event.warning)
        if event.missed is not None:
            self.retries.retry_later(*event.missed)
        if what == "learned":
            self.calibration_sync.save_soon()
        if not event.shows:
            return
        self.status.on_event(event)
        self.diagnostics.on_event(event)
        if what in ("document", "settings", "endpoint", "ledger"):
            update_contexts_soon(self, event)
        if what in ("model", "endpoint"):
            self.providers.refresh()
        if what == "document":
            self.history.note_edit()
        if what == "settings":
            self.retries.close_unused_soon()
            self.sharing.forget_closed_soon()
            self.history.settings_changed()
            self.pricing.price_soon()
            self.shipping.settings_changed()
            self.team_spending.settings_changed()
            self.agent_sessions.on_settings_changed()
        if what == "context" and workspace is not None:
            self.sharing.share_soon(workspace)
            self.clock.await_session_change(workspace)
            self.history.context_changed(workspace)
        self.clock.await_midnight()

    def watch(
        self,
        find_paths: FindPaths,
        notify: Callable[[Changes], object],
        poll_seconds: float = POLL_SECONDS,
    ) -> PathSubscription:
        """Watch files as `FileWatcher.subscribe` does, but call `notify` on the event loop."""
        loop = asyncio.get_running_loop()

        def deliver(changes: Changes) -> None:
            loop.call_soon_threadsafe(notify_active, changes)

        def notify_active(changes: Changes) -> None:
            if subscription.is_active:
                notify(changes)

        subscription = self.watcher.subscribe(find_paths, deliver, poll_seconds)
        return subscription

    async def load_context_feature(self) -> None:
        """Import and register the handlers of `context/*`, if this has not been done yet.

        They are not imported at the start, because that takes 0.1 s.
        """
        if self._has_context_feature:
            return
        load = partial(self.services.workers.run, import_context_feature)
        context = await self._loading.run("context", load)
        if not self._has_context_feature:
            self._has_context_feature = True
            context.register(self)

    def close(self) -> None:
        self.scheduler.close()
        self.watcher.close()
        self.history.close()
        self.pricing.close()
        self.services.workers.close()


def create_server() -> SidecarServer:
    server = SidecarServer(Services())
    for feature in FEATURES:
        feature.register(server)
    for method in REQUESTS:
        server.protocol.custom.setdefault(method, partial(_call_later, server, method))
    return server


async def _call_later(server: SidecarServer, method: str, params: Any) -> Any:
    """Load the handlers of `context/*`, and forward the call.

    Calls that arrive while the handlers are being imported are handled in order, before later
    calls.
    """
    await server.load_context_feature()
    return await server.protocol.custom[method](params)


def import_context_feature() -> Any:
    return import_module("sidecar.server.features.context")


def _silence_libraries() -> None:
    """Silence the loggers of libraries. Their messages may quote text from documents."""
    for name in ("pygls", "asyncio", "httpx", "httpcore", "watchdog"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        logger.handlers[:] = [logging.NullHandler()]
