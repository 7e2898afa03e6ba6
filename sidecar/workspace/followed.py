"""Sections that follow open buffers: their counts cost what an edit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.text.positions import Range
from sidecar.workspace.model_counter import ModelCounter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sidecar.context.counter import Counter
    from sidecar.counting.count import Measure
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece


class FollowedText:
    """A followed document's text at one moment: what a section counts. Never changes."""

    def __init__(self, followed: Followed, pieces: Sequence[Piece], version: int) -> None:
        self.followed, self._pieces, self.version = followed, pieces, version
        self._measures: dict[str, Measure] = {}

    def text(self) -> str:
        """The text as it was."""
        return "".join(piece.text for piece in self._pieces)

    @property
    def known_tokens(self) -> int:
        """Tokens as they were last counted; 0 before the first count."""
        latest = next(reversed(self._measures.values()), None)
        return 0 if latest is None else latest.tokens

    def measure(self, counter: Counter) -> Measure:
        """Its tokens, counted once for each model."""
        known = self._measures.get(counter.key)
        if known is None:
            if isinstance(counter, ModelCounter):
                known = counter.pieces(self._pieces)
            else:
                known = counter.text(self.text())
            self._measures[counter.key] = known
        return known


class Followed:
    """An open document, or a range of it, that a section follows. For the event loop.

    A document that was closed or is out of step stays as it was last.
    """

    def __init__(self, uri: str, span: Range | None, documents: Mapping[str, TextDocument]) -> None:
        self.uri = uri
        self._documents = documents
        self._place = self._offsets(span)
        self._seen: Sequence[Piece] | None = None
        self._text = FollowedText(self, (), 0)

    def _offsets(self, span: Range | None) -> tuple[int, int] | None:
        document = self._documents.get(self.uri)
        return None if span is None or document is None else document.offsets(span)

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

    def text(self) -> FollowedText:
        """The text as it is now; the same one until the document is edited."""
        document = self._documents.get(self.uri)
        # A new tuple of pieces after each edit: a version may come twice, or not at all.
        if document is None or not document.in_step or document.pieces is self._seen:
            return self._text
        pieces: Sequence[Piece] = document.pieces
        if self._place is not None:
            start, end = (document.position_at(offset) for offset in self._place)
            pieces = document.pieces_in(Range(start, end))
        self._seen = document.pieces
        self._text = FollowedText(self, pieces, self._text.version + 1)
        return self._text
