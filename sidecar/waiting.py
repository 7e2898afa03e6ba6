"""How the event loop waits: for work that several ask for, and for answers that may take long."""

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
"""How long nothing is shown for an endpoint that is asked: then the estimate is."""


async def or_meanwhile(
    answer: Awaitable[T],
    meanwhile: Callable[[], Awaitable[None] | None],
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """Await an answer, and do something else once where it takes longer than so many seconds."""
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done() and (other := meanwhile()) is not None:
            await other
        return await task
    finally:
        task.cancel()


@dataclass(eq=False)
class _Shared:
    task: asyncio.Future[Any]
    waiting: int = 0


class SharedTasks(Generic[K, T]):
    """Work that runs once for all who ask for the same at the same time. For the event loop."""

    def __init__(self, name: str, *, outlives_waiters: bool) -> None:
        """`name`: of the work, for the log.

        `outlives_waiters`: whether it goes on when the last one that waits for it is cancelled.
        """
        self._name, self._outlives_waiters = name, outlives_waiters
        self._running: dict[K, _Shared] = {}

    def __len__(self) -> int:
        return len(self._running)

    def waiting(self, key: K) -> int:
        """How many wait for the work of a key."""
        found = self._running.get(key)
        return 0 if found is None else found.waiting

    def tasks(self) -> list[asyncio.Future[Any]]:
        """Return the tasks that are running."""
        return [one.task for one in self._running.values()]

    async def run(
        self, key: K, start: Callable[[], Awaitable[T]], seconds: float | None = None
    ) -> T:
        """Await the running work of a key, or start it.

        Raises:
            TimeoutError: after so many seconds; the work goes on if it outlives those who wait.
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
