"""Sections that follow open buffers: their counts cost what an edit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.text.positions import Range
from sidecar.workspace.errors import RequestError
from sidecar.workspace.model_counter import ModelCounter

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from sidecar.context.counter import Counter
    from sidecar.counting.count import Measure
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece


class FollowedDocument:
    """An open document, or a range of it, as a section's source.

    `refresh` takes a snapshot on the event loop, which owns documents; the rest may run on any
    thread. A document that was closed stays as it was last.
    """

    def __init__(self, uri: str, span: Range | None, documents: Mapping[str, TextDocument]) -> None:
        """Raises RequestError `badParams` for a range that is none."""
        self.uri = uri
        self._documents = documents
        self._place = self._offsets(span)
        self._version: Hashable = None
        self._pieces: Sequence[Piece] = ()
        self._measures: dict[str, tuple[Hashable, Measure]] = {}
        self.refresh()

    def _offsets(self, span: Range | None) -> tuple[int, int] | None:
        document = self._documents.get(self.uri)
        if span is None or document is None:
            return None
        try:
            return document.offsets(span)
        except ValueError as exc:
            raise RequestError("badParams", str(exc)) from None

    def edited(self, start: int, end: int, inserted: int) -> None:
        """The characters from `start` to `end` are about to become `inserted` others.

        The range moves with its text: what is put in before it pushes it on, what is put in
        inside or at its end belongs to it.
        """
        if self._place is None:
            return
        first, last = self._place
        grown = inserted - (end - start)
        if end <= first:
            self._place = first + grown, last + grown
        elif start <= last:
            self._place = min(first, start), max(last, end) + grown

    def refresh(self) -> None:
        """Take the document as it is now."""
        document = self._documents.get(self.uri)
        if document is None or (version := (id(document), document.version)) == self._version:
            return
        if self._place is None:
            self._pieces = document.pieces
        else:
            start, end = (document.position_at(offset) for offset in self._place)
            self._pieces = document.pieces_in(Range(start, end))
        self._version = version

    @property
    def version(self) -> Hashable:
        """Changes whenever the text does."""
        return self._version

    def text(self) -> str:
        """The text of the last snapshot."""
        return "".join(piece.text for piece in self._pieces)

    @property
    def known_tokens(self) -> int:
        """Tokens as they were last counted; 0 before the first count."""
        latest = next(reversed(self._measures.values()), None)
        return 0 if latest is None else latest[1].tokens

    def measure(self, counter: Counter) -> Measure:
        """Tokens of the last snapshot."""
        known = self._measures.get(counter.key)
        if known is not None and known[0] == self._version:
            return known[1]
        if isinstance(counter, ModelCounter):
            measure = counter.pieces(self._pieces)
        else:
            measure = counter.text(self.text())
        self._measures.pop(counter.key, None)  # the latest count is the last entry
        self._measures[counter.key] = (self._version, measure)
        return measure
