"""Tests that an idle server sleeps, by counting its system calls and measuring its CPU time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.client import SERVER, StdioClient
from tests.e2e.neovim import debian

MOST_PER_SECOND = 5
SECONDS = 6
"""How long three ticks of the file watcher take, in seconds."""
WAITS = "clock_nanosleep,epoll_pwait,epoll_wait,futex,nanosleep,poll,ppoll,pselect6,read,select"
_WAITED = re.compile(r"<\d+\.\d+>$", re.MULTILINE)
"""Matches every completed system call, even one that returned at once, as in a busy loop."""
MOST_CPU = 0.005
"""Maximum CPU time per second, in seconds. The benchmark measures a tenth of this."""


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(False, marks=pytest.mark.slow, id="without agents"),
        pytest.param(True, id="with an agent's sessions"),
    ],
)
def test_an_idle_server_wakes_up_at_most_five_times_a_second(
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
    server = child_of(client.process.pid)
    wake_ups, cpu = [], []
    for _ in range(8):  # on a busy machine, the server may still be working after it has started
        time.sleep(SECONDS / 2)
        before, cpu_before = trace.stat().st_size, cpu_seconds(server)
        time.sleep(SECONDS)
        after = trace.read_bytes()[before:].decode()
        cpu.append(cpu_seconds(server) - cpu_before)
        wake_ups.append(len(_WAITED.findall(after)))
        if wake_ups[-1] <= MOST_PER_SECOND * SECONDS and cpu[-1] <= MOST_CPU * SECONDS:
            break
    client.close()
    client.end_streams()
    assert 0 < wake_ups[-1] <= MOST_PER_SECOND * SECONDS, wake_ups
    assert cpu[-1] <= MOST_CPU * SECONDS, cpu


def child_of(pid: int) -> int:
    """Return the only child process of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
