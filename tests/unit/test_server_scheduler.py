"""Tests that jobs with the same key do not run concurrently, and that exceptions are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from sidecar.tasks import Scheduler


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    ours = logging.getLogger("sidecar")
    before, ours.propagate = ours.propagate, True
    yield caplog
    ours.propagate = before


async def idle(scheduler: Scheduler, *key: str) -> None:
    async with asyncio.timeout(60):
        while scheduler.is_due(key):
            await asyncio.sleep(0)


async def test_pending_job_is_not_delayed_and_runs_once() -> None:
    scheduler, done = Scheduler(), list[int]()
    for number in range(5):
        scheduler.schedule(("job",), 0.001, lambda n=number: done.append(n))  # type: ignore[misc]
    await idle(scheduler, "job")
    assert done == [0]


async def test_job_scheduled_while_running_runs_again_afterwards() -> None:
    scheduler, gate, running, most, runs = Scheduler(), asyncio.Event(), 0, 0, 0

    async def work() -> None:
        nonlocal running, most, runs
        running, runs = running + 1, runs + 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    scheduler.run_now(("job",), work)
    for _ in range(3):
        scheduler.schedule(("job",), 0, work)
        scheduler.run_now(("job",), work)
    await asyncio.sleep(0)
    gate.set()
    await idle(scheduler, "job")
    assert (runs, most) == (2, 1)


async def test_jobs_with_different_keys_run_concurrently() -> None:
    scheduler, gate, started = Scheduler(), asyncio.Event(), list[str]()

    async def work(name: str) -> None:
        started.append(name)
        await gate.wait()

    scheduler.run_now(("a",), lambda: work("a"))
    scheduler.run_now(("b",), lambda: work("b"))
    await asyncio.sleep(0)
    assert started == ["a", "b"]
    scheduler.close()


async def test_cancelling_a_job_also_cancels_its_successor() -> None:
    scheduler, runs, ended = Scheduler(), list[int](), asyncio.Event()

    async def work() -> None:
        runs.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    scheduler.run_now(("job",), work)
    await asyncio.sleep(0)
    scheduler.run_now(("job",), work)
    scheduler.cancel(("job",))
    await ended.wait()
    await asyncio.sleep(0.01)
    assert (len(runs), scheduler.is_due(("job",))) == (1, False)


@pytest.mark.parametrize("late", [False, True])
async def test_defect_is_logged_and_the_key_stays_usable(
    late: bool, logged: pytest.LogCaptureFixture
) -> None:
    scheduler, done = Scheduler(), list[int]()

    def secret() -> None:
        raise ZeroDivisionError("what the buffer holds")

    async def later() -> None:
        secret()

    scheduler.schedule(("status", "file:///a"), 0, later if late else secret)
    await idle(scheduler, "status", "file:///a")
    assert "status: ZeroDivisionError at" in logged.text
    assert "secret" in logged.text
    assert "buffer" not in logged.text
    scheduler.run_now(("status", "file:///a"), lambda: done.append(1))
    assert done == [1]


async def test_closed_scheduler_starts_no_job() -> None:
    scheduler, done = Scheduler(), list[int]()
    scheduler.close()
    scheduler.run_now(("job",), lambda: done.append(1))
    scheduler.schedule(("job",), 0.0, lambda: done.append(2))
    assert not scheduler.is_due(("job",))
    assert done == []
