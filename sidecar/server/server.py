"""The server object and its factory; there is no server at module level."""

from __future__ import annotations

from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import default_converter

from sidecar import __version__
from sidecar.server.features import (
    capabilities,
    code_actions,
    code_lens,
    commands,
    configuration,
    context,
    cost,
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
from sidecar.server.features.status import StatusBoard
from sidecar.server.logging import silence_libraries
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
    context,
    cost,
    capabilities,
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
        self.configuration = Configuration(self)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Nothing pops up by itself; requests are answered, and the log has the rest."""

    def close(self) -> None:
        """Let go of threads."""
        self.configuration.close()
        self.services.counting.close()


def create_server(services: Services | None = None) -> SidecarServer:
    """A new server with every feature; `services` lets a test bring its own."""
    server = SidecarServer(services or Services())
    for feature in FEATURES:
        feature.register(server)
    return server
