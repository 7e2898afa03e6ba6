"""Code lenses: a count above each section or top-level block. Off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.counting.count import tokens_text
from sidecar.server.features.cost import prompt_file_text

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    @server.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))
    async def code_lens(params: types.CodeLensParams) -> list[types.CodeLens]:
        await services.configured.wait()
        uri = params.text_document.uri
        workspace = services.roots.of_document(uri)
        if not workspace.settings.code_lens:
            return []
        cost = await prompt_file_text(server, uri)
        first = [types.CodeLens(range=_line(0), command=types.Command(cost, ""))]
        return (first if cost else []) + [
            types.CodeLens(
                range=_line(counted.part.start_line),
                # A lens shows a command's title; without a command it does nothing when clicked.
                command=types.Command(tokens_text(counted.tokens, counted.method), ""),
            )
            for counted in await server.services.parts_of(uri)
        ]


def _line(line: int) -> types.Range:
    return types.Range(types.Position(line, 0), types.Position(line, 0))
