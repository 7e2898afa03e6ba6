"""Runs blocking work on threads. Long counts have a separate thread pool."""

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
    """Runs blocking work for the event loop. Pass only immutable values to it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="counting")
        self._giant_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="giants")
        self._blocking_pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="blocking")
        self._closing = threading.Event()

    def stop(self) -> None:
        """Stop all counts in progress. They raise `WorkStoppedError`."""
        self._closing.set()

    def close(self) -> None:
        """Stop all counts in progress and cancel pending work."""
        self.stop()
        for pool in (self._pool, self._giant_pool, self._blocking_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work on a thread. Use `run_count` for counting long texts."""
        return await asyncio.get_running_loop().run_in_executor(self._blocking_pool, work)

    async def run_count(
        self, count: Callable[[Callable[[], bool]], T], *, is_giant: bool = False
    ) -> T:
        """Count on a thread. Cancelling the caller or stopping the server stops the count.

        Args:
            count: A function that counts. Its argument is another function, and `count` must stop
                once that function returns true.
            is_giant: Whether the count may take long without checking whether to stop.
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
