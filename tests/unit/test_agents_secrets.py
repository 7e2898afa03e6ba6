"""Tests that no message text is stored or logged, and that agents' files are not changed."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from benchmarks.agents import claude, codex, gemini
from benchmarks.agents.truth import Clock, append
from sidecar.config.settings import Agents
from tests.unit.agents_world import World

SECRET = "sk-live-0123456789abcdef"  # noqa: S105


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder with several agents' sessions. All texts contain a secret."""
    monkeypatch.setattr(Clock, "text", lambda _self, length: f"{SECRET} " * (1 + length // 25))
    root = tmp_path / "home" / "work"
    root.mkdir(parents=True)
    made = (
        claude.everyday(claude.ClaudeHome(root.parent / ".claude"), root).path,
        codex.everyday(codex.CodexHome(root.parent / ".codex"), root).path,
        gemini.everyday(gemini.GeminiHome(root.parent / ".gemini"), root).path,
    )
    for path in made:
        append(path, {"type": "assistant", "tokens": {"input": SECRET}, "usage": SECRET})
        append(path, {"type": "token_count", "payload": {"info": {"model": 5, "x": SECRET}}})
        with path.open("a") as file:
            file.write('{"usage" "tokens" broken ' + SECRET + "\n")
    return root.parent


def _state_of(home: Path) -> dict[str, tuple[int, int, int]]:
    files = [path for path in home.rglob("*") if path.is_file()]
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_atime_ns)
        for path in files
    }


def test_no_text_of_sessions_is_stored_or_logged(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before = _state_of(home)
    world = World(home, Agents())
    world.ingest()
    seen = world.shown(home / "work")
    world.ledger.close()
    stored = b"".join(path.read_bytes() for path in (home / "state").iterdir())
    assert len(seen) == 3
    assert sum(world.skipped.values()) > 0
    for kept in (repr(seen), repr(world.calls), caplog.text, stored.decode("latin-1")):
        assert SECRET not in kept
    shutil.rmtree(home / "state")
    assert _state_of(home) == before
