"""Tests that no message text is stored or logged, and that agents' files are not changed."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents import (
    claude,
    cline,
    cline_sessions,
    codex,
    copilot,
    databases,
    gemini,
    opencode,
)
from benchmarks.agents.truth import Clock, append
from sidecar.agents.compressed import zstd
from sidecar.config.settings import Agents
from tests.unit.agents_world import World

SECRET = "sk-live-0123456789abcdef"  # noqa: S105


def write_logs(home: Path, root: Path) -> None:
    made = (
        claude.everyday(claude.ClaudeHome(home / ".claude"), root).path,
        codex.everyday(codex.CodexHome(home / ".codex"), root).path,
        gemini.everyday(gemini.GeminiHome(home / ".gemini"), root).path,
    )
    for path in made:
        append(path, {"type": "assistant", "tokens": {"input": SECRET}, "usage": SECRET})
        append(path, {"type": "token_count", "payload": {"info": {"model": 5, "x": SECRET}}})
        with path.open("a") as file:
            file.write('{"usage" "tokens" broken ' + SECRET + "\n")


def write_documents(home: Path, root: Path) -> None:
    user = home / ".config/Code/User"
    code = copilot.CodeHome(user)
    for flat in (True, False):
        chat = copilot.everyday(code, root, flat=flat)
    chat.write({"kind": 1, "k": ["requests", 0, "promptTokens"], "v": SECRET})
    cline.everyday(cline.ClineHome(user / "globalStorage" / "saoudrizwan.claude-dev"), root)
    sessions = home / ".cline" / "data" / "sessions"
    cline_sessions.everyday(cline_sessions.SessionsHome(sessions), root)


def state_of(home: Path) -> dict[str, tuple[Any, ...]]:
    """Return each file's times and size, and the contents of databases. SQLite may read `-shm`."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in home.rglob("*"):
        if path.is_file() and path.suffix != ".db-shm":
            status = path.stat()
            data = path.read_bytes() if ".db" in path.suffix else status.st_atime_ns
            found[str(path)] = (status.st_size, status.st_mtime_ns, data)
    return found


def test_no_text_is_stored_or_logged_and_no_file_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(Clock, "text", lambda _self, length: f"{SECRET} " * (1 + length // 25))
    root = tmp_path / "work"
    root.mkdir()
    write_logs(tmp_path, root)
    write_documents(tmp_path, root)
    open_home = opencode.OpenHome(tmp_path / ".local/share/opencode")
    opencode.everyday(open_home, root, "first")
    zed = databases.ZedStore(tmp_path / ".local/share/zed/threads/threads.db")
    zed.pack = zstd.compress
    zed.thread(root)
    with closing(open_home.db), closing(zed.db):
        for store in (open_home.db, zed.db):
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = state_of(tmp_path)
        world = World(tmp_path, Agents())
        world.ingest()
        seen = world.shown(root)
        world.ledger.close()
        stored = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
        shutil.rmtree(tmp_path / "state")
        assert state_of(tmp_path) == before
    agents = {"claude-code", "codex", "gemini-cli", "copilot-chat", "cline", "opencode", "zed"}
    assert {session.source for session in seen} == set(world.agent_of.values()) == agents
    assert sum(world.skipped.values()) > 0
    for kept in (repr(seen), repr(world.calls), caplog.text, stored.decode("latin-1")):
        assert SECRET not in kept
