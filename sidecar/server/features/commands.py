"""Server commands with quick results, for every client that can run `workspace/executeCommand`.

Their ids begin `tokenSidecar.server.`; the answer is for shims, the message for people whose editor
has none. Nothing pops up but after such an action of theirs.
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
    """Register the commands."""

    @server.command(f"{PREFIX}heaviestSections")
    async def heaviest(*arguments: Any) -> list[dict[str, Any]]:
        uri = _uri(arguments)
        parts = sorted(await server.services.parts_of(uri), key=lambda one: -one.tokens)
        found: list[dict[str, Any]] = [
            {"title": one.part.title, "line": one.part.start_line, "tokens": one.tokens}
            for one in parts[:HEAVIEST_SHOWN]
        ]
        lines = [
            f"{row['tokens']:>8,}  {printable(row['title'])} (line {row['line'] + 1})"
            for row in found
        ]
        _show_message(
            server, "Heaviest sections:\n" + "\n".join(lines) if lines else "No sections here."
        )
        return found

    @server.command(f"{PREFIX}compareModels")
    async def compare(*arguments: Any) -> str:
        services, uri = server.services, _uri(arguments)
        await services.configured.wait()
        taken, workspace = services.documents.snapshot(uri), services.roots.of_document(uri)
        models = dict.fromkeys((workspace.model, *map(str, arguments[1:])))
        counts = [await services.counts.count(taken, model, workspace) for model in models]
        counted = ", ".join(
            f"{printable(one.model)} {tokens_text(one.tokens, one.method)}" for one in counts
        )
        _show_message(server, counted)
        return comparison_markdown("This document", counts)


def _uri(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise BadParamsError("the first argument is the document's URI")
    return arguments[0]


def _show_message(server: SidecarServer, text: str) -> None:
    server.window_show_message(types.ShowMessageParams(types.MessageType.Info, message(text)))
