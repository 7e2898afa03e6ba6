"""Sections that follow open buffers: their counts cost what an edit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sidecar.text.positions import Range
from sidecar.workspace.documents import Documents, Snapshot

if TYPE_CHECKING:
    from sidecar.context.counter import Counter
    from sidecar.counting.count import Measure


class FollowedText:
    """A followed document's text at one moment: what a section counts. Never changes."""

    def __init__(self, followed: Followed, taken: Snapshot, version: int) -> None:
        self.followed, self.taken, self.version = followed, taken, version

    def text(self) -> str:
        """The text as it was."""
        return self.taken.text

    def measure(self, counter: Counter) -> Measure:
        """Its tokens by a counter alone; the workspace's sections have theirs from `Counts`."""
        return counter.text(self.text())


class FollowedSection(NamedTuple):
    """A section of a conversation that follows a document."""

    followed: Followed
    tokens: int
    """Those that it adds to the conversation."""
    shown: bool
    """Whether the conversation is the one that is shown."""


class Followed:
    """An open document, or a range of it, that a section follows. For the event loop.

    A document that was closed or is out of step stays as it was last.
    """

    def __init__(self, uri: str, span: Range | None, documents: Documents) -> None:
        self.uri = uri
        self._documents = documents
        self._place = self._offsets(span)
        self._seen: object = None
        self._text = FollowedText(self, Snapshot(text=""), 0)

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
        if document is None or not document.in_step or document.edition is self._seen:
            return self._text
        if self._place is None:
            taken = self._documents.snapshot(self.uri)
        else:
            start, end = (document.position_at(offset) for offset in self._place)
            taken = Snapshot.part_of(document, Range(start, end))
        self._seen = document.edition
        self._text = FollowedText(self, taken, self._text.version + 1)
        return self._text
