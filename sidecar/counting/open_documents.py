"""Open documents, their snapshots, and the ranges that conversations follow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from sidecar.counting.count_result import Measure
from sidecar.counting.tokenizer_interface import (
    SAMPLE_CHARACTERS,
    Tokenizer,
    count_pieces,
    count_uncounted_characters,
    countable_pieces,
)
from sidecar.errors import RequestError
from sidecar.text.document import Encoding, Piece, Range, SplitText, TextDocument, split_pieces

_MAX_INLINE_CHARACTERS = 1_000_000
"""Maximum length of text that is counted on the event loop. Longer text would take over 1 ms."""


class Snapshot(SplitText):
    """An immutable copy of a document or of some other text, safe to share between threads."""

    def __init__(
        self, pieces: Sequence[Piece] | None = None, text: str | None = None, uri: str = ""
    ) -> None:
        self.uri = uri
        self.edition: object = None
        """The document's edition when the snapshot was taken. Every edit creates a new edition."""
        self._is_whole = False
        self.version: int | None = None
        self.encoding: Encoding = "utf-16"
        self.language_id = ""
        self._pieces = None if pieces is None else tuple(pieces)
        self._text = text
        self._characters: int | None = None
        self.edited_at: float | None = None
        """Time of the last edit (`time.monotonic`), or None if the document was not edited."""

    @classmethod
    def of(cls, document: TextDocument) -> Snapshot:
        snapshot = cls(uri=document.uri)
        snapshot._describe(document)
        snapshot._is_whole = True
        snapshot._pieces, snapshot._characters = document.pieces, document.characters
        return snapshot

    @classmethod
    def part_of(cls, document: TextDocument, span: Range) -> Snapshot:
        snapshot = cls(document.pieces_in(span), uri=document.uri)
        snapshot._describe(document)
        return snapshot

    def _describe(self, document: TextDocument) -> None:
        self.edition, self.version = document.edition, document.version
        self.encoding = document.encoding
        self.language_id = document.language_id

    def is_of(self, document: TextDocument | None) -> bool:
        """Return whether the snapshot contains the document's current text."""
        return self._is_whole and document is not None and self.edition is document.edition

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The text's pieces. Each piece caches its token count."""
        if self._pieces is None:
            self._pieces = tuple(split_pieces(self._text or ""))
        return self._pieces

    @property
    def characters(self) -> int:
        """The text's length in Unicode code points."""
        if self._characters is None:
            pieces, text = self._pieces or (), self._text
            self._characters = sum([len(p.text) for p in pieces]) if text is None else len(text)
        return self._characters

    @property
    def sample(self) -> str:
        """The beginning of the text. Used to detect the type of text."""
        return self.head(SAMPLE_CHARACTERS)

    def head(self, characters: int) -> str:
        """Return the first characters of the text."""
        if self._text is not None:
            return self._text[:characters]
        texts, left = list[str](), characters
        for piece in self.pieces:
            texts.append(piece.text[:left])
            left -= len(texts[-1])
            if not left:
                break
        return "".join(texts)

    @property
    def is_cut(self) -> bool:
        """Whether the text has already been split into pieces."""
        return self._pieces is not None

    def count_if_quick(
        self, base: Tokenizer, most: int, document: TextDocument | None
    ) -> int | None:
        """Return the token count, or None if too much of the text has not been counted yet.

        Args:
            base: The tokenizer.
            most: Maximum number of characters to tokenize. A piece that is slow to tokenize is
                treated as much longer than it is.
            document: The open document with the same URI. Its counts are reused if it is
                unchanged.
        """
        if base.has_safe_cuts and document is not None and self.is_of(document):
            missing = document.uncounted_pieces(base.name)
            if missing and count_uncounted_characters(missing, base.name, most) > most:
                return None
            count_pieces([*missing], base)
            return document.token_total(base.name)
        if self.characters > most and not self.is_cut:
            return None  # splitting long text would take too long
        if not base.has_safe_cuts and self._whole is None and self.characters > most:
            return None  # the text has not been counted yet and cannot be split
        if self.characters > _MAX_INLINE_CHARACTERS:
            return None
        units = countable_pieces(self, base)
        return (
            count_pieces(units, base)
            if count_uncounted_characters(units, base.name, most) <= most
            else None
        )

    def document(self) -> TextDocument:
        """Return a document with the snapshot's text. Blocks if the text is long."""
        return TextDocument(self.uri, self.text, self.version, self.encoding, self.language_id)


