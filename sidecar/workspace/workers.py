"""Runs blocking work on threads: counting on its own pools, everything else on another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sidecar.counting.incremental import count_pieces, countable_pieces
from sidecar.waiting import SharedTasks
from sidecar.workspace.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.workspace.documents import Documents, Snapshot

T = TypeVar("T")

SAMPLE_CHARACTERS = 6_000
GIANT_CHARACTERS = 100_000
"""A piece that long, a stretch without cuts, takes its time and cannot be given up half-way."""


class Workers:
    """Counts documents and texts for the event loop, which alone may call it.

    A worker gets frozen values, and returns a number.
    """

    def __init__(self, documents: Documents | None = None) -> None:
        """`documents`: the open ones, whose own sums answer for their newest snapshots."""
        self._documents = {} if documents is None else documents
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._giants = ThreadPoolExecutor(max_workers=1, thread_name_prefix="giants")
        self._others = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()
        self._loaded: set[Tokenizer] = set()
        self._counting: SharedTasks[tuple[Snapshot, Tokenizer], int]
        self._counting = SharedTasks("counting", outlives_waiters=False)

    def stop(self) -> None:
        """Give up every count that runs (it raises `WorkStoppedError`)."""
        self._closing.set()

    def close(self) -> None:
        """Give up what runs; what waits is cancelled."""
        self.stop()
        for pool in (self._pool, self._giants, self._others):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work that is no bulk counting off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._others, work)

    async def _count_off(
        self, pool: ThreadPoolExecutor, work: Callable[[Callable[[], bool]], T]
    ) -> T:
        """Run counting work, which stops when its caller is cancelled or the server ends."""
        given_up, closing = threading.Event(), self._closing

        def should_stop() -> bool:
            return given_up.is_set() or closing.is_set()

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, partial(work, should_stop))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def count(self, taken: Snapshot, tokenizer: Tokenizer) -> int:
        """Return a snapshot's tokens; only pieces without a count are tokenized."""
        if (known := self.known(taken, tokenizer)) is not None:
            return known
        count = partial(self._count, taken, tokenizer.base)
        return tokenizer.scale(await self._counting.run((taken, tokenizer.base), count))

    async def _count(self, taken: Snapshot, base: Tokenizer) -> int:
        """Count on the ordinary threads, or with giants on the one kept for those, so that other
        texts always have a thread."""
        work = partial(_count_units, taken, base)
        tokens = await self._count_off(self._pool, partial(work, False))
        if tokens is None:
            tokens = await self._count_off(self._giants, partial(work, True))
        if base not in self._loaded:
            self._loaded.add(base)
            self._others.submit(give_back)  # the tables that it was loaded from
        return tokens or 0

    def known(self, taken: Snapshot, tokenizer: Tokenizer) -> int | None:
        """Return a snapshot's tokens if that takes under a millisecond, else None."""
        if not taken.characters:
            return 0
        base = tokenizer.base
        if not self._is_loaded(tokenizer):
            return None
        document = self._documents.get(taken.uri)
        tokens = taken.known(base, base.inline_characters, document)
        return None if tokens is None else tokenizer.scale(tokens)

    def _is_loaded(self, tokenizer: Tokenizer) -> bool:
        return tokenizer.base in self._loaded

    def guess(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """Extrapolate a document's tokens from a sample, to show while it is counted."""
        characters = document.characters
        if not self._is_loaded(tokenizer) or characters <= SAMPLE_CHARACTERS:
            return characters // 4
        pieces = document.pieces
        texts = [pieces[i * (len(pieces) - 1) // 2].text for i in range(3)]
        sample = [text[: SAMPLE_CHARACTERS // 3] for text in texts]
        tokens = sum(tokenizer.count(text) for text in sample)
        return tokens * characters // max(1, sum(map(len, sample)))

    async def load(self, tokenizers: Sequence[Tokenizer]) -> None:
        """Load tokenizers ahead of their first counts."""
        await self.run(partial(_load, tokenizers))
        self._loaded.update(one.base for one in tokenizers)


def _load(tokenizers: Sequence[Tokenizer]) -> None:
    for tokenizer in tokenizers:
        tokenizer.count("a")


def _count_units(
    taken: Snapshot,
    base: Tokenizer,
    giants: bool,
    should_stop: Callable[[], bool],
) -> int | None:
    """Count a snapshot. Returns None for one with a giant unless `giants`. Blocking."""
    pieces = countable_pieces(taken, base)
    if not giants and _has_giant(pieces, base):
        return None
    return count_pieces(pieces, base, should_stop)


def _has_giant(pieces: Sequence[Piece], base: Tokenizer) -> bool:
    """Whether a piece is too long for the ordinary threads."""
    return any(len(piece) > GIANT_CHARACTERS and base.name not in piece.counts for piece in pieces)
