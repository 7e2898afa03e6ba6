"""Runs background jobs after a delay. Jobs with the same key never run at the same time.

A key is a tuple that starts with the job's name, such as `("status", uri)`. Errors are logged
under that name.
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
"""Called when a job is due. If it returns an awaitable, a task awaits it."""


@dataclass(eq=False)
class _Job:
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Future[None] | None = None
    next: tuple[float, Work] | None = None
    """The delay and the work that were scheduled while the task ran.

    The delay starts when the task ends.
    """


class Scheduler:
    """Runs jobs after a delay. Use it from one event loop only."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, _Job] = {}
        self._closed = False

    def schedule(self, key: JobKey, seconds: float, work: Work) -> None:
        """Run `work` after `seconds`, unless a job with this key is pending.

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
        """Run `work` at once, or after the running job with this key.

        A pending job is replaced.
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
        """Cancel all jobs and ignore new ones. Call it while the event loop runs."""
        self._closed = True
        for key in tuple(self._jobs):
            self.cancel(key)

    def _start(self, key: JobKey, job: _Job, work: Work) -> None:
        job.timer = None
        try:
            awaitable = work()
        except Exception as exc:  # a timer callback has no caller that could handle the error
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
            return  # the job has scheduled itself again
        if job.next is None:
            del self._jobs[key]
            return
        (seconds, work), job.next = job.next, None
        self.schedule(key, seconds, work)
