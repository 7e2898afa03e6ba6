"""Background jobs of the event loop: debounced, one at a time for each key.

A key is a tuple that starts with the job's name: `("status", uri)`. Exceptions are logged under
that name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

from sidecar.defects import log_defect
from sidecar.errors import WorkStoppedError

JobKey = tuple[Hashable, ...]
Work = Callable[[], Awaitable[None] | None]
"""Called when due; an awaitable result is awaited in a task."""


@dataclass(eq=False)
class _Job:
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Future[None] | None = None
    again: tuple[float, Work] | None = None
    """Work that became due while the task ran; its delay starts when the task ends."""


class Scheduler:
    """Runs each key's work shortly after it becomes due. Use it from one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}
        self._closed = False

    def soon(self, key: JobKey, seconds: float, work: Work) -> None:
        """Run `work` after `seconds` and after running work; pending work keeps its time."""
        if self._closed:
            return
        job = self._jobs.setdefault(key, _Job())
        if job.task is not None:
            job.again = job.again or (seconds, work)
        elif job.timer is None:
            loop = asyncio.get_running_loop()
            job.timer = loop.call_later(seconds, self._start, key, job, work)

    def now(self, key: JobKey, work: Work) -> None:
        """Run `work` at once instead of pending work, or right after running work."""
        if self._closed:
            return
        job = self._jobs.setdefault(key, _Job())
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if job.task is not None:
            job.again = (0.0, work)
        else:
            self._start(key, job, work)

    def is_due(self, key: JobKey) -> bool:
        """Return whether work is pending or running."""
        return key in self._jobs

    def cancel(self, key: JobKey) -> None:
        """Cancel pending and running work of a key."""
        job = self._jobs.pop(key, None)
        if job is None:
            return
        job.again = None
        if job.timer is not None:
            job.timer.cancel()
        if job.task is not None:
            job.task.cancel()

    def close(self) -> None:
        """Cancel everything while the event loop still runs; nothing starts afterwards."""
        self._closed = True
        for key in tuple(self._jobs):
            self.cancel(key)

    def _start(self, key: JobKey, job: _Job, work: Work) -> None:
        job.timer = None
        try:
            rest = work()
        except Exception as exc:  # a timer callback has no caller to handle it
            log_defect(exc, str(key[0]))
            rest = None
        if rest is None:
            self._ended(key, job)
            return
        job.task = asyncio.ensure_future(rest)
        job.task.add_done_callback(lambda task: self._done(key, job, task))

    def _done(self, key: JobKey, job: _Job, task: asyncio.Future[Any]) -> None:
        job.task = None
        if not task.cancelled():
            exc = task.exception()
            if exc is not None and not isinstance(exc, WorkStoppedError):
                log_defect(exc, str(key[0]))
        self._ended(key, job)

    def _ended(self, key: JobKey, job: _Job) -> None:
        if self._jobs.get(key) is not job:
            return  # cancelled; the key may belong to another job by now
        if job.timer is not None:
            return  # the work scheduled itself again
        if job.again is None:
            del self._jobs[key]
            return
        (seconds, work), job.again = job.again, None
        self.soon(key, seconds, work)
