"""Hover: the document's count on its first line, and a section's counts on its heading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.server.features.cost import prompt_file_text
from sidecar.text.printable import markdown
from sidecar.workspace.budgets import budget_of, model_of
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.status import document_status
from sidecar.workspace.wording import comparison_markdown

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer

COMPARED = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "gemini-2.5-pro")
"""Models that a section is compared for besides the workspace's model, one per tokenizer family."""


def register(server: SidecarServer) -> None:

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        uri, line = params.text_document.uri, params.position.line
        text = await _hover_section(server, uri, line)
        if line == 0:
            text = "\n\n".join(part for part in (await _hover_document(server, uri), text) if part)
        if not text:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))


async def _hover_document(server: SidecarServer, uri: str) -> str:
    services = server.services
    await services.configured.wait()
    snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    count = await services.counts.count(snapshot, model_of(uri, workspace), workspace)
    tooltip = document_status(count, budget_of(snapshot, workspace), workspace.loaded).tooltip
    cost = await prompt_file_text(server, uri)
    return f"{tooltip}\n\nSent with every request: {markdown(cost)}" if cost else tooltip


async def _hover_section(server: SidecarServer, uri: str, line: int) -> str:
    services = server.services
    parts = (counted.part for counted in await services.parts_of(uri))
    part = next((part for part in parts if part.start_line == line), None)
    if part is None:
        return ""
    document, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    section = Snapshot(text=document.text[part.start : part.end])
    models = dict.fromkeys((workspace.model, *COMPARED))
    counts = [await services.counts.count(section, model, workspace) for model in models]
    return comparison_markdown(part.title, counts)
