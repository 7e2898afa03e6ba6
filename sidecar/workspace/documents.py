"""Open documents, and what is taken of them: snapshots, which no edit changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sidecar.counting.incremental import count_pieces, pending_in, soon_counted, units_of
from sidecar.counting.tokenizer import SAMPLED, Tokenizer
from sidecar.errors import RequestError
from sidecar.text.document import TextDocument
from sidecar.text.piece_list import PieceBlock, in_order
from sidecar.text.pieces import Piece, Pieced, pieces_of

if TYPE_CHECKING:
    from sidecar.text.positions import Encoding, Range

KIND_CHARACTERS = SAMPLED
_WALKED = 1_000_000
"""Pieces of longer texts are not all looked at on the event loop: that takes over a millisecond."""


class Snapshot(Pieced):
    """One version of a text, from a document or given as it is. Never changes: any thread may
    read it. What is worked out of it is kept, so one snapshot a version is joined once."""

    def __init__(
        self, pieces: Sequence[Piece] | None = None, text: str | None = None, uri: str = ""
    ) -> None:
        self.uri = uri
        self._document: TextDocument | None = None
        self._edition: object = None
        self._blocks: tuple[PieceBlock, ...] | None = None
        self.version: int | None = None
        self.encoding: Encoding = "utf-16"
        self.language_id = ""
        self._pieces = None if pieces is None else tuple(pieces)
        self._text = text
        self._characters: int | None = None
        self.edited_at: float | None = None
        """When the edit that it follows was seen, by `time.monotonic`; None where none came."""

    @classmethod
    def of(cls, document: TextDocument) -> Snapshot:
        """A whole document as it is now. What is known of it by then is asked of the document for
        as long as it is not edited, so that a count costs the same however long it is."""
        taken = cls(uri=document.uri)
        taken._describe(document)
        taken._document, taken._edition = document, document.edition
        taken._blocks, taken._characters = document.frozen(), document.characters
        return taken

    @classmethod
    def part_of(cls, document: TextDocument, span: Range) -> Snapshot:
        """A range of a document as it is now."""
        taken = cls(document.pieces_in(span), uri=document.uri)
        taken._describe(document)
        return taken

    def _describe(self, document: TextDocument) -> None:
        self.version, self.encoding = document.version, document.encoding
        self.language_id = document.language_id

    def is_of(self, document: TextDocument) -> bool:
        """Whether it is the whole document as it is now."""
        return self._document is document and self._edition is document.edition

    @property
    def is_newest(self) -> bool:
        """Whether it is a whole document, and as that is now."""
        return self._document is not None and self.is_of(self._document)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Stretches whose counts add up, which remember them."""
        if self._pieces is None:
            cut = pieces_of(self._text or "") if self._blocks is None else in_order(self._blocks)
            self._pieces = tuple(cut)
        return self._pieces

    @property
    def characters(self) -> int:
        """The length in Unicode code points."""
        if self._characters is None:
            pieces, text = self._pieces or (), self._text
            self._characters = sum([len(p.text) for p in pieces]) if text is None else len(text)
        return self._characters

    @property
    def sample(self) -> str:
        """The beginning, by which the kind of text is recognised, the same however it is cut."""
        if self._text is not None:
            return self._text[:KIND_CHARACTERS]
        start = ""
        for piece in self.pieces if self._blocks is None else in_order(self._blocks):
            if len(start) >= KIND_CHARACTERS:
                break
            start += piece.text
        return start[:KIND_CHARACTERS]

    @property
    def is_cut(self) -> bool:
        """Whether the pieces are there already: making them of a long text takes its time."""
        return self._pieces is not None or self._blocks is not None

    def known(self, basis: Tokenizer, most: int) -> int | None:
        """The tokens by `basis`, where `most` characters are to be tokenized for it or fewer; a
        slow piece is taken for many. For the event loop."""
        document = self._document
        if basis.cuts == "lines" and document is not None and self.is_of(document):
            return soon_counted(document, basis, most)
        if self.characters > most and not self.is_cut:
            return None  # cutting it takes its time too
        if basis.cuts == "none" and self._whole is None and self.characters > most:
            return None  # there is nothing yet that could have remembered a count
        if self.characters > _WALKED:
            return None  # so does to group the pieces
        units = units_of(self, basis)
        return count_pieces(units, basis) if pending_in(units, basis, most) <= most else None

    def document(self) -> TextDocument:
        """The document as it was. Blocking for big ones."""
        return TextDocument(self.uri, self.text, self.version, self.encoding, self.language_id)


class Documents(dict[str, TextDocument]):
    """The open documents, by URI."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, Snapshot] = {}

    def named(self, uri: str) -> TextDocument:
        """An open document, in step with the editor.

        Raises:
            RequestError: `unknownDocument`.
        """
        document = self.get(uri)
        if document is None:
            raise RequestError("unknownDocument", "the document is not open in this server")
        if not document.in_step:
            message = "the document is out of step until the editor sends its whole text"
            raise RequestError("unknownDocument", message)
        return document

    def snapshot(self, uri: str) -> Snapshot:
        """The document as it is now; the same one until it is edited.

        Raises:
            RequestError: `unknownDocument`.
        """
        return self.taken(self.named(uri))

    def taken(self, document: TextDocument) -> Snapshot:
        """The same of a document that may have been closed, or be one that was held."""
        uri = document.uri
        if self.get(uri) is not document:
            return Snapshot.of(document)
        known = self._taken.get(uri)
        if known is None or not known.is_of(document):
            edited_at = None if known is None else time.monotonic()
            known = self._taken[uri] = Snapshot.of(document)
            known.edited_at = edited_at
        known.version = document.version
        return known

    def closed(self, uri: str) -> None:
        """Forget a document."""
        self.pop(uri, None)
        self._taken.pop(uri, None)
