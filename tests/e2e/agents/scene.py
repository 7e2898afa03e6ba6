"""A stage for scenes: a real agent, its fake vendor and our server on the same workspace.

A `Scene` runs turns, compares what our server says with what the vendor reported, and collects what
differs; `assert_no_differences` fails with all of them at once.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.agents.install import ensure_installed, ensure_node
from tests.e2e.agents.sandbox import Ended, Program, Sandbox
from tests.e2e.agents.sidecar_client import SidecarClient
from tests.e2e.agents.vendor import FakeVendor, Kind, Script, VendorCall

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.agents.adapters import Agent

TURN_SECONDS = 60
STATUS_SECONDS = 10
PRICES = {
    "gpt-5": (1.25, 0.125, 1.25, 10.0),
    "claude-sonnet-4-5": (3.0, 0.3, 3.75, 15.0),
    "gemini-2.5-pro": (1.25, 0.125, 1.25, 10.0),
    "kimi-k2-0905-preview": (0.6, 0.15, 0.6, 2.5),
}
"""USD per million tokens: uncached input, cache reads, cache writes, output."""
CATEGORIES: dict[Kind, str] = {"title": "main", "other": "main"}
"""Categories of the ledger that have another name than the vendor's kind of call."""


@dataclass
class Score:
    """What one or more scenes of an agent have shown."""

    checks: int = 0
    passed: int = 0
    lags: list[float] = field(default_factory=list)
    """Seconds from the end of the vendor's reply to our status, one for each context."""
    prompt_tokens: int = 0
    recorded_prompt_tokens: int = 0

    def add(self, other: Score) -> None:
        """Take in what another scene has shown."""
        self.checks += other.checks
        self.passed += other.passed
        self.lags += other.lags
        self.prompt_tokens += other.prompt_tokens
        self.recorded_prompt_tokens += other.recorded_prompt_tokens


