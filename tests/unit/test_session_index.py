"""Tests that the session index stores each agent session and each call only once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents import claude, codex
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.transcripts import recorded
from sidecar.agents import session_index
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import Sources, readers_of
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead
from sidecar.agents.session_index import IngestControl, IngestResult, SessionIndex
from sidecar.config.settings import Agents
from sidecar.cost import ledger as ledger_file
from sidecar.cost.book import CostBook
from sidecar.cost.ledger import Ledger
from sidecar.messages.vendor_usage import Usage
from sidecar.workspace.agent_sessions import NOT_KEPT, SessionReader
from sidecar.workspace.services import Services
from sidecar.workspace.state_folder import State

AT = datetime(2026, 11, 20, 10, tzinfo=UTC)


class World:
    """Two agents' home folders, two project folders, and a session index."""

    def __init__(self, folder: Path) -> None:
        self.root, self.other = folder / "root", folder / "other"
        self.root.mkdir()
        self.other.mkdir()
        self.claude = ClaudeHome(folder / ".claude")
        self.codex = CodexHome(folder / ".codex")
        settings = Agents(sources=("claude-code", "codex"))
        self.places = Places.of(settings, {"HOME": str(folder)})
        self.roots = Roots.of([self.root])
        self.readers = readers_of(settings)
        self.book = CostBook(folder / "state")
        self.ledger = self.book.ledger
        self.index = SessionIndex(self.ledger)

    def stores(self) -> list[Store]:
        return [store for reader in self.readers for store in reader.find(self.places)]

    def unread(self) -> list[Store]:
        return self.index.unread(self.stores())

    def read(self, control: IngestControl | None = None) -> IngestResult:
        return self.index.read(self.readers, self.unread(), control)

    def sessions(self) -> dict[str, StoredSession]:
        found = self.index.sessions(self.readers, self.places, self.roots)
        return {one.id: one for one in found}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def test_each_byte_is_read_once_and_each_call_counts_once(world: World) -> None:
    claude.everyday(world.claude, world.root)
    codex.everyday(world.codex, world.root)
    size = sum(store.size for store in world.stores())
    result = world.read()
    truth = world.claude.truth.calls | world.codex.truth.calls
    assert recorded(world.ledger) == truth
    assert (result.calls, result.bytes_read, result.is_complete) == (len(truth), size, True)
    assert world.unread() == []
    assert world.read() == IngestResult()


def test_only_sessions_in_the_roots_are_listed_with_their_size(world: World) -> None:
    mine = claude.everyday(world.claude, world.root)
    claude.everyday(world.claude, world.other)
    world.read()
    truth = world.claude.truth.context
    sizes = {name: one.tokens for name, one in world.sessions().items()}
    assert mine.id in sizes
    assert sizes == {name: truth[name] for name in sizes}
    assert len(sizes) < len(truth)


