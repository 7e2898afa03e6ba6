"""Helpers for waiting on the event loop: shared tasks, fallbacks for slow answers, and backoff.

Only this module and `server/scheduler.py` start tasks and timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sidecar.defects import log_defect

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

PATIENCE_SECONDS = 0.3
"""How long an endpoint may take before an estimate is shown, in seconds."""
_MOST_DOUBLINGS = 10


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the delay before the next attempt, which doubles with each failure in a row."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


async def wait_or_fall_back(
    answer: Awaitable[T],
    fall_back: Callable[[], Awaitable[None] | None],
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """Await an answer. If it takes longer than `seconds`, also call `fall_back` once."""
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() and (other := fall_back()) is not None:
            await other
        return await task
    finally:
        task.cancel()


@dataclass(eq=False)
class _Shared:
    task: asyncio.Future[Any]
    waiting: int = 0


class SharedTasks(Generic[K, T]):
    """Runs work once for all callers that request it at the same time."""

    def __init__(self, name: str, *, outlives_waiters: bool) -> None:
        """Create the shared tasks.

        Args:
            name: Name of the work in log messages.
            outlives_waiters: Whether the work continues after its last waiter is cancelled.
        """
        self._name, self._outlives_waiters = name, outlives_waiters
        self._running: dict[K, _Shared] = {}

    def __len__(self) -> int:
        return len(self._running)

    def waiting(self, key: K) -> int:
        """Return how many callers wait for the work of a key."""
        found = self._running.get(key)
        return 0 if found is None else found.waiting

    async def aclose(self) -> None:
        """Cancel all running work, and wait until it has ended."""
        tasks = [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(
        self, key: K, start: Callable[[], Awaitable[T]], seconds: float | None = None
    ) -> T:
        """Return the result of a key's running work, or start the work.

        Raises:
            TimeoutError: The work takes longer than `seconds`. If it outlives its waiters, it
                continues.
        """
        shared = self._running.get(key)
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.ensure_future(start()))
            shared.task.add_done_callback(partial(self._ended, key, shared))
        shared.waiting += 1
        try:
            await asyncio.wait({shared.task}, timeout=seconds)
            if not shared.task.done():
                raise TimeoutError
            result: T = shared.task.result()
            return result
        finally:
            shared.waiting -= 1
            if not shared.waiting and not self._outlives_waiters:
                shared.task.cancel()
                self._forget(key, shared)

    def _ended(self, key: K, shared: _Shared, task: asyncio.Future[Any]) -> None:
        self._forget(key, shared)
        failed = None if task.cancelled() else task.exception()
        if failed is not None and not shared.waiting:
            log_defect(failed, self._name)

    def _forget(self, key: K, shared: _Shared) -> None:
        if self._running.get(key) is shared:
            del self._running[key]
