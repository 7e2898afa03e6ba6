"""Tests that hostile files do not block readers or hide the sessions in other files, and that no
text is stored or logged.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
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
from sidecar.agents import compressed, reader_registry
from sidecar.agents.databases import read_only
from sidecar.agents.file_reading import chunks, open_quietly
from sidecar.agents.session_events import StoredSession
from sidecar.agents.stores import database_store, walk
from sidecar.config.settings import Agents
from sidecar.messages.vendor_usage import LONGEST_ID, MOST_TOKENS
from tests.unit.agents_world import Editor, World

STARTED = b"# aider chat started at 2026-01-01 00:00:00\n"
HISTORIES = {
    "a number with two points": STARTED + b"> Tokens: 1.2.3k sent, 4 received.\n",
    "an invalid date": b"# aider chat started at 2026-99-99 99:99:99\n"
    b"> Tokens: 1.2k sent, 4 received.\n",
    "a cost with two points": STARTED + b"> Tokens: 1k sent, 4 received. Cost: $1.2.3 message\n",
    "a number of 5,000 digits": STARTED + b"> Tokens: " + b"9" * 5000 + b" sent, 4 received.\n",
    "a model of 100,000 letters": STARTED
    + b"> Model: "
    + b"x" * 100_000
    + b"\n> Tokens: 1k sent, 4 received.\n",
}
DEEP = b'{"type":"user","message":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
LINES = {
    "deep": DEEP,
    "invalid UTF-8": b'{"type":"user","sessionId":"\xff"}\n',
    "NUL bytes": b"\x00" * 1_000 + b"\n",
    "half a character": b'{"type":"assistant","sessionId":"\\ud800"}\n',
}


class Machine:
    """A home folder with a Claude Code session for the project folder `work`."""

    def __init__(self, home: Path) -> None:
        self.root = home / "work"
        self.root.mkdir()
        self.claude = claude.ClaudeHome(home / ".claude")
        self.session = self.claude.session(self.root)
        self.session.reply()
        self.world = World(home, Agents())

    def look(self) -> list[StoredSession]:
        return self.world.shown(self.root)

    def shown(self) -> list[str]:
        return [one.id for one in self.look() if one.source == "claude-code"]

    def calls(self) -> int:
        """Return the number of Claude Code's calls in the ledger."""
        self.world.ingest()
        ours = {name for name, agent in self.world.agent_of.items() if agent == "claude-code"}
        return len(ours & self.world.recorded().keys())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("name", HISTORIES)
def test_hostile_history_in_a_repository_hides_no_sessions(machine: Machine, name: str) -> None:
    (machine.root / ".aider.chat.history.md").write_bytes(HISTORIES[name])
    assert (machine.shown(), machine.calls()) == ([machine.session.id], 1)
    for session in machine.look():
        assert len(session.model or "") <= LONGEST_ID
        assert (session.tokens or 0) <= MOST_TOKENS
    assert list(reader_registry.survey(machine.world.readers, machine.world.places))


@pytest.mark.parametrize("name", LINES)
def test_invalid_line_is_skipped(machine: Machine, name: str) -> None:
    with machine.session.path.open("ab") as file:
        file.write(LINES[name])
    machine.session.reply()
    assert (machine.shown(), machine.calls()) == ([machine.session.id], 2)


@pytest.mark.parametrize("folder", ["/a\0b", "/a\ud800b", "/" + "a" * 10_000])
def test_impossible_folder_does_not_affect_other_calls(machine: Machine, folder: str) -> None:
    strange = machine.claude.session(machine.root)
    strange.reply()
    lines = strange.path.read_text().splitlines()
    changed = (json.dumps({**json.loads(line), "cwd": folder}) + "\n" for line in lines)
    strange.path.write_text("".join(changed))
    machine.session.reply()
    assert machine.calls() >= 2
    assert machine.session.id in machine.shown()


def test_impossible_path_of_a_repository_hides_no_sessions(machine: Machine) -> None:
    (machine.root / ".git").write_bytes(b"gitdir: /a\0b\n")
    assert machine.shown() == [machine.session.id]


def test_damaged_store_is_read_after_its_repair(machine: Machine) -> None:
    history = machine.root / ".aider.chat.history.md"
    history.write_bytes(HISTORIES["a number with two points"])
    assert {session.source for session in machine.look()} == {"claude-code"}
    history.write_bytes(STARTED + b"> Tokens: 1k sent, 4 received.\n")
    assert {session.source for session in machine.look()} == {"claude-code", "aider"}


@pytest.mark.parametrize("beside", ["", "-journal", "-wal"])
def test_fifo_instead_of_a_database_does_not_block(tmp_path: Path, beside: str) -> None:
    path = tmp_path / "crush.db"
    if beside:
        sqlite3.connect(path).close()
    os.mkfifo(f"{path}{beside}")
    with pytest.raises(OSError, match="is not a regular file"), read_only(str(path)):
        pass
    assert (database_store("crush", path) is None) == (beside == "")


def test_fifo_is_not_a_store(machine: Machine) -> None:
    os.mkfifo(machine.root / ".aider.chat.history.md")
    assert machine.shown() == [machine.session.id]


