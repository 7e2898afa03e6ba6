"""The server object and its factory; there is no server at module level."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter

from sidecar import __version__
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
from sidecar.server.features.configuration import Configuration
from sidecar.server.features.diagnostics import Diagnostics
from sidecar.server.features.following import Following
from sidecar.server.features.providers import Providers
from sidecar.server.features.status import StatusBoard
from sidecar.server.logging import silence_libraries
from sidecar.server.messages import REQUESTS
from sidecar.server.protocol import SidecarProtocol
from sidecar.workspace.services import Services

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
            converter_factory=default_converter,
            text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
        )
        self.status = StatusBoard(self)
        self.diagnostics = Diagnostics(self)
        self.following = Following(self)
        self.providers = Providers(self)
        self.configuration = Configuration(self)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Nothing pops up by itself; requests are answered, and the log has the rest."""

    def model_changed(self) -> None:
        """Another model counts: what depends on the numbers is worked out anew."""
        self.diagnostics.all_changed()
        self.providers.numbers_changed()

    def load_features(self) -> None:
        """Import what features need at their first call. Blocking: for a worker thread."""
        for method in REQUESTS:
            if _is_late(self, method):
                feature_of(method)

    def close(self) -> None:
        """Let go of threads."""
        self.configuration.close()
        self.services.counting.close()


def create_server(services: Services | None = None) -> SidecarServer:
    """A new server with every feature; `services` lets a test bring its own."""
    server = SidecarServer(services or Services())
    for feature in FEATURES:
        feature.register(server)
    for method in REQUESTS:
        server.protocol.custom.setdefault(method, partial(_late, server, method))
    return server


async def _late(server: SidecarServer, method: str, params: Any) -> Any:
    """Register the feature that a method belongs to, at its first call, and hand the call on."""
    feature = await server.services.counting.run(partial(feature_of, method))
    if _is_late(server, method):
        feature.register(server)
    return await server.protocol.custom[method](params)


def _is_late(server: SidecarServer, method: str) -> bool:
    handler = server.protocol.custom[method]
    return isinstance(handler, partial) and handler.func is _late


def feature_of(method: str) -> Any:
    """The module of `features` for a method: `context/set` is in `context`."""
    return import_module(f"sidecar.server.features.{method.partition('/')[0]}")