def test_an_old_session_is_built_only_if_it_is_its_agents_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the longer the history is, the longer it would take to read a new line."""
    built: list[str] = []
    merge = session_index._merge_rows

    def merge_and_note(rows: Any) -> StoredSession:
        session = merge(rows)
        built.append(session.id)
        return session

    monkeypatch.setattr(session_index, "_merge_rows", merge_and_note)
    old = [claude.everyday(world.claude, world.root) for _ in range(3)]
    for session in old:
        os.utime(session.path, (0, 0))
    lone = codex.everyday(world.codex, world.root)
    os.utime(lone.path, (0, 0))
    recent = claude.everyday(world.claude, world.root)
    world.read()
    shown = world.index.sessions(world.readers, world.places, world.roots, since_ms=1)
    assert {recent.id, lone.id} <= {one.id for one in shown}
    assert not {one.id for one in old} & {one.id for one in shown}
    assert built == [one.id for one in shown]


def test_a_call_is_stored_with_its_agents_own_cost() -> None:
    call = CallFinished(
        at=AT,
        session="a",
        model="private-model",
        provider="fake",
        usage=Usage(input_tokens=10, output_tokens=2, prompt_tokens=10),
        request="1",
        agent_cost_usd=Decimal("0.25"),
    )
    event = session_index.make_ledger_event(call, "pi")
    assert (event.reported_cost, event.agent_cost) == (None, Decimal("0.25"))


def test_the_newest_stores_are_read_first(world: World) -> None:
    sessions = [claude.everyday(world.claude, world.root) for _ in range(3)]
    thread = codex.everyday(world.codex, world.root)
    paths = [*(session.path for session in sessions), thread.path]
    for path, age in zip(paths, (3, 1, 4, 2), strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    stores = [store for store in world.stores() if store.live]
    unread = world.index.unread(stores)
    assert [store.mtime_ns // 10**9 for store in unread] == [10**9 - age for age in (1, 2, 3, 4)]
    missing = world.index.find_unread(stores)
    assert missing is not None
    assert missing.before == datetime.fromtimestamp(10**9 - 1, UTC)
    world.index.read(world.readers, unread[:2])
    missing = world.index.find_unread(stores)
    assert missing is not None
    assert missing.before == datetime.fromtimestamp(10**9 - 3, UTC)
    world.index.read(world.readers, unread)
    assert world.index.find_unread(stores) is None


@pytest.mark.parametrize("part", [slice(-4, None), slice(8), slice(1, 3)])
def test_an_unread_subagent_belongs_to_the_session_that_its_folder_names(
    world: World, part: slice
) -> None:
    session, other = (claude.everyday(world.claude, world.root) for _ in range(2))
    other.path.rename(other.path.with_name(f"{session.id[part]}.jsonl"))  # also in the path
    world.read()
    session.subagent()
    missing = world.index.find_unread(world.stores())
    assert missing is not None
    assert missing.sessions == {session.id}


def test_an_interrupted_read_resumes_where_it_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_index, "_STORES_AT_ONCE", 1)
    for _ in range(3):
        codex.everyday(world.codex, world.root)
    size = sum(store.size for store in world.stores())
    stop = threading.Event()
    stop.set()
    readings = [world.read(IngestControl(stop))]
    assert 0 < len(recorded(world.ledger)) < len(world.codex.truth.calls)
    while not readings[-1].is_complete:
        readings.append(world.read(IngestControl(stop)))
        assert len(readings) < 30
    assert recorded(world.ledger) == world.codex.truth.calls
    assert sum(reading.bytes_read for reading in readings) == size


def test_titles_are_read_from_the_agents_files_and_never_stored(
    world: World, tmp_path: Path
) -> None:
    session = claude.everyday(world.claude, world.root)
    session.write({"type": "custom-title", "customTitle": "zebra crossing"})
    world.read()
    assert world.sessions()[session.id].title == "zebra crossing"
    world.ledger.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert session.id.encode() in kept
    assert b"zebra" not in kept


def test_sessions_of_a_deleted_store_disappear_and_stay_billed(world: World) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    session.path.unlink()
    world.index.forget_missing(world.readers, world.stores())
    assert session.id not in world.sessions()
    assert recorded(world.ledger) == world.claude.truth.calls


def test_a_deleted_session_is_missing_from_the_next_list(world: World) -> None:
    """No watcher reports sessions that were deleted while no server was running."""
    deleted, kept = claude.everyday(world.claude, world.root), world.claude.session(world.root)
    kept.reply()
    elsewhere = world.claude.session(world.other)
    elsewhere.reply()
    world.read()
    deleted.path.unlink()
    reader = SessionReader(Sources(world.readers, world.places, world.roots), world.book)
    reader.read_all(None)
    assert [one.id for one in reader.sessions(None)] == [kept.id]
    others = world.index.sessions(world.readers, world.places, Roots.of([world.other]))
    assert [one.id for one in others] == [elsewhere.id]
    assert recorded(world.ledger) == world.claude.truth.calls


def test_a_list_takes_the_same_number_of_statements_for_any_number_of_folders(
    world: World,
) -> None:
    for number in range(3):
        folder = world.root / str(number)
        folder.mkdir()
        world.claude.session(folder).reply()
        world.read()
        statements: list[str] = []
        with world.ledger.reader() as connection:
            connection.set_trace_callback(statements.append)
        assert len(world.sessions()) == number + 1  # the same connection is used again
        assert len([one for one in statements if "agent_session" in one]) == 1


def test_a_search_reads_no_state_of_a_reader(world: World) -> None:
    """A reader's states are large, so they are loaded only for stores that have changed."""
    for _ in range(session_index._STORES_AT_ONCE + 1):
        world.claude.session(world.root).reply()
    world.read()
    statements: list[str] = []
    with world.ledger.reader() as connection:
        connection.set_trace_callback(statements.append)
    assert world.unread() == []
    assert [one for one in statements if "FROM store" in one]
    assert not [one for one in statements if "state" in one]


def test_a_slower_read_does_not_overwrite_a_newer_one(world: World) -> None:
    session = world.claude.session(world.root)
    session.reply()
    world.read()
    session.reply()
    late = SlowReader(world)
    session_before = world.sessions()[session.id].tokens
    world.index.read([late], world.unread())
    assert session_before != world.claude.truth.context[session.id]
    assert world.sessions()[session.id].tokens == world.claude.truth.context[session.id]
    assert recorded(world.ledger) == world.claude.truth.calls
    assert world.unread() == []


