"""Runs blocking work on threads. Counting has its own threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Workers:
    """Runs blocking work for the event loop. The work gets frozen values and returns values."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._giant_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="giants")
        self._blocking_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()

    def stop(self) -> None:
        """Stop running counts, which then raise `WorkStoppedError`."""
        self._closing.set()

    def close(self) -> None:
        """Stop running counts and cancel waiting work."""
        self.stop()
        for pool in (self._pool, self._giant_pool, self._blocking_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread. Long texts are counted by `run_count` instead."""
        return await asyncio.get_running_loop().run_in_executor(self._blocking_pool, work)

    def start(self, work: Callable[[], object]) -> None:
        """Run blocking work on a thread, without waiting for its end."""
        self._blocking_pool.submit(work)

    async def run_count(
        self, count: Callable[[Callable[[], bool]], T], *, is_giant: bool = False
    ) -> T:
        """Run a count until it is done, its caller is cancelled, or the server stops.

        Args:
            count: Counts until its argument, a function, returns true.
            is_giant: Whether a part of the count may take long without being interruptible. Such
                counts have a thread of their own, so that they do not delay others.
        """
        cancelled, closing = threading.Event(), self._closing

        def should_stop() -> bool:
            return cancelled.is_set() or closing.is_set()

        try:
            pool = self._giant_pool if is_giant else self._pool
            work = partial(count, should_stop)
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except asyncio.CancelledError:
            cancelled.set()
            raise
