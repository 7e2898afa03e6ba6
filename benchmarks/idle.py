"""Measures an idle server: wake-ups and CPU time per second.

It needs Linux, which reports both. During the measured minute, the server polls twice for changes
that the file system does not report.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.agents.claude import ClaudeHome
from benchmarks.client import SERVER, StdioClient

START_SECONDS = 75.0
"""Time for loading, and for work that starts after a minute without edits."""
SECONDS = 60.0
REPLIES = 200


class Cost(NamedTuple):
    """How often the threads of a process woke up, and their CPU time in milliseconds."""

    wake_ups: int
    cpu_ms: float


def run() -> None:
    """Print both figures, without and with sessions of an agent."""
    print("\nA server at rest, per second (at most 5 wake-ups and 0.5 ms of CPU)")
    for name, replies in (("without agents", 0), (f"with a session of {REPLIES} calls", REPLIES)):
        cost = _at_rest(replies)
        wake_ups, cpu = cost.wake_ups / SECONDS, cost.cpu_ms / SECONDS
        print(f"  {name:30} {wake_ups:5.1f} wake-ups  {cpu:6.2f} ms CPU")


def _at_rest(replies: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        project = home / "project"
        project.mkdir()
        if replies:
            session = ClaudeHome(home / ".claude").session(project)
            for _ in range(replies):
                session.reply()
        env = os.environ | {"HOME": folder, "TOKEN_SIDECAR_STATE": str(home / "state")}
        env.pop("CLAUDE_CONFIG_DIR", None)
        client = StdioClient(SERVER, subprocess.DEVNULL, env)
        params = {"processId": os.getpid(), "rootUri": project.as_uri(), "capabilities": {}}
        client.request("initialize", params)
        client.notify("initialized", {})
        uri = (project / "a.md").as_uri()
        client.open("some words\n", uri)
        client.request("tokens/count", {"textDocument": {"uri": uri}})
        time.sleep(START_SECONDS)
        before = _cost(client.process.pid)
        time.sleep(SECONDS)
        after = _cost(client.process.pid)
        client.close()
    return Cost(after.wake_ups - before.wake_ups, after.cpu_ms - before.cpu_ms)


def _cost(pid: int) -> Cost:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    slept = (re.search(r"^voluntary_ctxt.*\t(\d+)", _text(task / "status"), re.M) for task in tasks)
    ran = (int(_text(task / "schedstat").split()[0]) for task in tasks)
    return Cost(sum(int(each[1]) for each in slept if each), sum(ran) / 1e6)


def _text(path: Path) -> str:
    return path.read_text("ascii")
