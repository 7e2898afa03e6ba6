"""Hovers with the token counts of a section for several models, and of the document.

They are plain text for clients that prefer it, such as Neovim, which does not draw tables.
"""

from __future__ import annotations

from lsprotocol import types

from sidecar.conversations.context_rows import rows_markdown, rows_text
from sidecar.counting.open_documents import Snapshot
from sidecar.server.protocol import Feature
from sidecar.text.printable import markdown, printable
from sidecar.workspace.document_budgets import find_lowest_budget, model_of
from sidecar.workspace.services import Services
from sidecar.workspace.status import document_rows
from sidecar.workspace.views import format_comparison, format_comparison_as_markdown

COMPARED = ("gpt-5", "gpt-4", "claude-sonnet-4-5", "gemini-2.5-pro")
"""Models to compare with the document's model, one per tokenizer family."""


class Hover(Feature):
    """Describes a document, a section or an MCP server on its first line."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._has_markdown = True
        self.handlers = {types.TEXT_DOCUMENT_HOVER: self._hover}

    def on_initialize(self, params: types.InitializeParams) -> None:
        able = params.capabilities.text_document
        formats = (able and able.hover and able.hover.content_format) or []
        known = [found for found in formats if found in tuple(types.MarkupKind)]
        self._has_markdown = known[:1] != [types.MarkupKind.PlainText]

    async def _hover(self, params: types.HoverParams) -> types.Hover | None:
        uri, line = params.text_document.uri, params.position.line
        texts = [await self._describe_mcp_server(uri, line), await self._compare_section(uri, line)]
        if line == 0:
            texts.insert(0, await self._describe_document(uri))
        text = "\n\n".join(filter(None, texts))
        if not text:
            return None
        kinds = types.MarkupKind
        kind = kinds.Markdown if self._has_markdown else kinds.PlainText
        return types.Hover(types.MarkupContent(kind, text))

    async def _describe_document(self, uri: str) -> str:
        from sidecar.workspace.prompt_files import describe_prompt_file

        services = self._services
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        count = await services.counts.count(snapshot, model_of(uri, workspace), workspace)
        rows = document_rows(count, find_lowest_budget(snapshot, workspace), workspace.loaded)
        text = rows_markdown(rows) if self._has_markdown else rows_text(rows)
        info = await describe_prompt_file(services, uri)
        lines = [*filter(None, [info.cost and f"Sent with every request: {info.cost}"])]
        lines += info.loading
        if not lines:
            return text
        if self._has_markdown:
            lines = [f"- {markdown(line)}" for line in lines]
        return "\n".join([text, "", *lines])

    async def _describe_mcp_server(self, uri: str, line: int) -> str:
        from sidecar.workspace.prompt_files import describe_mcp_servers

        await self._services.configured.wait()
        hints = await describe_mcp_servers(self._services, uri)
        hint = next((hint for hint in hints if hint.line == line), None)
        if hint is None:
            return ""
        if not self._has_markdown:
            return "\n".join((hint.text, *hint.details))
        return "\n".join((markdown(hint.text), "", *(f"- {markdown(one)}" for one in hint.details)))

    async def _compare_section(self, uri: str, line: int) -> str:
        services = self._services
        parts = (counted.part for counted in await services.count_parts_of_document(uri))
        part = next((part for part in parts if part.start_line == line), None)
        if part is None:
            return ""
        document, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        section = Snapshot(text=document.text[part.start : part.end])
        models = dict.fromkeys((model_of(uri, workspace), *COMPARED))
        counts = [await services.counts.count(section, model, workspace) for model in models]
        if self._has_markdown:
            return format_comparison_as_markdown(part.title, counts)
        return f"{printable(part.title)}\n\n{format_comparison(counts)}"
