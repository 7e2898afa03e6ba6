"""An outline of a document with the token counts of its sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lsprotocol import types

from sidecar.config.settings import Settings
from sidecar.counting.count_result import tokens_text
from sidecar.counting.counts import CountedPart
from sidecar.server.client import LINE_END, from_position
from sidecar.server.section_feature import SectionFeature
from sidecar.text.document import Position, TextDocument
from sidecar.text.printable import printable

LABEL = "Tokens"
"""Distinguishes these symbols from other language servers' symbols."""

MAX_SYMBOLS = 1_000
"""Maximum number of symbols. Encoding more would block the event loop."""


class DocumentSymbols(SectionFeature):
    """Returns sections as symbols. LSP has no request to refresh them."""

    method, name = types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, "document_symbol"
    announced = types.DocumentSymbolOptions(label=LABEL)
    registered = types.DocumentSymbolRegistrationOptions(label=LABEL)

    def is_enabled(self, settings: Settings) -> bool:
        # A second outline is only useful to users who count sections.
        return settings.inlay_hints or settings.code_lens

    async def respond(self, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        services, uri = self._services, params.text_document.uri
        parts = await services.count_parts_of_document(uri)
        document = services.documents.get_open(uri)
        settings = services.roots.of_document(uri).settings
        if self._is_dynamic and not self.is_enabled(settings):
            return []
        return _symbol_tree(document, parts[:MAX_SYMBOLS])


def _symbol_tree(
    document: TextDocument, parts: Sequence[CountedPart]
) -> list[types.DocumentSymbol]:
    roots: list[types.DocumentSymbol] = []
    ancestors: list[tuple[int, types.DocumentSymbol]] = []
    for counted in parts:
        part = counted.part
        while ancestors and part.start_line >= ancestors[-1][0]:
            ancestors.pop()
        symbol = _symbol(document, counted)
        siblings = roots
        if ancestors:
            siblings = cast("list[types.DocumentSymbol]", ancestors[-1][1].children)
        siblings.append(symbol)
        ancestors.append((part.end_line, symbol))
    return roots


def _symbol(document: TextDocument, counted: CountedPart) -> types.DocumentSymbol:
    part = counted.part
    start = types.Position(part.start_line, 0)
    end = from_position(document.position_at(part.end))
    heading = document.position_at(document.offset_at(Position(part.start_line, LINE_END)))
    return types.DocumentSymbol(
        name=printable(part.title) or f"line {part.start_line + 1}",
        kind=types.SymbolKind.String,
        range=types.Range(start, end),
        selection_range=types.Range(start, from_position(heading)),
        detail=tokens_text(counted.tokens, counted.method),
        children=[],
    )
