"""Tests that our hooks stop the prompts of real coding agents, and that nothing else does.

No server runs. A prompt is stopped if no request arrives at the vendor.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sidecar.hooks.installer import hook_agents
from sidecar.hooks.prompt_hook import CONTEXTS_FILE
from tests.e2e.agents.adapters import Agent, Codex, chosen_agents
from tests.e2e.agents.install import ensure_installed
from tests.e2e.agents.sandbox import Ended
from tests.e2e.agents.scene import TURN_SECONDS, Stage
from tests.fake_vendor import Reply
from tests.slow_disk import CAN_BUILD, build_slow_disk

PROGRAM = Path(sys.executable).with_name("token-sidecar")
RECORD_SECONDS = 30
REASON_IS_SHOWN = frozenset(
    {"claude-code", "gemini-cli", "kimi-code", "copilot-cli", "opencode", "pi"}
)
"""The agents whose output contains the reason even without a terminal."""
WARNING_IS_SHOWN = frozenset({"gemini-cli", "copilot-cli", "kimi-code", "pi"})


class TrustingCodex(Codex):
    """Codex with hooks that the user has trusted."""

    def arguments(self, prompt: str, *, resume: bool) -> list[str]:
        first, *others = super().arguments(prompt, resume=resume)
        return [first, "--dangerously-bypass-hook-trust", *others]


def agents() -> list[Agent]:
    """Return the agents with hooks that `AGENTS` names, or those that CI runs."""
    chosen = chosen_agents(os.environ.get("AGENTS", "").split())
    found = [agent for agent in chosen if agent.id in hook_agents()]
    return [TrustingCodex() if agent.id == "codex" else agent for agent in found]


class Hooked(Stage):
    """An agent with our hooks."""

    def __init__(self, agent: Agent, folder: Path) -> None:
        super().__init__(agent, ensure_installed(agent.package), folder)
        self.state = self.home / ".local/state/token-sidecar"
        self.config = self.home / ".config/token-sidecar/config.toml"
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text("")
        self.before = self.files()
        self.prompts = 0
        self.variables: dict[str, str] = {}
        ended = self.sidecar("hooks", "--install", agent.id, "--yes")
        assert ended.code == 0, ended.output

    def files(self) -> dict[Path, bytes]:
        """Return the contents of the files in the home folder, except for our own."""
        paths = [path for path in self.home.rglob("*") if path.is_file()]
        own = (self.state, self.home / "tmp")
        return {
            path: path.read_bytes()
            for path in paths
            if not any(path.is_relative_to(folder) for folder in own)
        }

    def environment(self) -> dict[str, str]:
        return super().environment() | self.variables

    def sidecar(self, *arguments: str) -> Ended:
        return self.sandbox.start([str(PROGRAM), *arguments], self.root, {}).wait(60)

    def set_caps(self, **caps: float) -> None:
        lines = [
            f"{key.replace('_', '-')}{'' if key.startswith('context') else '-usd'} = {cap:f}"
            for key, cap in caps.items()
        ]
        self.config.write_text("\n".join(["[cost]", *lines]))

    def prompt(self, **variables: str) -> tuple[int, str]:
        """Send a prompt. Return the number of requests that arrived, and the agent's output."""
        self.prompts += 1
        text, before = f"Greet me in {self.prompts + 2} words.", len(self.vendor.calls)
        self.script.on(text, Reply("Hello there."))
        self.variables = variables
        output = self.start(text, resume=self.prompts > 1).wait(TURN_SECONDS).output
        return len(self.vendor.calls) - before, output

    def record_a_turn(self) -> None:
        """Send a prompt, and wait until the hook after the turn has recorded its calls."""
        requests, output = self.prompt()
        assert requests > 0, output
        wait_until(self.count_recorded_calls, "the turn was not recorded")

    def count_recorded_calls(self) -> int:
        path = self.state / "ledger.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(path, timeout=10)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            query = "SELECT count(*) FROM event WHERE basis IS NOT NULL"
            return int(connection.execute(query).fetchone()[0]) if "event" in names else 0

    @contextmanager
    def read_only_state(self) -> Iterator[None]:
        """Make the state folder read-only, even for the administrator."""
        folder = self.state
        mount = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        done = self.sandbox.start(["sh", "-c", mount], self.root, {}).wait(10)
        assert done.code == 0, done.output
        yield
        assert self.sandbox.start(["umount", "-l", str(folder)], self.root, {}).wait(10).code == 0


def wait_until(is_done: Callable[[], object], problem: str) -> None:
    until = time.monotonic() + RECORD_SECONDS
    while not is_done():
        assert time.monotonic() < until, problem
        time.sleep(0.2)


@pytest.fixture(params=agents(), ids=lambda agent: agent.id)
def hooked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hooked]:
    made = Hooked(request.param, tmp_path)
    yield made
    made.close()


def test_prompts_over_a_hard_cap_are_not_sent(hooked: Hooked) -> None:
    hooked.set_caps(session_hard_cap=0.0001)
    hooked.record_a_turn()
    requests, output = hooked.prompt()
    assert requests == 0, output
    if hooked.agent.id in REASON_IS_SHOWN:
        assert "exceeds the hard cap" in output
    assert "running" not in hooked.sidecar("usage", "--all", "--json").output

    hooked.set_caps(session_soft_cap=0.0001, context_hard_cap=1.0)
    requests, output = hooked.prompt()
    assert requests > 0, output
    if hooked.agent.id in WARNING_IS_SHOWN:
        assert "exceeds the soft cap" in output
    sent = str([call.request.body for call in hooked.vendor.calls])
    assert ("soft cap of" in sent) == (hooked.agent.id == "kimi-code"), "what the model was told"

    wait_until((hooked.state / CONTEXTS_FILE).exists, "the context was not recorded")
    hooked.set_caps(context_hard_cap=0.000001)
    requests, output = hooked.prompt()
    assert requests == 0, output

    hooked.set_caps(hard_cap=0.0)
    assert hooked.prompt()[0] == 0
    assert hooked.sidecar("hooks", "--pause").code == 0
    assert hooked.prompt()[0] > 0


def test_failures_stop_no_prompt_and_hide_no_cap(hooked: Hooked, tmp_path: Path) -> None:
    hooked.set_caps(hard_cap=0.0)
    hooked.record_a_turn()  # there is no ledger at first, so the prompt passes
    assert hooked.prompt()[0] == 0
    with closing(sqlite3.connect(hooked.state / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert hooked.prompt()[0] == 0, "the ledger was locked"
    if hooked.sandbox.is_isolated:
        with hooked.read_only_state():
            assert hooked.prompt()[0] == 0, "the state folder was read-only"
    if CAN_BUILD:
        requests, output = hooked.prompt(LD_PRELOAD=str(build_slow_disk(tmp_path)))
        assert requests > 0, output


def test_uninstalling_restores_the_files_of_the_agent(hooked: Hooked) -> None:
    if hooked.agent.id == "codex":
        assert "not trusted; open `/hooks` in Codex" in hooked.sidecar("hooks").output
    assert hooked.files() != hooked.before
    assert hooked.sidecar("hooks", "--uninstall", hooked.agent.id, "--yes").code == 0
    assert {**hooked.before, **hooked.files()} == hooked.before