async def test_file_name_that_is_not_utf8_does_not_stop_updates(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    beside = str(machine.session.path.parent / os.fsdecode(b"caf\xe9.jsonl"))
    shutil.copyfile(machine.session.path, beside)
    editor = Editor(machine.root, tmp_path / "state")

    def shown() -> list[tuple[str, int | None]]:
        return [(row.id, row.tokens) for row in editor.rows()]

    def truth() -> list[tuple[str, int | None]]:
        return [(machine.session.id, machine.claude.truth.context[machine.session.id])]

    await editor.look()
    assert shown() == truth()
    machine.session.reply()
    await editor.read_changed(beside, machine.session.path)
    assert shown() == truth()
    os.unlink(beside)
    machine.session.reply()
    await editor.read_changed(beside, machine.session.path)
    assert shown() == truth()
    await editor.close()


def crush(machine: Machine) -> databases.CrushStore:
    listed = machine.world.places.home / ".local/share/crush/projects.json"
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps({"projects": [{"path": str(machine.root)}]}))
    return databases.CrushStore(machine.root / ".crush" / "crush.db")


ENDLESS = """
DROP TABLE sessions;
CREATE VIEW sessions AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
  SELECT x AS id, x AS updated_at, x AS cost FROM c;
"""


def test_endless_view_is_not_queried(machine: Machine) -> None:
    store = crush(machine)
    store.db.executescript(ENDLESS)
    store.db.close()
    assert (machine.shown(), machine.calls()) == ([machine.session.id], 1)
    with (
        read_only(str(store.path)) as connection,
        pytest.raises(sqlite3.DatabaseError, match="not authorized"),
    ):
        connection.execute("SELECT id FROM sessions")


def test_gigabyte_value_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "big.db"
    made = sqlite3.connect(path)
    made.execute("CREATE TABLE t (a, b GENERATED ALWAYS AS (zeroblob(1000000000)))")
    made.execute("INSERT INTO t (a) VALUES (1)")
    made.commit()
    made.close()
    with pytest.raises(OSError, match="cannot read"), read_only(str(path)) as connection:
        connection.execute("SELECT b FROM t").fetchall()


VALUES: tuple[Any, ...] = ("planted", b"\xff\x00", -1, 1e308, 9e999, 10**18, None, "\x1b[31m" * 999)
COLUMNS = (
    "id", "title", "prompt_tokens", "completion_tokens", "cost", "created_at", "updated_at",
    "parent_session_id", "summary_message_id",
)  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(column, value, marks=() if at % len(VALUES) == number else pytest.mark.slow)
        for at, column in enumerate(COLUMNS)
        for number, value in enumerate(VALUES)
    ],
)
def test_value_of_any_type_in_a_column_is_tolerated(
    machine: Machine, column: str, value: Any
) -> None:
    store = crush(machine)
    store.session()
    store.db.execute("PRAGMA ignore_check_constraints = ON")
    copied = "CREATE TABLE loose AS SELECT * FROM sessions"
    for statement in (copied, "DROP TABLE sessions", "ALTER TABLE loose RENAME TO sessions"):
        store.db.execute(statement)
    store.db.execute(f"UPDATE sessions SET {column} = ?", (value,))  # noqa: S608
    store.db.close()
    assert (machine.shown(), machine.calls()) == ([machine.session.id], 1)
    for session in machine.look():
        names = (session.id, session.model, session.title, session.parent)
        assert all(name is None or isinstance(name, str) for name in names)
        assert all(len(name or "") <= LONGEST_ID for name in names)
        assert 0 <= (session.tokens or 0) <= MOST_TOKENS


@pytest.mark.parametrize("cost", [9e999, 1e308])
def test_impossible_cost_does_not_affect_other_calls(machine: Machine, cost: float) -> None:
    """A call with an impossible number is skipped. Other calls in the same step are recorded."""
    store = crush(machine)
    store.session()
    store.db.execute("UPDATE sessions SET cost = ?", (cost,))
    store.db.close()
    assert machine.calls() == 1
    assert machine.world.refused == 1


def test_folders_nested_beyond_the_recursion_limit_are_searched(tmp_path: Path) -> None:
    folders = [tmp_path / "sessions"]
    folders[0].mkdir()
    for _ in range(1_200):
        folders.append(folders[-1] / "d")
        os.mkdir(folders[-1])
    (folders[-1] / "x.jsonl").write_text("{}\n")
    found = list(walk(folders[0]))
    assert found == [str(folders[-1] / "x.jsonl")]
    os.unlink(found[0])
    for folder in reversed(folders[1:]):
        os.rmdir(folder)


def test_zstd_bomb_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decompression stops at the first chunk beyond the limit."""
    monkeypatch.setattr(compressed, "MAX_BYTES", 8 << 20)
    path = tmp_path / "x.jsonl.zst"
    packer = compressed.zstd.ZstdCompressor()
    block = b"{}\n" + b"\0" * (1 << 20)
    packed = b"".join(packer.compress(block) for _ in range(64)) + packer.flush()
    path.write_bytes(packed)
    assert len(packed) < 100_000
    with open_quietly(str(path)) as file, pytest.raises(OSError, match="too large"):
        list(chunks(file))


def test_zstd_frame_with_a_huge_window_is_rejected(tmp_path: Path) -> None:
    zstd = compressed.zstd
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 30}
    packed = zstd.ZstdCompressor(options=options)
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(packed.compress(b"{}\n" * 1_000) + packed.flush())
    with open_quietly(str(path)) as file, pytest.raises(OSError, match="corrupt"):
        file.read(10)


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
    zed.pack = compressed.zstd.compress
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
