"""Commands for editors without a plugin of this project.

They return their result, and also show it as a message.
"""

from __future__ import annotations

from typing import Any

from lsprotocol import types

from sidecar.counting.count_result import tokens_text
from sidecar.errors import BadParamsError
from sidecar.server.client import Client
from sidecar.server.feature import Feature
from sidecar.text.printable import message, printable
from sidecar.text.tables import align_columns
from sidecar.workspace.document_budgets import model_of
from sidecar.workspace.services import Services
from sidecar.workspace.views import format_comparison_as_markdown

PREFIX = "tokenSidecar.server."
HEAVIEST_SHOWN = 8


class Commands(Feature):
    """Runs `workspace/executeCommand`."""

    def __init__(self, services: Services, client: Client) -> None:
        self._services, self._client = services, client
        self.commands = {
            f"{PREFIX}heaviestSections": self._list_heaviest_sections,
            f"{PREFIX}compareModels": self._compare_models,
        }

    async def _list_heaviest_sections(self, *arguments: Any) -> list[dict[str, Any]]:
        parts = await self._services.count_parts_of_document(_uri_of(arguments))
        rows: list[dict[str, Any]] = [
            {"title": part.part.title, "line": part.part.start_line, "tokens": part.tokens}
            for part in sorted(parts, key=lambda part: -part.tokens)[:HEAVIEST_SHOWN]
        ]
        lines = align_columns(
            [
                (f"{row['tokens']:,}", f"{printable(row['title'])} (line {row['line'] + 1})")
                for row in rows
            ],
            left=0,
        )
        title = "Heaviest sections:" if rows else "This document has no sections."
        self._show_message("\n".join([title, *lines]))
        return rows

    async def _compare_models(self, *arguments: Any) -> str:
        services, uri = self._services, _uri_of(arguments)
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        models = dict.fromkeys((model_of(uri, workspace), *map(str, arguments[1:])))
        counts = [await services.counts.count(snapshot, model, workspace) for model in models]
        rows = [f"{printable(row.model)} {tokens_text(row.tokens, row.method)}" for row in counts]
        self._show_message(", ".join(rows))
        return format_comparison_as_markdown("This document", counts)

    def _show_message(self, text: str) -> None:
        params = types.ShowMessageParams(types.MessageType.Info, message(text))
        self._client.window_show_message(params)


def _uri_of(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise BadParamsError("the first argument must be the document's URI")
    return arguments[0]
