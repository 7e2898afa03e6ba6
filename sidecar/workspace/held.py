"""A document as a request found it, though edits come before it can be looked into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.workspace.documents import Snapshot

if TYPE_CHECKING:
    from sidecar.text.document import TextDocument
    from sidecar.workspace.workers import Workers


class Held:
    """A document as it is now, for whoever has to wait before looking into it: a range that comes
    with a request is of the text that the client had then."""

    def __init__(self, document: TextDocument) -> None:
        self._document, self._edition = document, document.edition
        self._before = Snapshot.of(document).document if document.is_cut else document.reopening()

    def is_of(self, document: TextDocument | None) -> bool:
        """Whether this is the document, edited or not."""
        return self._document is document

    async def document(self, workers: Workers) -> TextDocument:
        """That document in pieces, which a worker makes; where it was edited meanwhile, another
        one that holds what it held."""
        found = self._document
        if found.edition is self._edition and not found.is_cut:
            await workers.cut(found)
        if found.edition is not self._edition:
            found = await workers.run(self._before)
            if not found.is_cut:
                await workers.cut(found)
        return found
