"""Counting without making anybody wait: small work at once, the rest on threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sidecar.counting.incremental import count_pieces, units_of
from sidecar.waiting import SharedTasks
from sidecar.workspace.second_process import SecondProcess, can_count, count_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.tokenizer import Tokenizer
    from sidecar.text.document import TextDocument
    from sidecar.text.pieces import Piece
    from sidecar.workspace.documents import Snapshot

T = TypeVar("T")

SAMPLE_CHARACTERS = 6_000
GIANT_CHARACTERS = 100_000
"""A piece that long, a stretch without cuts, takes its time and cannot be given up half-way."""


class Workers:
    """Counts documents and texts; the only place that tokenizes on behalf of the server."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._giants = ThreadPoolExecutor(max_workers=1, thread_name_prefix="giants")
        self._others = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()
        self._loaded: set[Tokenizer] = set()
        self._cutting: SharedTasks[TextDocument, None]
        self._cutting = SharedTasks("cutting", outlives_waiters=True)
        self._counting: SharedTasks[tuple[Snapshot, Tokenizer], int]
        self._counting = SharedTasks("counting", outlives_waiters=False)
        self.second = SecondProcess()
        self.loaded: Callable[[], None] = lambda: None
        """Called on the event loop after a count had to load its tokenizer."""

    def stop(self) -> None:
        """Give up every count that runs (it raises `Stopped`)."""
        self._closing.set()

    def close(self) -> None:
        """Give up what runs; what waits is cancelled."""
        self.stop()
        for pool in (self._pool, self._giants, self._others):
            pool.shutdown(wait=False, cancel_futures=True)
        self.second.close()

    def expect_much(self) -> None:
        """A long text is on its way: what will help to count it is started meanwhile."""
        self._others.submit(self._prepare_second)

    def _prepare_second(self) -> None:
        if self.second.pid is not None:
            return  # it may be counting: others need this thread meanwhile
        for tokenizer in list(self._loaded):
            if can_count(tokenizer):
                self.second.prepare(tokenizer.name)
        self.second.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work that is no bulk counting off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._others, work)

    async def _count_off(
        self, pool: ThreadPoolExecutor, work: Callable[[Callable[[], bool]], T]
    ) -> T:
        """Run counting work, which asks whether to stop; it does when nobody waits any more."""
        given_up = threading.Event()

        def should_stop() -> bool:
            return given_up.is_set() or self._closing.is_set()

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, partial(work, should_stop))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def cut(self, document: TextDocument) -> None:
        """Have a long text cut into pieces, once for all who wait for that."""
        await self._cutting.run(document, partial(self._cut, document))

    async def _cut(self, document: TextDocument) -> None:
        while not document.is_cut:  # its text may be replaced meanwhile
            cutting = document.cutting()
            document.adopt(await self.run(cutting), cutting)

    async def count(self, taken: Snapshot, tokenizer: Tokenizer) -> int:
        """A snapshot's tokens; only what no count of these pieces knows yet is tokenized."""
        if (known := self.known(taken, tokenizer)) is not None:
            return known
        new = not self._is_loaded(tokenizer)
        count = partial(self._count, taken, tokenizer)
        tokens = await self._counting.run((taken, tokenizer.basis), count)
        if new:
            self.loaded()
        return tokenizer.scale(tokens)

    async def _count(self, taken: Snapshot, tokenizer: Tokenizer) -> int:
        """By the threads of ordinary counts, or where a piece is a giant by the one of those: so
        there is always a thread for all others."""
        basis = tokenizer.basis

        def work(giants: bool, should_stop: Callable[[], bool]) -> int | None:
            self.load(tokenizer)
            pieces = units_of(taken, basis)
            if not giants and _has_giant(pieces, basis):
                return None
            count = partial(count_pieces, pieces, basis, should_stop)
            return count_together(pieces, basis, count, self.second)

        tokens = await self._count_off(self._pool, partial(work, False))
        if tokens is None:
            tokens = await self._count_off(self._giants, partial(work, True))
        return tokens or 0

    def known(self, taken: Snapshot, tokenizer: Tokenizer) -> int | None:
        """A snapshot's tokens if that takes under a millisecond, else None."""
        if not taken.characters:
            return 0
        basis = tokenizer.basis
        if not self._is_loaded(tokenizer):
            return None
        tokens = taken.known(basis, basis.inline_characters)
        return None if tokens is None else tokenizer.scale(tokens)

    def _is_loaded(self, tokenizer: Tokenizer) -> bool:
        return tokenizer.basis in self._loaded

    def guess(self, document: TextDocument, tokenizer: Tokenizer) -> int:
        """A number to show at once: a sample's tokens for each character, times the characters."""
        characters = document.characters
        if not self._is_loaded(tokenizer) or characters <= SAMPLE_CHARACTERS:
            return characters // 4
        pieces = document.pieces
        texts = [pieces[i * (len(pieces) - 1) // 2].text for i in range(3)]
        sample = [text[: SAMPLE_CHARACTERS // 3] for text in texts]
        tokens = sum(tokenizer.count(text) for text in sample)
        return tokens * characters // max(1, sum(map(len, sample)))

    def load(self, tokenizer: Tokenizer) -> None:
        """Load a tokenizer, so that its first count need not. Blocking: for a worker thread."""
        if not self._is_loaded(tokenizer):
            tokenizer.count("a")
            self._loaded.add(tokenizer.basis)


def _has_giant(pieces: Sequence[Piece], basis: Tokenizer) -> bool:
    """Whether a giant is to be tokenized."""
    return any(
        len(part) > GIANT_CHARACTERS
        for piece in pieces
        if len(piece) > GIANT_CHARACTERS
        for part in piece.needs(basis.name)
    )
