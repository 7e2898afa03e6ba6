"""Tests that `context_usage` returns the same numbers as `context/usage` and `usage --json`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.cline_sessions import SessionsHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.continue_cli import ContinueHome
from benchmarks.agents.copilot import CodeHome
from benchmarks.agents.copilot_cli import CliHome
from benchmarks.agents.databases import GooseStore
from benchmarks.agents.gemini import GeminiHome
from benchmarks.agents.kimi_code import KimiHome
from benchmarks.agents.opencode import OpenHome
from benchmarks.agents.qwen import QwenHome
from benchmarks.agents.vibe import VibeHome
from tests.e2e.stdio.agents_session import AgentsServer, begin_now
from tests.e2e.test_mcp_server import connected, printed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from benchmarks.agents.truth import Truth

FIELDS = ("tokens", "limit", "usable", "percent", "model", "method", "errorPercent", "costUsd")
STEPS = 3
SETTLED_SECONDS = 15.0


def claude(folder: Path, root: Path) -> Generator[Truth]:
    home = ClaudeHome(folder / ".claude")
    begin_now(home.clock)
    session = home.session(root)
    while True:
        session.user()
        session.reply()
        yield home.truth


def codex(folder: Path, root: Path) -> Generator[Truth]:
    home = CodexHome(folder / ".codex")
    begin_now(home.clock)
    thread = home.thread(root)
    while True:
        thread.begin_turn()
        thread.call()
        yield home.truth
        thread.end_turn()


def opencode(folder: Path, root: Path) -> Generator[Truth]:
    home = OpenHome(folder / ".local" / "share" / "opencode")
    begin_now(home.clock)
    session = home.session(root)
    try:
        while True:
            session.user()
            session.reply()
            yield home.truth
    finally:
        home.close()


def gemini(folder: Path, root: Path) -> Generator[Truth]:
    home = GeminiHome(folder / ".gemini")
    begin_now(home.clock)
    chat = home.session(root)
    while True:
        chat.user()
        chat.reply()
        yield home.truth


def cline(folder: Path, root: Path) -> Generator[Truth]:
    home = SessionsHome(folder / ".cline" / "data" / "sessions")
    begin_now(home.clock)
    session = home.session(root)
    while True:
        session.call()
        yield home.truth


def copilot_chat(folder: Path, root: Path) -> Generator[Truth]:
    home = CodeHome(folder / ".config" / "Code" / "User")
    begin_now(home.clock)
    chat = home.session(root)
    while True:
        chat.turn()
        yield home.truth


def copilot_cli(folder: Path, root: Path) -> Generator[Truth]:
    home = CliHome(folder / ".copilot")
    begin_now(home.clock)
    session = home.session(root)
    try:
        while True:
            home.call(session)
            yield home.truth
    finally:
        home.db.close()


def goose(folder: Path, root: Path) -> Generator[Truth]:
    store = GooseStore(folder / ".local" / "share" / "goose" / "sessions" / "sessions.db")
    begin_now(store.clock)
    try:
        while True:
            store.session(root, ledger=True)
            yield store.truth
    finally:
        store.db.close()


def sessions_of(home: Any, root: Path) -> Generator[Truth]:
    """Add sessions, each longer than the last. After each one, yield the expected numbers."""
    begin_now(home.clock)
    for turns in range(1, STEPS + 1):
        home.session(root, turns, 400)
        yield home.truth


AGENTS: dict[str, Callable[[Path, Path], Generator[Truth]]] = {
    "claude-code": claude,
    "codex": codex,
    "opencode": opencode,
    "gemini-cli": gemini,
    "cline": cline,
    "copilot-chat": copilot_chat,
    "copilot-cli": copilot_cli,
    "goose": goose,
    "qwen-code": lambda folder, root: sessions_of(QwenHome(folder / ".qwen"), root),
    "kimi-code": lambda folder, root: sessions_of(KimiHome(folder / ".kimi-code"), root),
    "vibe": lambda folder, root: sessions_of(VibeHome(folder / ".vibe"), root),
    "continue": lambda folder, root: sessions_of(ContinueHome(folder / ".continue"), root),
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_growing_session_is_the_same_everywhere(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
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
                tool: dict[str, Any] = called.structured_content or {}
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
