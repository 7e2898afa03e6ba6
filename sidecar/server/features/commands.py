"""Commands for `workspace/executeCommand`. Their ids begin with `tokenSidecar.server.`.

A command returns its result to this project's editor plugins, and shows it as a message in other
editors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.counting.count import tokens_text
from sidecar.errors import BadParamsError
from sidecar.text.printable import message, printable
from sidecar.workspace.wording import comparison_markdown

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer

PREFIX = "tokenSidecar.server."
HEAVIEST_SHOWN = 8


def register(server: SidecarServer) -> None:

    @server.command(f"{PREFIX}heaviestSections")
    async def heaviest(*arguments: Any) -> list[dict[str, Any]]:
        parts = await server.services.parts_of(_uri_of(arguments))
        rows: list[dict[str, Any]] = [
            {"title": part.part.title, "line": part.part.start_line, "tokens": part.tokens}
            for part in sorted(parts, key=lambda part: -part.tokens)[:HEAVIEST_SHOWN]
        ]
        lines = [
            f"{row['tokens']:>8,}  {printable(row['title'])} (line {row['line'] + 1})"
            for row in rows
        ]
        title = "Heaviest sections:" if rows else "This document has no sections."
        _show_message(server, "\n".join([title, *lines]))
        return rows

    @server.command(f"{PREFIX}compareModels")
    async def compare(*arguments: Any) -> str:
        services, uri = server.services, _uri_of(arguments)
        await services.configured.wait()
        snapshot, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        models = dict.fromkeys((workspace.model, *map(str, arguments[1:])))
        counts = [await services.counts.count(snapshot, model, workspace) for model in models]
        rows = [f"{printable(row.model)} {tokens_text(row.tokens, row.method)}" for row in counts]
        _show_message(server, ", ".join(rows))
        return comparison_markdown("This document", counts)


def _uri_of(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise BadParamsError("the first argument must be the document's URI")
    return arguments[0]


def _show_message(server: SidecarServer, text: str) -> None:
    server.window_show_message(types.ShowMessageParams(types.MessageType.Info, message(text)))
