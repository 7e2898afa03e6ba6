"""The client, which features send notifications and requests to."""

from __future__ import annotations

import asyncio
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from sidecar import __version__
from sidecar.server.protocol import SidecarProtocol, strict_converter


class Client(LanguageServer):
    """The editor at the other end of the connection. pygls provides LSP's standard messages."""

    protocol: SidecarProtocol

    def __init__(self) -> None:
        super().__init__(
            "token-sidecar",
            __version__,
            protocol_cls=SidecarProtocol,
            converter_factory=strict_converter,
            text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
        )

    @property
    def initialized(self) -> asyncio.Event:
        """Set by the `initialized` notification. LSP forbids requests to the client before it."""
        return self.protocol.initialized

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Do nothing. pygls would show a popup, but errors are already logged and answered."""
