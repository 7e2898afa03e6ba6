"""Tests that several servers for one folder show the same costs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.claude import ClaudeHome
from sidecar.text.printable import usd_text
from tests.e2e.stdio.agents_session import AgentsServer, begin_now

NEVER_IDLE = """
import sys
from sidecar.__main__ import start
from sidecar.workspace import agent_sessions
assert agent_sessions.IDLE_SECONDS
agent_sessions.IDLE_SECONDS = 100_000.0
sys.argv[1:] = ["serve"]
start()
"""
"""Starts a server that never becomes idle, so that only its file watcher notices changes."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "work" / "project"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def servers(root: Path) -> Iterator[list[AgentsServer]]:
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(3):
            server = AgentsServer(root, [sys.executable, "-P", "-c", NEVER_IDLE])
            stack.callback(server.end_streams)
            stack.callback(server.close)
            made.append(server)
        yield made


def test_an_agents_call_is_in_the_costs_of_every_server(
    tmp_path: Path, root: Path, servers: list[AgentsServer]
) -> None:
    home = ClaudeHome(tmp_path / "home" / ".claude")
    begin_now(home.clock)
    session = home.session(root)
    session.reply()
    first = servers[0]
    first.context(home.truth.context[session.id])
    first.request("cost/detail", {})
    for _ in range(3):
        for _ in range(4):
            session.user()
            session.reply()
        total = whole_cost(first, len(home.truth.calls))
        for server in servers:
            shown_total(server, usd_text(total))


def whole_cost(server: AgentsServer, calls: int) -> float:
    """Return the cost of the workspace's calls once they have all been recorded."""
    while True:
        totals: Any = server.request("cost/detail", {})["totals"]
        if totals["calls"] == calls:
            return float(totals["costUsd"])


def shown_total(server: AgentsServer, total: str) -> None:
    """Wait until the server shows this total for the workspace."""
    server.heard(
        "status/update", lambda status: status["cost"] and total in status["cost"]["tooltip"]
    )
