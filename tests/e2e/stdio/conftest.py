"""Runs the server over stdio, with the client capabilities of Neovim and VS Code."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_lsp
from lsprotocol import types
from pygls.protocol import default_converter
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

SERVE = [sys.executable, "-P", "-m", "sidecar", "serve"]
VSCODE = Path(__file__).resolve().parents[2] / "fixtures" / "vscode_initialize.json"


class RecordingClient(LanguageClient):
    """A client that keeps all `status/update` notifications, and signals when one arrives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statuses: list[Any] = []
        self.encoding = ""

        @self.feature("status/update")
        def status(params: Any) -> None:
            self.statuses.append(params)


def make_client() -> RecordingClient:
    """Create a client for pytest-lsp."""
    return RecordingClient(converter_factory=default_converter)


def vscode_capabilities() -> types.ClientCapabilities:
    """Return the capabilities that VS Code 1.139 announces."""
    params = json.loads(VSCODE.read_text("utf-8"))
    structured: types.ClientCapabilities = default_converter().structure(
        params["capabilities"], types.ClientCapabilities
    )
    return structured


PROFILES = {
    "neovim": lambda: client_capabilities("neovim@v0.11"),
    "vscode": vscode_capabilities,
}


@pytest_lsp.fixture(
    config=ClientServerConfig(server_command=SERVE, client_factory=make_client),
    params=sorted(PROFILES),
)
async def lsp(request: Any, lsp_client: RecordingClient) -> AsyncIterator[None]:
    """A session for each editor, initialized with the editor's capabilities."""
    capabilities = PROFILES[request.param]()
    # pytest-lsp does not answer workspace/configuration, so the client must not announce support
    if capabilities.workspace is not None:
        capabilities.workspace.configuration = False
    result = await lsp_client.initialize_session(
        types.InitializeParams(capabilities=capabilities, root_uri="file:///ws")
    )
    lsp_client.encoding = str(result.capabilities.position_encoding)
    yield
    await lsp_client.shutdown_session()
