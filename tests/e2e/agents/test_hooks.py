"""Tests that our hooks stop the prompts of real coding agents, and that nothing else does."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.hooks.installer import hook_agents
from tests.e2e.agents.adapters import Agent, Codex, chosen_agents
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.sandbox import Ended
from tests.e2e.agents.scene import TURN_SECONDS, Stage
from tests.fake_vendor import Reply

PROMPTS = [f"Greet me in {number} words." for number in range(3, 30)]
PROGRAM = Path(sys.executable).with_name("token-sidecar")
RECORD_SECONDS = 30
REASON_IS_SHOWN = frozenset(
    {"claude-code", "gemini-cli", "kimi-code", "copilot-cli", "opencode", "pi"}
)
"""The agents whose output contains the reason even without a terminal."""
WARNING_IS_SHOWN = frozenset({"gemini-cli", "copilot-cli", "pi"})


class TrustingCodex(Codex):
    """Codex with hooks that the user has trusted."""

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        first, *others = super().arguments(prompt, resume=resume)
        return [first, "--dangerously-bypass-hook-trust", *others]


def agents() -> list[Agent]:
    chosen = chosen_agents(os.environ.get("AGENTS", "").split())
    found = [agent for agent in chosen if agent.id in hook_agents()]
    return [TrustingCodex() if agent.id == "codex" else agent for agent in found]


class Hooked(Stage):
    """An agent with our hooks, and no server."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        super().__init__(agent, ensure_installed(agent.package), folder)
        self.state = self.home / ".local/state/token-sidecar"
        self.config = self.home / ".config/token-sidecar/config.toml"
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text("")
        self.prompts = iter(PROMPTS)
        self.is_first = True

    def sidecar(self, *arguments: str) -> Ended:
        return self.sandbox.start([str(PROGRAM), *arguments], self.root, {}).wait(60)

    def set_caps(self, **caps: float) -> None:
        lines = [f"{key.replace('_', '-')}-usd = {usd}" for key, usd in caps.items()]
        self.config.write_text("\n".join(["[cost]", *lines]))

    def prompt(self) -> tuple[int, Ended]:
        """Send a prompt. Return the number of requests that arrived, and how the agent ended."""
        text, before = next(self.prompts), len(self.vendor.calls)
        self.script.on(text, Reply("Hello there."))
        ended = self.start(text, resume=not self.is_first).wait(TURN_SECONDS)
        self.is_first = False
        return len(self.vendor.calls) - before, ended

    def recorded_calls(self) -> int:
        path = self.state / "ledger.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            if not connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'event'"
            ).fetchone():
                return 0
            return int(connection.execute("SELECT count(*) FROM event").fetchone()[0])


@pytest.fixture(params=agents(), ids=lambda agent: agent.id)
def hooked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hooked]:
    made = Hooked(request.param, tmp_path)
    ended = made.sidecar("hooks", "--install", made.agent.id, "--yes")
    assert ended.code == 0, ended.output
    yield made
    made.close()


def test_prompts_over_a_hard_cap_are_not_sent(hooked: Hooked) -> None:
    hooked.set_caps(session_hard_cap=0.0001)
    requests, _ = hooked.prompt()
    assert requests > 0
    until = time.monotonic() + RECORD_SECONDS
    while not hooked.recorded_calls() and time.monotonic() < until:
        time.sleep(0.2)
    assert hooked.recorded_calls() > 0, "the turn was not recorded"
    time.sleep(1)

    requests, ended = hooked.prompt()
    assert requests == 0
    if hooked.agent.id in REASON_IS_SHOWN:
        assert "exceeds the hard cap" in ended.output

    hooked.set_caps(session_soft_cap=0.0001)
    requests, ended = hooked.prompt()
    assert requests > 0
    print(
        "SOFT",
        "soft cap" in ended.output,
        any("soft cap" in str(call.request.body) for call in hooked.vendor.calls),
    )

    hooked.set_caps(hard_cap=0.0)
    assert hooked.prompt()[0] == 0
    assert hooked.sidecar("hooks", "--pause").code == 0
    assert hooked.prompt()[0] > 0
