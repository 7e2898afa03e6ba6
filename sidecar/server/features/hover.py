"""Hover: the document's count on its first line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.workspace.status import document_status

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        await services.configured.wait()
        document = services.document(params.text_document.uri)
        if params.position.line != 0:
            return None
        workspace = services.roots.of_document(document.uri)
        counted = await services.count_document(document, None, workspace)
        text = document_status(counted.count, None).tooltip
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
