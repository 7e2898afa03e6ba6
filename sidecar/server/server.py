"""The server object and its factory; there is no server at module level."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from sidecar import __version__
from sidecar.server.codec import strict_converter
from sidecar.server.features import (
    code_actions,
    code_lens,
    commands,
    configuration,
    counting,
    diagnostics,
    documents,
    hover,
    inlay_hints,
    symbols,
    workspaces,
)
from sidecar.server.features.agents import Live
from sidecar.server.features.configuration import Configuration
from sidecar.server.features.diagnostics import Diagnostics
from sidecar.server.features.following import Following
from sidecar.server.features.history import History
from sidecar.server.features.learning import Learning
from sidecar.server.features.passing_time import PassingTime
from sidecar.server.features.providers import Providers
from sidecar.server.features.retries import Retries
from sidecar.server.features.sharing import Sharing
from sidecar.server.features.status import StatusBoard
from sidecar.server.logging import silence_libraries
from sidecar.server.methods import REQUESTS
from sidecar.server.protocol import SidecarProtocol
from sidecar.server.scheduler import Scheduler
from sidecar.workspace.file_watcher import POLL_SECONDS, FileWatcher
from sidecar.workspace.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.workspace.events import Event
    from sidecar.workspace.file_watcher import Changes, FindPaths, Subscription

WATCH_SECONDS = 0.5
"""Watching files starts a little later: its import would delay the first count."""

FEATURES = (
    workspaces,
    configuration,
    documents,
    counting,
    hover,
    inlay_hints,
    diagnostics,
    code_actions,
    code_lens,
    symbols,
    commands,
)


class SidecarServer(LanguageServer):
    """A pygls server that knows our services; everything it does is registered by features."""

    protocol: SidecarProtocol

    def __init__(self, services: Services) -> None:
        silence_libraries()
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
        self.status = StatusBoard(self)
        self.diagnostics = Diagnostics(self)
        self.following = Following(self)
        self.retries = Retries(self)
        self.sharing = Sharing(self)
        self.passing_time = PassingTime(self)
        self.learning = Learning(self)
        self.providers = Providers(self)
        self.history = History(self)
        self.live = Live(self)
        services.listeners.append(self._heard)
        self.configuration = Configuration(self)
        self.loading: dict[str, asyncio.Event] = {}
        """Features whose first call has come: set when they are registered."""

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Nothing pops up by itself; requests are answered, and the log has the rest."""

    def _heard(self, event: Event) -> None:
        if event.warning is not None:
            self.protocol.push("context/warning", event.warning)
        if event.what in ("model", "endpoint"):
            self.providers.numbers_changed()

    def watch(
        self,
        find_paths: FindPaths,
        notify: Callable[[Changes], object],
        poll_seconds: float = POLL_SECONDS,
    ) -> Subscription:
        """Follow files as `FileWatcher.subscribe` does; `notify` is called on the event loop."""
        loop = asyncio.get_running_loop()

        def deliver(changes: Changes) -> None:
            loop.call_soon_threadsafe(notify_active, changes)

        def notify_active(changes: Changes) -> None:
            if subscription.is_active:
                notify(changes)

        subscription = self.watcher.subscribe(find_paths, deliver, poll_seconds)
        return subscription

    def loading_features(self) -> Callable[[], object]:
        """What imports the features that have not been called yet: for a worker."""
        late = [method for method in REQUESTS if _is_late(self, method)]
        return lambda: [feature_of(method) for method in late]

    def close(self) -> None:
        """Let go of threads."""
        self.scheduler.close()
        self.watcher.close()
        self.history.close()
        self.services.workers.close()


def create_server() -> SidecarServer:
    """A new server with every feature."""
    server = SidecarServer(Services())
    for feature in FEATURES:
        feature.register(server)
    for method in REQUESTS:
        server.protocol.custom.setdefault(method, partial(_late, server, method))
    return server


async def _late(server: SidecarServer, method: str, params: Any) -> Any:
    """Register the feature that a method belongs to, at its first call, and hand the call on.

    Calls that wait for the same feature go on in their order, before any that comes later.
    """
    name = _feature_name(method)
    if name not in server.loading:
        server.loading[name] = asyncio.Event()
        server.scheduler.now(("feature", name), partial(_load, server, method))
    await server.loading[name].wait()
    if _is_late(server, method):
        raise RuntimeError("a feature could not be loaded")
    return await server.protocol.custom[method](params)


async def _load(server: SidecarServer, method: str) -> None:
    """No call's own work: one that is cancelled must not keep the others from being answered."""
    loaded = server.loading[_feature_name(method)]
    try:
        feature = await server.services.workers.run(partial(feature_of, method))
        feature.register(server)
    finally:
        loaded.set()
        if _is_late(server, method):  # the next call tries again
            del server.loading[_feature_name(method)]


def _is_late(server: SidecarServer, method: str) -> bool:
    handler = server.protocol.custom[method]
    return isinstance(handler, partial) and handler.func is _late


def feature_of(method: str) -> Any:
    """The module of `features` for a method: `context/set` is in `context`."""
    return import_module(f"sidecar.server.features.{_feature_name(method)}")


def _feature_name(method: str) -> str:
    return method.partition("/")[0]
