"""Tests that `context_usage` answers for the caller's session, and like `context/usage` and
`usage --json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.cline_sessions import SessionsHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.opencode import Conversation, OpenHome
from benchmarks.agents.truth import Truth
from benchmarks.agents.vibe import VibeHome
from tests.e2e.stdio.agents_session import AgentsServer, begin_now
from tests.e2e.test_mcp_server import connected, data_of, printed, text_of

Steps = Callable[[Path, Path], Generator[Truth]]

FIELDS = ("tokens", "limit", "usable", "percent", "model", "method", "errorPercent", "costUsd")
STEPS = 3
SETTLED_SECONDS = 15.0


def growing(home: Any, root: Path) -> Generator[Truth]:
    """Yield the expected numbers after each turn of a session."""
    begin_now(home.clock)
    session = home.session(root)
    try:
        while True:
            session.user()
            session.reply()
            yield home.truth
    finally:
        if database := getattr(home, "db", None):
            database.close()


def codex(folder: Path, root: Path) -> Generator[Truth]:
    home = CodexHome(folder / ".codex")
    begin_now(home.clock)
    thread = home.thread(root)
    while True:
        thread.begin_turn()
        thread.call()
        yield home.truth
        thread.end_turn()


AGENTS: dict[str, Steps] = {
    "claude-code": lambda folder, root: growing(ClaudeHome(folder / ".claude"), root),
    "codex": codex,
    "opencode": lambda folder, root: growing(OpenHome(folder / ".local/share/opencode"), root),
}
"""A log, a log with forks, and a database. Other agents differ only in their readers."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in an empty home folder."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return root


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_growing_session_is_the_same_everywhere(
    agent: str, tmp_path: Path, root: Path
) -> None:
    steps = AGENTS[agent](tmp_path, root)
    truth = next(steps)
    server = AgentsServer(root)
    try:
        async with connected(root, client=agent) as client:
            for step in range(STEPS):
                truth = truth if step == 0 else next(steps)
                expected = list(truth.context.values())[-1]
                server.context(expected)
                called = await client.call_tool("context_usage", {})
                tool = data_of(called)
                output = await printed(root, "usage", "--json")
                assert tool["tokens"] == expected
                assert server.request("context/usage", {})["tokens"] == expected
                assert {field: tool.get(field) for field in FIELDS} == {
                    field: output[field] for field in FIELDS
                }
        # At first, the server's context window and costs may be missing or outdated.
        until = time.monotonic() + SETTLED_SECONDS
        asked = server.request("context/usage", {})
        while any(asked[field] != tool.get(field) for field in FIELDS) and time.monotonic() < until:
            await asyncio.sleep(0.2)
            asked = server.request("context/usage", {})
        assert {field: tool.get(field) for field in FIELDS} == {
            field: asked[field] for field in FIELDS
        }
    finally:
        server.close()
        server.end_streams()
        steps.close()


def opencode_calls(folder: Path, root: Path, *, name: str = "opencode") -> tuple[Truth, str]:
    home = OpenHome(folder / ".local" / "share" / name, name)
    home.clock.now = datetime.now(UTC)
    own, other = home.session(root, "first"), home.session(root, "first")
    for session, tool in ((own, "token-sidecar_context_usage"), (other, "bash")):
        session.user()
        session.reply()
        # A call that was interrupted long ago stays `running`.
        add_part(session, "token-sidecar_context_usage", "running")
        session.reply()
        add_part(session, "bash", "completed")
        add_part(session, tool, "running")
    other.user()
    home.close()
    return home.truth, own.id


def add_part(session: Conversation, tool: str, status: str) -> None:
    home, (message, *_) = session.home, session.messages[-1]
    state = {"status": status, "input": {}}
    data = json.dumps({"type": "tool", "tool": tool, "callID": "c", "state": state})
    at = home.now()
    home.put("part", id=f"prt_{at:x}", message_id=message, session_id=session.id,
             time_created=at, time_updated=at, data=data)  # fmt: skip


def kilo_calls(folder: Path, root: Path) -> tuple[Truth, str]:
    return opencode_calls(folder, root, name="kilo")


def cline_calls(folder: Path, root: Path) -> tuple[Truth, str]:
    home = SessionsHome(folder / ".cline" / "data" / "sessions")
    home.clock.now = datetime.now(UTC)
    for process in (os.getpid(), os.getppid()):
        session = home.session(root)
        session.manifest(pid=process)
        session.call()
    return home.truth, next(iter(home.truth.context))


def vibe_calls(folder: Path, root: Path) -> tuple[Truth, str]:
    home = VibeHome(folder / ".vibe")
    home.clock.now = datetime.now(UTC)
    active = folder / ".vibe" / "logs" / "session" / "active"
    active.mkdir(parents=True)
    for process in (os.getpid(), os.getppid()):
        journal = home.session(root, 2, 100)
        lease = {"lease_version": 1, "process_id": process}
        (active / f"{journal.parents[1].name}.lock.json").write_text(json.dumps(lease) + "\n")
    return home.truth, next(iter(home.truth.context))


CALLERS = {
    "opencode": opencode_calls,
    "kilo": kilo_calls,
    "@cline/core": cline_calls,
    "mcp": vibe_calls,
}
"""Two sessions for each client, the older of which made the call, as the agent's files show."""


@pytest.mark.parametrize("client", CALLERS)
async def test_files_show_which_session_made_a_call(
    client: str, tmp_path: Path, root: Path
) -> None:
    truth, caller = CALLERS[client](tmp_path, root)
    assert len(set(truth.context.values())) == len(truth.context) > 1
    # A process, because the files of two agents name the process that started the MCP server.
    async with connected(root, client=client, in_process=False) as connection:
        answer = await connection.call_tool("context_usage", {})
    assert data_of(answer)["tokens"] == truth.context[caller]
    assert "running session" not in text_of(answer)


async def test_two_sessions_that_may_have_made_a_call_are_mentioned(
    tmp_path: Path, root: Path
) -> None:
    (root / "a.md").write_text("some words")
    home = OpenHome(tmp_path / ".local" / "share" / "opencode")
    home.clock.now = datetime.now(UTC)
    for _ in range(2):
        session = home.session(root, "first")
        session.reply()
        add_part(session, "token-sidecar_context_usage", "running")
        session.user()
    home.close()
    async with connected(root, client="opencode") as connection:
        for tool, arguments in (
            ("context_usage", {}),
            ("spend", {}),
            ("count_tokens", {"path": "a.md"}),
        ):
            answer = await connection.call_tool(tool, arguments)
            note = next(one for one in data_of(answer)["notes"] if "newest" in one)
            assert "1 other running session" in note
            assert note.rstrip(".") in text_of(answer)