class SlowReader:
    """A reader of Claude Code's files. While it reads, another process stores a newer version."""

    def __init__(self, world: World) -> None:
        (self._reader,) = (reader for reader in world.readers if reader.agent == "claude-code")
        self._world = world
        self.agent = self._reader.agent
        self.folders, self.find = self._reader.folders, self._reader.find
        self.store_at = self._reader.store_at
        self.title, self.window = self._reader.title, self._reader.window
        self.limits = self._reader.limits
        self.measure = self._reader.measure
        self.compacts_at, self.own_full = self._reader.compacts_at, self._reader.own_full
        self.made_call = self._reader.made_call

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        found = self._reader.read(store, state)
        other = SessionIndex(Ledger(self._world.ledger.path))
        other.read([self._reader], self._world.stores())
        return found


def test_an_index_with_another_schema_is_rebuilt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    newer = session_index._VERSION + 1
    monkeypatch.setattr(session_index, "_VERSION", newer)
    monkeypatch.setattr(
        session_index,
        "_TABLES",
        (*session_index._TABLES[:-1], f"INSERT INTO index_form VALUES ({newer})"),  # noqa: S608
    )
    assert world.sessions() == {}
    world.read()
    assert session.id in world.sessions()
    assert recorded(world.ledger) == world.claude.truth.calls


def test_a_session_stays_in_the_workspace_where_it_started(world: World) -> None:
    session = world.claude.session(world.root)
    session.reply()
    world.read()
    session.cwd = str(world.other)
    session.reply()
    world.read()
    with world.ledger.reader() as connection:
        folders = connection.execute("SELECT first_folder, folder FROM agent_session").fetchall()
    assert folders == [(str(world.root), str(world.other))]


def test_a_store_that_fails_to_read_is_read_again_after_it_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    reader, read = type(world.readers[0]), type(world.readers[0]).read
    attempts: list[str] = []

    def fail(_self: object, store: Store, _state: bytes = b"") -> StoreRead:
        attempts.append(store.path)
        raise RuntimeError("a defect of the reader")

    monkeypatch.setattr(reader, "read", fail)
    world.read()
    world.read()
    assert attempts.count(str(session.path)) == 1
    monkeypatch.setattr(reader, "read", read)
    session.reply()
    world.read()
    assert session.id in world.sessions()
    assert session.id in {name for name, _ in recorded(world.ledger).values()}


def test_a_failed_read_keeps_the_read_position(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    before = session.path.stat().st_size
    session.reply()

    def fail(_self: object, _store: Store, _state: bytes = b"") -> StoreRead:
        raise RuntimeError("a defect of the reader")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.readers[0]), "read", fail)
        world.read()
    session.reply()
    assert world.read().bytes_read == session.path.stat().st_size - before


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def corrupt(state: Path) -> Iterator[None]:
    state.mkdir()
    (state / "ledger.db").write_bytes(b"no database, but long enough to be looked at" * 50)
    yield


@contextlib.contextmanager
def full(state: Path) -> Iterator[None]:
    resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")
    state.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    state.mkdir()
    command = [sys.executable, "-c", HOLD, str(state / "ledger.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate(b"")


@contextlib.contextmanager
def unwritable(state: Path) -> Iterator[None]:
    state.write_text("a file where the folder should be")
    yield


@pytest.mark.parametrize("fault", [corrupt, full, locked, unwritable])
async def test_sessions_are_listed_with_a_note_if_the_ledger_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Path], contextlib.AbstractContextManager[None]],
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.2)
    home = ClaudeHome(tmp_path / ".claude")
    home.clock.now = datetime.now(UTC) - timedelta(hours=1)
    session = home.session(root)
    session.reply()
    services = Services(state=State(tmp_path / "no" / "state"))
    services.state.folder.parent.mkdir()
    workspace = services.roots.add(root.as_uri())
    workspace.path = root
    services.configured.set()
    with fault(services.state.folder):
        await services.agents.find_sessions(workspace)
        (row,) = services.sessions(workspace).rows()
        assert (row.id, row.tokens) == (session.id, home.truth.context[session.id])
        assert row.note is not None
        assert row.note.endswith(NOT_KEPT)
        session.reply()
        await services.agents.read_changed(workspace, [str(session.path)])
        (row,) = services.sessions(workspace).rows()
        assert row.tokens == home.truth.context[session.id]
    await services.aclose()
    services.workers.close()
