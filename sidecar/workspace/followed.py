"""Sections that follow open buffers: their counts cost what an edit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.workspace.errors import RequestError
from sidecar.workspace.model_counter import ModelCounter

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from sidecar.context.counter import Counter
    from sidecar.counting.count import Measure
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.text.positions import Range


class FollowedDocument:
    """An open document, or a range of it, as a section's source.

    `refresh` takes a snapshot on the event loop, which owns documents; the rest may run on any
    thread. A document that was closed stays as it was last.
    """

    def __init__(self, uri: str, span: Range | None, documents: Mapping[str, TextDocument]) -> None:
        self.uri = uri
        self._span = span
        self._documents = documents
        self._version: Hashable = None
        self._pieces: Sequence[Piece] = ()
        self._measures: dict[str, tuple[Hashable, Measure]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take the document as it is now.

        Raises:
            RequestError: `badParams` for a range that is none.
        """
        document = self._documents.get(self.uri)
        if document is None or (version := (id(document), document.version)) == self._version:
            return
        try:
            self._pieces = document.pieces if self._span is None else document.pieces_in(self._span)
        except ValueError as exc:
            raise RequestError("badParams", str(exc)) from None
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
