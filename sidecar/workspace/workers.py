"""Runs blocking work on threads. Counting has its own threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sidecar.counting.incremental import count_pieces, countable_pieces
from sidecar.waiting import SharedTasks
from sidecar.workspace.memory import release_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.tokenizer_interface import Tokenizer
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.workspace.documents import Documents, Snapshot

T = TypeVar("T")

SAMPLE_CHARACTERS = 6_000
GIANT_CHARACTERS = 100_000
"""Counting a piece of this length takes long and cannot be interrupted."""


class Workers:
    """Runs blocking work for the event loop. The work gets frozen values and returns values."""

    def __init__(self, documents: Documents | None = None) -> None:
        """Start the threads.

        Args:
            documents: The open documents, whose cached sums are used.
        """
        self._documents = {} if documents is None else documents
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._giant_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="giants")
        self._blocking_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()
        self._loaded: set[Tokenizer] = set()
        self._counting: SharedTasks[tuple[Snapshot, Tokenizer], int]
        self._counting = SharedTasks("counting", outlives_waiters=False)

    def stop(self) -> None:
        """Stop running counts, which then raise `WorkStoppedError`."""
        self._closing.set()

    def close(self) -> None:
        """Stop running counts and cancel waiting work."""
        self.stop()
        for pool in (self._pool, self._giant_pool, self._blocking_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread. Long texts are counted by `count` instead."""
        return await asyncio.get_running_loop().run_in_executor(self._blocking_pool, work)

    async def _run_stoppable(
        self, pool: ThreadPoolExecutor, work: Callable[[Callable[[], bool]], T]
    ) -> T:
        """Run work on a thread until it is done, its caller is cancelled, or the server stops."""
        cancelled, closing = threading.Event(), self._closing

        def should_stop() -> bool:
            return cancelled.is_set() or closing.is_set()

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, partial(work, should_stop))
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def count(self, snapshot: Snapshot, tokenizer: Tokenizer) -> int:
        """Return a snapshot's tokens. Only pieces without a cached count are tokenized."""
        tokens = self.count_if_quick(snapshot, tokenizer)
        if tokens is not None:
            return tokens
        count = partial(self._count, snapshot, tokenizer.base)
        return tokenizer.scale(await self._counting.run((snapshot, tokenizer.base), count))

    async def _count(self, snapshot: Snapshot, base: Tokenizer) -> int:
        """Count a snapshot. A text with giant pieces is counted on a separate thread."""
        work = partial(_count_snapshot, snapshot, base)
        tokens = await self._run_stoppable(self._pool, partial(work, False))
        if tokens is None:
            tokens = await self._run_stoppable(self._giant_pool, partial(work, True))
        if base not in self._loaded:
            self._loaded.add(base)
            self._blocking_pool.submit(
                release_memory
            )  # release the tables from which the tokenizer was built
        return tokens or 0

    def count_if_quick(self, snapshot: Snapshot, tokenizer: Tokenizer) -> int | None:
        """Return a snapshot's tokens if counting takes under a millisecond, else None."""
        if not snapshot.characters:
            return 0
        base = tokenizer.base
        if not self._is_loaded(tokenizer):
            return None
        document = self._documents.get(snapshot.uri)
        tokens = snapshot.count_if_quick(base, base.inline_characters, document)
        return None if tokens is None else tokenizer.scale(tokens)

    def _is_loaded(self, tokenizer: Tokenizer) -> bool:
        return tokenizer.base in self._loaded

    def extrapolate(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """Estimate a document's tokens from a sample."""
        characters = document.characters
        if not self._is_loaded(tokenizer) or characters <= SAMPLE_CHARACTERS:
            return characters // 4
        pieces = document.pieces
        texts = [pieces[i * (len(pieces) - 1) // 2].text for i in range(3)]
        sample = [text[: SAMPLE_CHARACTERS // 3] for text in texts]
        tokens = sum(tokenizer.count(text) for text in sample)
        return tokens * characters // max(1, sum(map(len, sample)))

    async def load(self, tokenizers: Sequence[Tokenizer]) -> None:
        """Load some tokenizers, so that their first counts are fast."""
        await self.run(partial(_load_tokenizers, tokenizers))
        self._loaded.update(one.base for one in tokenizers)


def _load_tokenizers(tokenizers: Sequence[Tokenizer]) -> None:
    for tokenizer in tokenizers:
        tokenizer.count("a")


def _count_snapshot(
    snapshot: Snapshot,
    base: Tokenizer,
    giants: bool,
    should_stop: Callable[[], bool],
) -> int | None:
    """Count a snapshot. Returns None if it has a giant piece and `giants` is false. Blocking."""
    pieces = countable_pieces(snapshot, base)
    if not giants and _has_giant(pieces, base):
        return None
    return count_pieces(pieces, base, should_stop)


def _has_giant(pieces: Sequence[Piece], base: Tokenizer) -> bool:
    return any(len(piece) > GIANT_CHARACTERS and base.name not in piece.counts for piece in pieces)
