"""Tests when the editor is told that a prompt cache is cold, in a simulated day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.session_events import StoredSession
from sidecar.budgets.budget_rules import Rules
from sidecar.config.settings import Caps, Loaded, Settings
from sidecar.cost.ledger_events import Buckets
from sidecar.server.features.status_updates import CacheUpdates
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.status import cache_status, with_forecast
from sidecar.workspace.workspace import Event, Workspace
from tests.unit.cost_calls import call_of

MODEL = "claude-opus-4-5"
# Per million tokens: read $0.50, written for five minutes $6.25, for an hour $10.


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self._now, self._working = 0.0, 0
        self._wait = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def _select(self, timeout: float | None = None) -> Any:
        if timeout and not self._working:
            self._now += timeout
            timeout = 0
        return self._wait(None if self._working and timeout else timeout)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self._working += 1
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: object) -> None:
        self._working -= 1


class Day:
    """A day in a workspace with sessions of Claude Code. Times are in minutes since its start."""

    def __init__(self, root: Path, caps: Caps) -> None:
        self.start, self.services = datetime.now(UTC), Services()
        self.scheduler, self.warnings = Scheduler(), list[tuple[float, str, str]]()
        self.cache = CacheUpdates(self.services, self.scheduler, self.now)
        self.services.listeners.append(self._listen)
        self.workspaces = [self._open(root / name, caps) for name in ("app", "other")]
        self.sessions: dict[str, StoredSession] = {}
        self.calls = 0

    def _open(self, path: Path, caps: Caps) -> Workspace:
        workspace = self.services.roots.add(path.as_uri())
        settings = Settings(cost=caps)
        workspace.apply_settings(Loaded(settings, (), {}), Rules(settings))
        return workspace

    def now(self) -> datetime:
        return self.start + timedelta(seconds=asyncio.get_running_loop().time())

    def _listen(self, event: Event) -> None:
        if event.what == "warning" and event.warning is not None:
            at = (self.now() - self.start) / timedelta(minutes=1)
            self.warnings.append((at, event.warning.session or "", event.warning.message))
            assert event.warning.kind == "cold"
        self.cache.on_event(event)

    async def until(self, minute: float) -> None:
        await asyncio.sleep(60 * minute - asyncio.get_running_loop().time())

    async def call(self, minute: float, session: str, **buckets: int) -> None:
        """Record a call that ends a turn of a session."""
        await self.until(minute)
        self.calls += 1
        call = call_of(
            "claude-code",
            at=self.now(),
            model=MODEL,
            provider="anthropic",
            session=session,
            request_id=str(self.calls),
            buckets=Buckets(input=4, **buckets),
        )
        book = self.services.spending(self.workspaces[0]).book
        book.ledger.record(call)
        self.show(session, active=False, tokens=call.buckets.prompt)

    def show(self, session: str, *, active: bool, tokens: int = 0) -> None:
        """Add a line to a session, which makes it the newest of its workspace."""
        tokens = tokens or self.sessions[session].tokens or 0
        self.sessions[session] = StoredSession(
            id=session,
            source="claude-code",
            model=MODEL,
            tokens=tokens,
            updated_at=self.now(),
            active=active,
        )
        is_other = session == "other"
        sessions = self.services.sessions(self.workspaces[is_other])
        sessions.set_agent_sessions(
            one for one in self.sessions.values() if (one.id == "other") == is_other
        )

    def status(self) -> str:
        workspace = self.workspaces[0]
        usage = with_forecast(workspace.context.usage, workspace.costs)
        status = cache_status(usage, workspace.settings.cost, self.now())
        return f"{status.severity}: {status.text}" if status else ""


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Day]:
    def run(play: Callable[[Day], Any], **caps: Any) -> Day:
        async def day() -> Day:
            simulated = Day(tmp_path, Caps(**caps))
            await play(simulated)
            await simulated.until(24 * 60)
            simulated.scheduler.close()
            await simulated.services.aclose()
            simulated.services.workers.close()
            return simulated

        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(day())

    return run


def cold(usd: str, cached: str) -> str:
    return f"Cold: next input {usd} instead of {cached}."


def test_each_cooling_is_warned_about_once_and_at_the_right_second(
    simulate: Callable[..., Day],
) -> None:
    statuses = list[str]()

    async def play(day: Day) -> None:
        await day.call(0, "large", cache_write_5m=200_000)  # cold at 5
        await day.until(4.9)
        statuses.append(day.status())
        await day.until(5.1)
        statuses.append(day.status())
        await day.call(60, "large", cache_write_5m=200_000)
        await day.call(64, "large", cache_read=200_000, cache_write_5m=2_000)  # cold at 69
        await day.call(80, "small", cache_write_5m=50_000)  # at 85, $0.31 instead of $0.025
        await day.call(120, "hour", cache_write_1h=200_000)  # cold at 180
        # At 215, only 40,000 tokens are written again: $0.35 instead of $0.12. At 270, all are.
        await day.call(200, "mixed", cache_write_1h=200_000)
        await day.call(210, "mixed", cache_read=200_000, cache_write_5m=40_000)

    day = simulate(play)
    expected = [
        (5, "large", cold("$1.25", "$0.10")),
        (69, "large", cold("$1.26", "$0.10")),
        (180, "hour", cold("$2.00", "$0.10")),
        (270, "mixed", cold("$2.25", "$0.12")),
    ]
    assert [warning[1:] for warning in day.warnings] == [warning[1:] for warning in expected]
    late = [at - due for (at, *_), (due, *_) in zip(day.warnings, expected, strict=True)]
    assert all(0 <= 60 * each < 1 for each in late), late
    until = f"{(day.start + timedelta(minutes=5)).astimezone():%H:%M}"
    assert statuses == [
        f"ok: cache until {until}",
        f"warning: {cold('$1.25', '$0.10')[:-1].lower()}",
    ]


def test_only_the_shown_session_is_warned_about(simulate: Callable[..., Day]) -> None:
    async def play(day: Day) -> None:
        await day.call(0, "hidden", cache_write_5m=200_000)
        await day.call(2, "shown", cache_write_5m=250_000)
        await day.call(30, "other", cache_write_5m=300_000)  # in another folder

    day = simulate(play)
    assert [session for _, session, _ in day.warnings] == ["shown", "other"]


def test_a_turn_that_began_in_time_is_not_warned_about(simulate: Callable[..., Day]) -> None:
    async def play(day: Day) -> None:
        await day.call(0, "s", cache_write_5m=200_000)
        await day.until(4.98)  # the line of the prompt is read after the cache has expired
        day.show("s", active=True)
        await day.call(6, "s", cache_read=200_000, cache_write_5m=1_000)  # cold at 11
        await day.until(10)
        day.show("s", active=True)
        await day.until(12)
        day.show("s", active=False)  # interrupted

    day = simulate(play)
    assert [round(at, 1) for at, *_ in day.warnings] == [12.1]


def test_a_session_that_was_cold_before_is_not_warned_about(simulate: Callable[..., Day]) -> None:
    async def play(day: Day) -> None:
        await day.call(0, "old", cache_write_5m=200_000)
        await day.call(1, "new", cache_write_5m=1_000)
        await day.until(30)
        day.show("old", active=False)

    assert simulate(play).warnings == []


@pytest.mark.parametrize(("least", "warnings"), [("0", 0), ("1.14", 1), ("1.16", 0), ("0.01", 1)])
def test_the_threshold_is_the_users(
    simulate: Callable[..., Day], least: str, warnings: int
) -> None:
    async def play(day: Day) -> None:
        await day.call(0, "s", cache_write_5m=200_000)  # $1.25 instead of $0.10

    assert len(simulate(play, cold_warning_usd=Decimal(least)).warnings) == warnings
