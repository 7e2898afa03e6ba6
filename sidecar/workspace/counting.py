"""Counting without making anybody wait: small work at once, the rest on threads of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sidecar.counting.incremental import (
    basis_of,
    count_pieces,
    count_text,
    document_tokens,
    pending_characters,
    units_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.counting.count import Tokenizer
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece

T = TypeVar("T")

INLINE_CHARACTERS = 8_192
"""What the event loop may tokenize itself: under a millisecond with the slowest engine."""

SAMPLE_CHARACTERS = 6_000


class Counting:
    """Counts documents and texts; the only place that tokenizes on behalf of the server."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._stop = threading.Event()
        self._loaded: set[Tokenizer] = set()

    def close(self) -> None:
        """Give up what runs (it raises `Stopped`); what waits is cancelled."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def load(self, tokenizer: Tokenizer) -> None:
        """Load a tokenizer in the background, so that the first count need not."""
        if tokenizer not in self._loaded:
            self._pool.submit(self._load, tokenizer)

    def document_now(self, document: TextDocument, tokenizer: Tokenizer) -> int | None:
        """The document's tokens if that takes under a millisecond, else None."""
        if tokenizer not in self._loaded:
            return 0 if not document.characters else None
        if pending_characters(document, tokenizer) > _inline(tokenizer):
            return None
        return document_tokens(document, tokenizer)

    async def document(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """The document's tokens as it is when the last missing piece has been counted."""
        while (tokens := self.document_now(document, tokenizer)) is None:
            if tokenizer not in self._loaded:
                await self.run(partial(self._load, tokenizer))
            basis = basis_of(tokenizer)
            await self.run(partial(self._count, units_of(document, basis), basis))
        return tokens

    def guess(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """A number to show at once: a sample's tokens for each character, times the characters."""
        characters = document.characters
        if tokenizer not in self._loaded or characters <= SAMPLE_CHARACTERS:
            return characters // 4
        pieces = document.pieces
        texts = [pieces[i * (len(pieces) - 1) // 2].text for i in range(3)]
        sample = [text[: SAMPLE_CHARACTERS // 3] for text in texts]
        tokens = sum(tokenizer.count(text) for text in sample)
        return tokens * characters // max(1, sum(map(len, sample)))

    async def text(self, text: str, tokenizer: Tokenizer) -> int:
        """The text's tokens."""
        if not text:
            return 0
        if tokenizer in self._loaded and len(text) <= _inline(tokenizer):
            return tokenizer.count(text)

        def work() -> int:
            self._load(tokenizer)
            return count_text(text, tokenizer, self._stop.is_set)

        return await self.run(work)

    def _count(self, pieces: Sequence[Piece], tokenizer: Tokenizer) -> None:
        count_pieces(pieces, tokenizer, self._stop.is_set)

    def _load(self, tokenizer: Tokenizer) -> None:
        if tokenizer not in self._loaded:
            tokenizer.count("a")
            self._loaded.add(tokenizer)


def _inline(tokenizer: Tokenizer) -> int:
    """How many characters of it the event loop may tokenize: a slow tokenizer says fewer."""
    basis = basis_of(tokenizer)
    characters: int = getattr(basis, "inline_characters", INLINE_CHARACTERS)
    return characters
