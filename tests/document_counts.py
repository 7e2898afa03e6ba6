"""Counts documents as the server's workers do, but on the current thread."""

from __future__ import annotations

from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import (
    Tokenizer,
    count_pieces,
    count_uncounted_characters,
    countable_pieces,
)
from sidecar.text.document import TextDocument

_ANY = 10**12


def document_tokens(doc: TextDocument, tokenizer: Tokenizer) -> int:
    """Count the whole document. Only pieces that have not been counted yet are tokenized."""
    base = tokenizer.base
    if not base.has_safe_cuts:
        return tokenizer.scale(count_pieces(countable_pieces(doc, base), base))
    tokens = Snapshot.of(doc).count_if_quick(base, _ANY, doc)
    assert tokens is not None
    return tokenizer.scale(tokens)


def pending_characters(doc: TextDocument, tokenizer: Tokenizer) -> int:
    """Return how many characters must be tokenized to count the document."""
    base = tokenizer.base
    pieces = doc.uncounted_pieces(base.name) if base.has_safe_cuts else countable_pieces(doc, base)
    return count_uncounted_characters(pieces, base.name, _ANY)
