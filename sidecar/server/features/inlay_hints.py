"""Inlay hints with the token counts of sections, at the sections' last lines."""

from __future__ import annotations

from collections.abc import Iterable

from lsprotocol import types

from sidecar.config.settings import Settings
from sidecar.counting.count_result import tokens_text
from sidecar.counting.counts import CountedPart
from sidecar.server.client import LINE_END, find_line_span, from_position
from sidecar.server.section_feature import SectionFeature
from sidecar.text.document import Position, TextDocument
from sidecar.text.printable import printable, shorten

_MAX_TITLE = 24
"""Maximum length of a title in an inlay hint, in characters."""


class InlayHints(SectionFeature):
    """Shows the counts of the sections that end in the visible range."""

    method, name = types.TEXT_DOCUMENT_INLAY_HINT, "inlay_hint"
    registered = types.InlayHintRegistrationOptions()

    def is_enabled(self, settings: Settings) -> bool:
        return settings.inlay_hints

    def refresh(self) -> None:
        self._client.workspace_inlay_hint_refresh(None)

    async def respond(self, params: types.InlayHintParams) -> list[types.InlayHint]:
        services = self._services
        await services.configured.wait()
        document = services.documents.get_open(params.text_document.uri)
        if not self.is_enabled(services.roots.of_document(document.uri).settings):
            return []
        parts = await services.count_parts_of_document(document.uri)
        first, last = find_line_span(params.range)
        visible = [part for part in parts if first <= _last_line(document, part) <= last]
        return list(_hints(document, visible))


def _last_line(document: TextDocument, counted: CountedPart) -> int:
    for line in range(counted.part.end_line - 1, counted.part.start_line, -1):
        if document.line(line).strip():
            return line
    return counted.part.start_line


def _hints(document: TextDocument, parts: Iterable[CountedPart]) -> Iterable[types.InlayHint]:
    by_line: dict[int, list[CountedPart]] = {}
    for part in parts:
        by_line.setdefault(_last_line(document, part), []).insert(0, part)
    for line, ending in by_line.items():
        offset = document.offset_at(Position(line, LINE_END))
        counts = [tokens_text(part.tokens, part.method) for part in ending]
        titles = [printable(part.part.title) for part in ending]
        names = [shorten(title, _MAX_TITLE) for title in titles]
        yield types.InlayHint(
            position=from_position(document.position_at(offset)),
            label=counts[0] if len(counts) == 1 else " · ".join(_with_titles(names, counts)),
            tooltip="\n".join(_with_titles(titles, counts)),
            padding_left=True,
        )


def _with_titles(titles: Iterable[str], counts: Iterable[str]) -> Iterable[str]:
    return map(": ".join, zip(titles, counts, strict=True))