class Scene:
    """One test's agent, vendor and server."""

    def __init__(self, name: str, agent: Agent, folder: Path) -> None:
        self.name, self.agent, self.score = name, agent, Score()
        self.differences: list[str] = []
        self.known_differences: list[str] = []
        """By defects that the agent's class names."""
        self.program = ensure_installed(agent.package)
        self.home = folder / "home"
        self.root = self.home / "work" / "project"
        self.root.mkdir(parents=True)
        subprocess.run(["git", "init", "--quiet", str(self.root)], check=True)
        self._stack = ExitStack()
        self.sandbox = self._stack.enter_context(Sandbox(self.home))
        self.script = Script(agent.side_calls)
        vendor = FakeVendor(self.script, self.sandbox.listener)
        self.vendor = self._stack.enter_context(vendor)
        agent.configure(self.home, self.vendor.url)
        self.sidecar = SidecarClient(self.root)

    def close(self) -> None:
        """End all processes."""
        self._stack.close()
        self.sidecar.stop()

    def start(self, prompt: str, *, resume: bool = False) -> Program:
        """Give the agent a prompt, in a new session or the newest one."""
        path = f"{ensure_node().parent}:/usr/local/bin:/usr/bin:/bin"
        environment = {"PATH": path} | self.agent.environment(self.vendor.url)
        arguments = self.agent.arguments(prompt, resume=resume)
        return self.sandbox.start([str(self.program), *arguments], self.root, environment)

    def turn(self, prompt: str, *, resume: bool = False) -> Ended:
        """Run the agent on a prompt to its end; then our status shows the context it has."""
        before = len(self.vendor.calls)
        ended = self.start(prompt, resume=resume).wait(TURN_SECONDS)
        assert ended.code == 0, f"{self.agent.name} ended with {ended.code}:\n{ended.output}"
        assert len(self.vendor.calls) > before, f"no request came:\n{ended.output}"
        self.check_current_context()
        return ended

    def check(self, what: str, seen: object, expected: object) -> None:
        """Compare, and go on whatever the result."""
        if self._named(self.agent.limits, what):
            return
        self.score.checks += 1
        defect = self._named(self.agent.defects, what)
        difference = f"{what}: {seen!r}, expected {expected!r}"
        if seen == expected:
            self.score.passed += 1
            if defect:
                self.differences.append(f"{what}: no longer differs; drop the defect {defect!r}")
        elif defect:
            self.known_differences.append(f"{difference} ({defect})")
        else:
            self.differences.append(difference)

    def check_current_context(self) -> None:
        """Our status shows the newest call's context; after a compaction no longer the old one."""
        newest = self.vendor.billed("main", "summary")[-1]
        if newest.kind == "main":
            self.check_context(newest)
        else:
            is_new = self._wait_until(lambda: self._shown_tokens() < self.agent.fills_window)
            self.check("context after a compaction is new", is_new, True)

    def check_context(self, call: VendorCall, what: str = "context") -> None:
        """Our status shows the context as it is after this call."""
        assert call.usage is not None
        assert call.finished_at is not None
        tokens = call.usage.context
        at = self.sidecar.context_shown_at(tokens, call.finished_at, STATUS_SECONDS)
        if at is not None:
            self.score.lags.append(at - call.finished_at)
        self.check(what, tokens if at else self.sidecar.usage()["tokens"], tokens)

    def check_session(self, *, title: str | None) -> None:
        """The shown session is this agent's, with the right model and window, and idle."""
        usage = self.sidecar.usage()
        rows = [row for row in self.sidecar.sessions() if row["shown"]]
        self.check("shown sessions", len(rows), 1)
        row = rows[0] if rows else {}
        self.check("agent", row.get("source"), self.agent.name)
        self.check("model", row.get("model"), self.agent.model)
        self.check("window", usage["limit"], self.agent.window)
        self.check("title", row.get("title"), title)
        self.check_state("idle")

    def check_state(self, expected: str, what: str = "state") -> None:
        """The shown session is in this state, or gets there in a moment."""
        self._wait_until(lambda: self._state() == expected)
        self.check(what, self._state(), expected)

    def check_bill(self) -> None:
        """The ledger has each call that the vendor reported once, as it was, at its price."""
        rows = self.sidecar.bill()
        calls = self.vendor.billed()
        told = [call for call in calls if call.kind not in self.agent.untold]
        is_split = self.agent.tells_cache
        seen = Counter(_entry(row, is_split=is_split) for row in rows)
        expected = Counter(_expected_entry(call, is_split=is_split) for call in told)
        self.check("calls", seen, expected)
        cost = sum(row["costUsd"] or 0 for row in rows)
        self.check("cost", cost, pytest.approx(sum(map(_cost, told))))
        self.score.prompt_tokens += sum(call.usage.prompt for call in calls if call.usage)
        self.score.recorded_prompt_tokens += sum(_prompt(row) for row in rows)

    def assert_no_differences(self) -> None:
        """Fail with all differences; known ones alone are an expected failure."""
        assert not self.differences, "\n".join([f"{self.agent.name}:", *self.differences])
        if self.known_differences:
            pytest.xfail("; ".join(self.known_differences))

    def _named(self, names: dict[str, str], what: str) -> str | None:
        return names.get(f"{self.name}: {what}", names.get(what))

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + STATUS_SECONDS
        while not (is_met := condition()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return is_met

    def _shown_tokens(self) -> int:
        return self.sidecar.usage()["tokens"] or 0

    def _state(self) -> str | None:
        return next((row["state"] for row in self.sidecar.sessions() if row["shown"]), None)


_CACHE_WRITES = ("cacheWriteTokens", "cacheWrite5mTokens", "cacheWrite1hTokens")


def _prompt(row: dict[str, Any]) -> int:
    writes = sum(row[name] for name in _CACHE_WRITES)
    return int(row["inputTokens"] + row["cacheReadTokens"] + writes)


def _entry(row: dict[str, Any], *, is_split: bool) -> tuple[object, ...]:
    writes = sum(row[name] for name in _CACHE_WRITES)
    split = (row["inputTokens"], row["cacheReadTokens"], writes)
    output = row["outputTokens"] + row["reasoningTokens"]
    return row["category"], row["model"], *(split if is_split else [sum(split)]), output


def _expected_entry(call: VendorCall, *, is_split: bool) -> tuple[object, ...]:
    usage = call.usage
    assert usage is not None
    split = (usage.uncached, usage.cache_read, usage.cache_write)
    category = CATEGORIES.get(call.kind, call.kind)
    return category, call.model, *(split if is_split else [sum(split)]), usage.output


def _cost(call: VendorCall) -> float:
    usage = call.usage
    assert usage is not None
    tokens = (usage.uncached, usage.cache_read, usage.cache_write, usage.output)
    prices = PRICES[call.model]
    return sum(count * price for count, price in zip(tokens, prices, strict=True)) / 1e6
