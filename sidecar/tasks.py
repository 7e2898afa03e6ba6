"""Runs delayed and background jobs on the event loop, and blocking work on threads.

Jobs with the same key never run at the same time. A key is a tuple that starts with the job's
name, such as `("status", uri)`. The name is used when errors are logged. With few exceptions,
other modules do not create tasks or timers themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sidecar.errors import WorkStoppedError, log_defect

JobKey = tuple[Hashable, ...]
Work = Callable[[], Awaitable[None] | None]
"""Called when a job is due. An awaitable result is run as a task."""


@dataclass(eq=False)
class _Job:
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Future[None] | None = None
    next: tuple[float, Work] | None = None
    """The delay and the work to run next. The delay starts when the current task ends."""


class Scheduler:
    """Runs jobs after a delay. May only be used on one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}
        self._closed = False

    def schedule(self, key: JobKey, seconds: float, work: Work) -> None:
        """Run `work` after `seconds`, unless a job with this key is already pending.

        If a job with this key is running, the delay starts when that job ends.
        """
        if self._closed:
            return
        job = self._jobs.setdefault(key, _Job())
        if job.task is not None:
            job.next = job.next or (seconds, work)
        elif job.timer is None:
            loop = asyncio.get_running_loop()
            job.timer = loop.call_later(seconds, self._start, key, job, work)

    def run_now(self, key: JobKey, work: Work) -> None:
        """Run `work` now. If a job with this key is running, run `work` when that job ends.

        A pending job with this key is replaced.
        """
        if self._closed:
            return
        job = self._jobs.setdefault(key, _Job())
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if job.task is not None:
            job.next = (0.0, work)
        else:
            self._start(key, job, work)

    def is_due(self, key: JobKey) -> bool:
        """Return whether a job with this key is pending or running."""
        return key in self._jobs

    def cancel(self, key: JobKey) -> None:
        job = self._jobs.pop(key, None)
        if job is None:
            return
        job.next = None
        if job.timer is not None:
            job.timer.cancel()
        if job.task is not None:
            job.task.cancel()

    def close(self) -> None:
        """Cancel all jobs and reject new ones. Must be called while the event loop is running."""
        self._closed = True
        for key in tuple(self._jobs):
            self.cancel(key)

    def _start(self, key: JobKey, job: _Job, work: Work) -> None:
        job.timer = None
        try:
            awaitable = work()
        except Exception as exc:  # there is no caller to handle the error
            log_defect(exc, str(key[0]))
            awaitable = None
        if awaitable is None:
            self._finish(key, job)
            return
        job.task = asyncio.ensure_future(awaitable)
        job.task.add_done_callback(lambda task: self._on_task_done(key, job, task))

    def _on_task_done(self, key: JobKey, job: _Job, task: asyncio.Future[Any]) -> None:
        job.task = None
        if not task.cancelled():
            exc = task.exception()
            if exc is not None and not isinstance(exc, WorkStoppedError):
                log_defect(exc, str(key[0]))
        self._finish(key, job)

    def _finish(self, key: JobKey, job: _Job) -> None:
        if self._jobs.get(key) is not job:
            return  # the job was cancelled; the key may belong to a newer job
        if job.timer is not None:
            return  # the job has rescheduled itself
        if job.next is None:
            del self._jobs[key]
            return
        (seconds, work), job.next = job.next, None
        self.schedule(key, seconds, work)


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

GRACE_SECONDS = 0.05
"""Added to delays to make sure that timers do not fire too early."""
PATIENCE_SECONDS = 0.3
"""Time to wait for an endpoint before an estimate is shown."""
_MAX_DOUBLINGS = 10


def backoff(failures: int, first: float, longest: float) -> float:
    """Return the delay before the next attempt. The delay doubles with each failure."""
    return min(longest, first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))


async def wait_or_fall_back(
    answer: Awaitable[T],
    fall_back: Callable[[], Awaitable[None] | None],
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """Await an answer. If it takes longer than `seconds`, call `fall_back` while waiting."""
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
        """Create an object that has no work in progress.

        Args:
            name: The name of the work in log messages.
            outlives_waiters: Whether work continues after all waiting callers are cancelled.
        """
        self._name, self._outlives_waiters = name, outlives_waiters
        self._running: dict[K, _Shared] = {}

    def __len__(self) -> int:
        return len(self._running)

    def waiting(self, key: K) -> int:
        """Return the number of callers waiting for this key's work."""
        found = self._running.get(key)
        return 0 if found is None else found.waiting

    async def aclose(self) -> None:
        """Cancel all work in progress, and wait until it has stopped."""
        tasks = [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(
        self, key: K, start: Callable[[], Awaitable[T]], seconds: float | None = None
    ) -> T:
        """Wait for the work in progress for a key, or start it. Returns the result.

        Raises:
            TimeoutError: The work takes longer than `seconds`. If `outlives_waiters` is set,
                the work continues.
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
