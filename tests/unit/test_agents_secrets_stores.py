"""Tests that readers of databases and documents store no message text and change no files."""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.agents import cline, cline_sessions, copilot, databases, opencode
from benchmarks.agents.truth import Clock
from sidecar.agents.compressed import zstd
from sidecar.config.settings import Agents
from tests.unit.agents_world import World

SECRET = "sk-live-0123456789abcdef"  # noqa: S105


def test_no_text_is_stored_and_no_file_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(Clock, "text", lambda _self, length: f"{SECRET} " * (1 + length // 25))
    root, user = tmp_path / "work", tmp_path / ".config/Code/User"
    root.mkdir()
    chat = copilot.everyday(copilot.CodeHome(user), root)
    chat.write({"kind": 1, "k": ["requests", 0, "promptTokens"], "v": SECRET})
    cline.everyday(cline.ClineHome(user / "globalStorage" / "saoudrizwan.claude-dev"), root)
    sessions = tmp_path / ".cline" / "data" / "sessions"
    cline_sessions.everyday(cline_sessions.SessionsHome(sessions), root)
    open_home = opencode.OpenHome(tmp_path / ".local/share/opencode")
    opencode.everyday(open_home, root, "first")
    zed = databases.ZedStore(tmp_path / ".local/share/zed/threads/threads.db")
    zed.pack = zstd.compress
    zed.thread(root)
    with closing(open_home.db), closing(zed.db):
        for store in (open_home.db, zed.db):
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = _state_of(tmp_path)
        world = World(tmp_path, Agents())
        world.ingest()
        seen = world.shown(root)
        world.ledger.close()
        stored = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
        shutil.rmtree(tmp_path / "state")
        assert _state_of(tmp_path) == before
    assert {session.source for session in seen} == {
        "copilot-chat", "cline", "opencode", "zed",
    }  # fmt: skip
    assert set(world.agent_of.values()) == {
        "copilot-chat", "cline", "opencode", "zed",
    }  # fmt: skip
    assert SECRET in chat.path.read_text()
    for kept in (repr(seen), repr(world.calls), caplog.text, stored.decode("latin-1")):
        assert SECRET not in kept


def _state_of(home: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return each file's size, modification time and contents, except for SQLite's `-shm` files."""
    files = (path for path in home.rglob("*") if path.is_file() and path.suffix != ".db-shm")
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in files
    }
