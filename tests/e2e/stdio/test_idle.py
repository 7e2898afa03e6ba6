"""A server at rest sleeps: its wake-ups are counted from outside, by strace."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.client import SERVER, StdioClient
from tests.e2e.neovim import debian

if TYPE_CHECKING:
    from pathlib import Path

MOST_PER_SECOND = 5
SECONDS = 6
"""Three of the watcher's ticks."""
WAITS = "clock_nanosleep,epoll_pwait,epoll_wait,futex,nanosleep,poll,ppoll,pselect6,read,select"
_WAITED = re.compile(r"<(\d+\.\d+)>$", re.MULTILINE)
SHORTEST = 0.001
"""A call that took so many seconds has slept, and woken up."""


@pytest.mark.parametrize("used", [False, True], ids=["without agents", "with an agent's sessions"])
def test_an_idle_server_wakes_up_five_times_a_second_at_most(
    used: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project, trace = tmp_path / "project", tmp_path_factory.mktemp("trace") / "trace"
    project.mkdir()
    if used:
        ClaudeHome(tmp_path / ".claude").session(project).reply()
    env = os.environ | {"HOME": str(tmp_path)}
    env.pop("CLAUDE_CONFIG_DIR", None)
    strace = debian.ensure("strace", "strace")
    traced = [strace, "-f", "-qq", "-T", "-e", f"trace={WAITS}", "-o", str(trace), *SERVER]
    client = StdioClient(traced, subprocess.DEVNULL, env)
    params = {"processId": os.getpid(), "rootUri": project.as_uri(), "capabilities": {}}
    client.request("initialize", params)
    client.notify("initialized", {})
    client.open("some words\n", (project / "a.md").as_uri())
    client.request("tokens/count", {"textDocument": {"uri": (project / "a.md").as_uri()}})
    wake_ups = []
    for _ in range(8):  # what follows a start may take a while on a busy machine
        time.sleep(SECONDS / 2)
        before = trace.stat().st_size
        time.sleep(SECONDS)
        after = trace.read_bytes()[before:].decode()
        wake_ups.append(sum(float(took) >= SHORTEST for took in _WAITED.findall(after)))
        if wake_ups[-1] <= MOST_PER_SECOND * SECONDS:
            break
    client.close()
    client.end_streams()
    assert 0 < wake_ups[-1] <= MOST_PER_SECOND * SECONDS, wake_ups
