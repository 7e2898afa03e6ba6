"""Hover: the document's count on its first line, a section's on its heading, several models'."""

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
    from sidecar.counting.count import Count
    from sidecar.server.server import SidecarServer

COMPARED = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "gemini-2.5-pro")
"""What a part is compared for, beside the workspace's own model: one for each maker's family."""


def register(server: SidecarServer) -> None:
    """Register the handlers."""

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        uri, line = params.text_document.uri, params.position.line
        text = await _section(server, uri, line)
        if line == 0:
            text = "\n\n".join(part for part in (await _document(server, uri), text) if part)
        if not text:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))


async def _document(server: SidecarServer, uri: str) -> str:
    services = server.services
    await services.configured.wait()
    taken, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    count = await services.counts.count(taken, model_of(uri, workspace), workspace)
    tooltip = document_status(count, budget_of(taken, workspace), workspace.loaded).tooltip
    cost = await prompt_file_text(server, uri)
    return f"{tooltip}\n\nSent with every request: {markdown(cost)}" if cost else tooltip


async def _section(server: SidecarServer, uri: str, line: int) -> str:
    """The part whose first line this is, for several models; "" on any other line."""
    services = server.services
    parts = await server.services.parts_of(uri)
    here = next((one.part for one in parts if one.part.start_line == line), None)
    if here is None:
        return ""
    taken, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
    part = Snapshot(text=taken.text[here.start : here.end])
    models = dict.fromkeys((workspace.model, *COMPARED))
    counts: list[Count] = [await services.counts.count(part, model, workspace) for model in models]
    return comparison_markdown(here.title, counts)