class FollowedPlace:
    """A document or range that a conversation section follows. Edits to it change the section."""

    def __init__(self, uri: str) -> None:
        self.uri = uri


class TextMeasurer(Protocol):
    """Counts text for one model."""

    def text(self, text: str) -> Measure: ...


class FollowedText:
    """An immutable copy of the document text that a conversation section uses."""

    def __init__(self, place: FollowedPlace, snapshot: Snapshot) -> None:
        self.place, self.snapshot = place, snapshot

    @property
    def version(self) -> object:
        """The document's edition when the text was copied."""
        return self.snapshot.edition

    def measure(self, counter: TextMeasurer) -> Measure:
        """Count the text locally, without calibration."""
        return counter.text(self.snapshot.text)


class FollowedSection(NamedTuple):
    """A conversation section that follows a document's edits."""

    uri: str
    tokens: int
    """The section's token count as part of the conversation."""
    shown: bool
    """Whether the section belongs to the shown conversation."""


class Documents(dict[str, TextDocument]):
    """The open documents, keyed by URI."""

    def __init__(self) -> None:
        super().__init__()
        self._snapshots: dict[str, Snapshot] = {}
        self._ranges: WeakKeyDictionary[FollowedPlace, tuple[int, int]] = WeakKeyDictionary()
        """Character offsets of tracked ranges. If a whole document is tracked, it has no entry."""

    def get_open(self, uri: str) -> TextDocument:
        """Return an open document that is in sync with the editor.

        Raises:
            RequestError: `unknownDocument`. The document is not open, or it is out of sync.
        """
        document = self.get(uri)
        if document is None:
            raise RequestError("unknownDocument", "the document is not open in this server")
        if not document.is_synced:
            message = "the document is out of sync until the editor sends its full text"
            raise RequestError("unknownDocument", message)
        return document

    def snapshot(self, uri: str) -> Snapshot:
        """Return a snapshot of an open document. The snapshot is reused until the next edit.

        Raises:
            RequestError: `unknownDocument`. The document is not open, or it is out of sync.
        """
        return self.snapshot_of(self.get_open(uri))

    def snapshot_of(self, document: TextDocument) -> Snapshot:
        """Return a snapshot of a document, even if the document is not open."""
        uri = document.uri
        if self.get(uri) is not document:
            return Snapshot.of(document)
        known = self._snapshots.get(uri)
        if known is not None and known.is_of(document) and known.version == document.version:
            return known
        snapshot = Snapshot.of(document)
        if known is not None:
            snapshot.edited_at = known.edited_at if known.is_of(document) else time.monotonic()
        self._snapshots[uri] = snapshot
        return snapshot

    def is_newest(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot matches an open document's current text."""
        return snapshot.is_of(self.get(snapshot.uri))

    def edit(self, document: TextDocument, span: Range | None, text: str) -> None:
        """Replace a range of a document, or its whole text.

        Text inserted before a tracked range shifts the range. Text inserted inside the range
        or at its end becomes part of the range.
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
        """Start tracking an open document, or a range in it.

        Raises:
            RequestError: `unknownDocument`. The document is not open, or it is out of sync.
        """
        document, place = self.get_open(uri), FollowedPlace(uri)
        if span is not None:
            self._ranges[place] = document.offsets(span)
        return FollowedText(place, self._snapshot_at(place, document))

    def is_stale(self, text: FollowedText) -> bool:
        """Return whether the document has been edited since the text was copied."""
        document = self.get(text.place.uri)
        is_known = document is not None and document.is_synced
        return is_known and document is not None and document.edition is not text.version

    def latest(self, text: FollowedText) -> FollowedText:
        """Return the current text of a section's source, which is a document or a range.

        Returns `text` itself if the document has not been edited.
        """
        if not self.is_stale(text):
            return text
        return FollowedText(text.place, self._snapshot_at(text.place, self[text.place.uri]))

    def _snapshot_at(self, place: FollowedPlace, document: TextDocument) -> Snapshot:
        offsets = self._ranges.get(place)
        if offsets is None:
            return self.snapshot_of(document)
        start, end = map(document.position_at, offsets)
        return Snapshot.part_of(document, Range(start, end))

    def close(self, uri: str) -> None:
        self.pop(uri, None)
        self._snapshots.pop(uri, None)
