"""Open documents, their snapshots, and the sections of conversations that follow them.

A snapshot never changes and holds no document, so that any thread may read it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from sidecar.counting.incremental import (
    count_if_quick,
    count_pieces,
    count_uncounted_characters,
    countable_pieces,
)
from sidecar.counting.tokenizer import SAMPLE_CHARACTERS, Tokenizer
from sidecar.errors import RequestError
from sidecar.text.document import TextDocument
from sidecar.text.pieces import Piece, SplitText, split_pieces
from sidecar.text.positions import Range

if TYPE_CHECKING:
    from sidecar.context.counter import Counter
    from sidecar.counting.count import Measure
    from sidecar.text.positions import Encoding

KIND_CHARACTERS = SAMPLE_CHARACTERS
_WALKED = 1_000_000
"""Pieces of longer texts are not all looked at on the event loop: that takes over a millisecond."""


class Snapshot(SplitText):
    """One version of a document, of a part of it, or of a text that is no document.

    Never changes, and refers to no document: any thread may read it. Derived values are kept, so
    that each version is joined only once.
    """

    def __init__(
        self, pieces: Sequence[Piece] | None = None, text: str | None = None, uri: str = ""
    ) -> None:
        self.uri = uri
        self.edition: object = None
        """The edition of the document; `TextDocument.edition` is another object after an edit."""
        self._is_whole = False
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
        """Return a snapshot of a whole document."""
        taken = cls(uri=document.uri)
        taken._describe(document)
        taken._is_whole = True
        taken._pieces, taken._characters = document.pieces, document.characters
        return taken

    @classmethod
    def part_of(cls, document: TextDocument, span: Range) -> Snapshot:
        """A range of a document as it is now."""
        taken = cls(document.pieces_in(span), uri=document.uri)
        taken._describe(document)
        return taken

    def _describe(self, document: TextDocument) -> None:
        self.edition, self.version = document.edition, document.version
        self.encoding = document.encoding
        self.language_id = document.language_id

    def is_of(self, document: TextDocument | None) -> bool:
        """Whether it is the whole document at its current edition."""
        return self._is_whole and document is not None and self.edition is document.edition

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Stretches whose counts add up, which remember them."""
        if self._pieces is None:
            self._pieces = tuple(split_pieces(self._text or ""))
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
        for piece in self.pieces:
            if len(start) >= KIND_CHARACTERS:
                break
            start += piece.text
        return start[:KIND_CHARACTERS]

    @property
    def is_cut(self) -> bool:
        """Whether the pieces are there already: making them of a long text takes its time."""
        return self._pieces is not None

    def known(self, base: Tokenizer, most: int, document: TextDocument | None) -> int | None:
        """Return the tokens by `base` if few characters have to be tokenized, else None.

        A slow piece counts as many characters. For the event loop.

        Args:
            base: The tokenizer.
            most: How many characters may be tokenized.
            document: The document that is open under this snapshot's URI. While it is not edited,
                its own sums answer in the same time however long it is.
        """
        if base.has_safe_cuts and document is not None and self.is_of(document):
            return count_if_quick(document, base, most)
        if self.characters > most and not self.is_cut:
            return None  # cutting it takes its time too
        if not base.has_safe_cuts and self._whole is None and self.characters > most:
            return None  # there is nothing yet that could have remembered a count
        if self.characters > _WALKED:
            return None
        units = countable_pieces(self, base)
        return (
            count_pieces(units, base)
            if count_uncounted_characters(units, base, most) <= most
            else None
        )

    def document(self) -> TextDocument:
        """The document as it was. Blocking for big ones."""
        return TextDocument(self.uri, self.text, self.version, self.encoding, self.language_id)


class FollowedPlace:
    """Identifies a document, or a range of it, that a section follows. `Documents` has its text."""

    def __init__(self, uri: str) -> None:
        self.uri = uri


class FollowedText:
    """The text at a followed place at one moment: the source of a section. Never changes."""

    def __init__(self, place: FollowedPlace, snapshot: Snapshot) -> None:
        self.place, self.snapshot = place, snapshot

    @property
    def version(self) -> object:
        """Another object for each edition of the document."""
        return self.snapshot.edition

    def text(self) -> str:
        """Return the text."""
        return self.snapshot.text

    def measure(self, counter: Counter) -> Measure:
        """Return its tokens by a counter alone, without calibration or endpoint."""
        return counter.text(self.text())


class FollowedSection(NamedTuple):
    """A section of a conversation that follows a document."""

    uri: str
    tokens: int
    """Tokens that it adds to the conversation."""
    shown: bool
    """Whether the conversation is the shown one."""


class Documents(dict[str, TextDocument]):
    """The open documents by URI. For the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, Snapshot] = {}
        self._ranges: WeakKeyDictionary[FollowedPlace, tuple[int, int]] = WeakKeyDictionary()
        """Offsets of the followed ranges; places without an entry are whole documents."""

    def named(self, uri: str) -> TextDocument:
        """An open document, in step with the editor.

        Raises:
            RequestError: `unknownDocument`.
        """
        document = self.get(uri)
        if document is None:
            raise RequestError("unknownDocument", "the document is not open in this server")
        if not document.is_synced:
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
        if known is not None and known.is_of(document) and known.version == document.version:
            return known
        taken = Snapshot.of(document)
        if known is not None:
            taken.edited_at = known.edited_at if known.is_of(document) else time.monotonic()
        self._taken[uri] = taken
        return taken

    def is_newest(self, taken: Snapshot) -> bool:
        """Whether a snapshot is a whole open document at its current edition."""
        return taken.is_of(self.get(taken.uri))

    def edit(self, document: TextDocument, span: Range | None, text: str) -> None:
        """Replace a range of a document, or all of it; followed ranges move with their text.

        Text inserted before a range shifts it; text inserted inside it or at its end belongs to it.
        """
        followed = [one for one in self._ranges if one.uri == document.uri]
        if followed:
            start, end = (0, document.characters) if span is None else document.offsets(span)
            grown = len(text) - (end - start)
            for place in followed:
                first, last = self._ranges[place]
                if end <= first:
                    self._ranges[place] = first + grown, last + grown
                elif start <= last:
                    self._ranges[place] = min(first, start), max(last, end) + grown
        document.apply(span, text)

    def follow(self, uri: str, span: Range | None) -> FollowedText:
        """Follow an open document, or a range of it.

        Raises:
            RequestError: `unknownDocument`.
        """
        document, place = self.named(uri), FollowedPlace(uri)
        if span is not None:
            self._ranges[place] = document.offsets(span)
        return FollowedText(place, self._at(place, document))

    def is_stale(self, text: FollowedText) -> bool:
        """Whether the followed document was edited since.

        The text of a document that was closed, or is out of step, stays the last one.
        """
        document = self.get(text.place.uri)
        is_known = document is not None and document.is_synced
        return is_known and document is not None and document.edition is not text.version

    def latest(self, text: FollowedText) -> FollowedText:
        """Return the current text of the same place; the same object until the next edit."""
        if not self.is_stale(text):
            return text
        return FollowedText(text.place, self._at(text.place, self[text.place.uri]))

    def _at(self, place: FollowedPlace, document: TextDocument) -> Snapshot:
        offsets = self._ranges.get(place)
        if offsets is None:
            return self.taken(document)
        start, end = map(document.position_at, offsets)
        return Snapshot.part_of(document, Range(start, end))

    def closed(self, uri: str) -> None:
        """Forget a document."""
        self.pop(uri, None)
        self._taken.pop(uri, None)
