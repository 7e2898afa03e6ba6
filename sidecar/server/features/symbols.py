"""Document symbols: the sections with their tokens, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from lsprotocol import types

from sidecar.counting.count import tokens_text
from sidecar.server.convert import from_position
from sidecar.text.positions import Position
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.workspace.parts import CountedPart

LABEL = "Tokens"
"""Distinguishes these from a language server's own symbols."""

MOST_SYMBOLS = 1_000
"""More is no outline that anyone reads, and would hold up the loop while it is written out."""


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    options = types.DocumentSymbolOptions(label=LABEL)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, options)
    async def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        uri = params.text_document.uri
        parts = await server.services.parts_of(uri)
        document, workspace = services.documents.named(uri), services.roots.of_document(uri)
        if not server.providers.shows(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, workspace):
            return []
        return tree(document, parts[:MOST_SYMBOLS])


def tree(document: TextDocument, parts: Sequence[CountedPart]) -> list[types.DocumentSymbol]:
    """Nested by lines: a part inside another is its child."""
    roots: list[types.DocumentSymbol] = []
    above: list[tuple[int, types.DocumentSymbol]] = []
    for counted in parts:
        part = counted.part
        while above and part.start_line >= above[-1][0]:
            above.pop()
        symbol = _symbol(document, counted)
        siblings = roots
        if above:
            siblings = cast("list[types.DocumentSymbol]", above[-1][1].children)
        siblings.append(symbol)
        above.append((part.end_line, symbol))
    return roots


def _symbol(document: TextDocument, counted: CountedPart) -> types.DocumentSymbol:
    part = counted.part
    start = types.Position(part.start_line, 0)
    end = from_position(document.position_at(part.end))
    heading = document.position_at(document.offset_at(Position(part.start_line, 2**31 - 1)))
    return types.DocumentSymbol(
        name=printable(part.title) or f"line {part.start_line + 1}",
        kind=types.SymbolKind.String,
        range=types.Range(start, end),
        selection_range=types.Range(start, from_position(heading)),
        detail=tokens_text(counted.tokens, counted.method),
        children=[],
    )
