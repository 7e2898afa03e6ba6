"""Inlay hints: a count at the end of each section or top-level block. Off by default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.counting.count import tokens_text
from sidecar.server.convert import from_position, to_lines
from sidecar.text.positions import Position
from sidecar.text.printable import printable

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.workspace.parts import CountedPart

_LINE_END = 2**31 - 1  # LSP: a character past the end of a line stands for its end


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services = server.services

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    async def inlay_hints(params: types.InlayHintParams) -> list[types.InlayHint]:
        await services.configured.wait()
        document = services.documents.named(params.text_document.uri)
        workspace = services.roots.of_document(document.uri)
        if not workspace.settings.inlay_hints:
            return []
        parts = await server.services.parts_of(document.uri)
        first, last = to_lines(params.range)
        wanted = [part for part in parts if first <= _last_line(document, part) <= last]
        return list(_hints(document, wanted))


def _last_line(document: TextDocument, counted: CountedPart) -> int:
    """The part's last line that shows something, where the hint stands."""
    for line in range(counted.part.end_line - 1, counted.part.start_line, -1):
        if document.line(line).strip():
            return line
    return counted.part.start_line


def _hints(document: TextDocument, parts: Iterable[CountedPart]) -> Iterable[types.InlayHint]:
    """One hint a line: sections that end together share theirs, the innermost first."""
    by_line: dict[int, list[CountedPart]] = {}
    for part in parts:
        by_line.setdefault(_last_line(document, part), []).insert(0, part)
    for line, ending in by_line.items():
        offset = document.offset_at(Position(line, _LINE_END))
        label = " · ".join(tokens_text(part.tokens, part.method) for part in ending)
        tooltip = "\n".join(
            f"{printable(part.part.title)}: {tokens_text(part.tokens, part.method)}"
            for part in ending
        )
        yield types.InlayHint(
            position=from_position(document.position_at(offset)),
            label=label,
            tooltip=tooltip,
            padding_left=True,
        )
