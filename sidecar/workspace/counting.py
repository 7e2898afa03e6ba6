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
    cuts_of,
    document_tokens,
    pending_characters,
    scaled,
    units_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.count import Tokenizer
    from sidecar.text.document import TextDocument

T = TypeVar("T")

INLINE_CHARACTERS = 4_096
"""What the event loop may tokenize itself: under a millisecond of ordinary text with any engine."""

SAMPLE_CHARACTERS = 6_000


class Counting:
    """Counts documents and texts; the only place that tokenizes on behalf of the server."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._others = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()
        self._loaded: set[Tokenizer] = set()

    def stop(self) -> None:
        """Give up every count that runs (it raises `Stopped`)."""
        self._closing.set()

    def close(self) -> None:
        """Give up what runs; what waits is cancelled."""
        self.stop()
        for pool in (self._pool, self._others):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work that is no bulk counting off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._others, work)

    async def _count_off(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run counting work, which asks whether to stop; it does when nobody waits any more."""
        given_up = threading.Event()

        def should_stop() -> bool:
            return given_up.is_set() or self._closing.is_set()

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, partial(work, should_stop))
        except asyncio.CancelledError:
            given_up.set()
            raise

    def document_now(self, document: TextDocument, tokenizer: Tokenizer) -> int | None:
        """The document's tokens if that takes under a millisecond, else None."""
        if tokenizer not in self._loaded:
            return 0 if not document.characters else None
        if pending_characters(document, tokenizer) > _inline(tokenizer):
            return None
        return document_tokens(document, tokenizer)

    async def document(
        self, document: TextDocument, tokenizer: Tokenizer
    ) -> tuple[int, int | None, int]:
        """The document's tokens, with the version and the characters that they are of.

        Of the document as it is when the last missing piece was counted; where a tokenizer can
        only count it whole, as it was when that count began.
        """
        while (tokens := self.document_now(document, tokenizer)) is None:
            if tokenizer not in self._loaded:
                await self.run(partial(self.load, tokenizer))
            basis = basis_of(tokenizer)
            pieces, version = units_of(document, basis), document.version
            characters = document.characters
            counted = await self._count_off(partial(count_pieces, pieces, basis))
            if cuts_of(basis) == "none":
                return scaled(counted, tokenizer), version, characters
        return tokens, document.version, document.characters

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
        if tokenizer in self._loaded and _is_quick(text, tokenizer):
            return tokenizer.count(text)

        def work(should_stop: Callable[[], bool]) -> int:
            self.load(tokenizer)
            return count_text(text, tokenizer, should_stop)

        return await self._count_off(work)

    def load(self, tokenizer: Tokenizer) -> None:
        """Load a tokenizer, so that its first count need not. Blocking: for a worker thread."""
        if tokenizer not in self._loaded:
            tokenizer.count("a")
            self._loaded.add(tokenizer)


def _is_quick(text: str, tokenizer: Tokenizer) -> bool:
    """Whether counting a text takes under a millisecond."""
    slow: Callable[[str], bool] | None = getattr(basis_of(tokenizer), "slow", None)
    return len(text) <= _inline(tokenizer) and not (slow is not None and slow(text))


def _inline(tokenizer: Tokenizer) -> int:
    """How many characters of it the event loop may tokenize: a slow tokenizer says fewer."""
    basis = basis_of(tokenizer)
    characters: int = getattr(basis, "inline_characters", INLINE_CHARACTERS)
    return characters
