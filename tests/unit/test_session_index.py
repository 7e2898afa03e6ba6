"""Tests that the session index stores each agent session and each call only once, that each byte is
read once, and that no text is stored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.agents import claude, codex
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome, Rollout, everyday
from benchmarks.agents.truth import Tokens
from benchmarks.transcripts import recorded
from sidecar.agents import session_index
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import CallFinished, Store, StoredSession, StoreRead, StoreReader
from sidecar.agents.session_index import (
    LOCK_NAME,
    IngestControl,
    IngestResult,
    SessionIndex,
    find_unread,
    make_ledger_event,
    read_all,
)
from sidecar.config.settings import Agents, Settings
from sidecar.cost import ledger as ledger_file
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets
from sidecar.workspace.agent_sessions import NOT_KEPT, SessionReader
from sidecar.workspace.spending import Spending
from sidecar.workspace.state_folder import State
from tests.unit.agents_world import Editor
from tests.unit.cost_calls import held


class World:
    """A user's home folder with two agents' sessions, two project folders, and a session index."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.root = self.home / "work" / "my proj.ect"
        self.other = self.home / "work" / "other"
        for made in (self.root, self.other):
            made.mkdir(parents=True)
        self.claude, self.codex = ClaudeHome(self.home / ".claude"), CodexHome(self.home / ".codex")
        for clock in (self.claude.clock, self.codex.clock):
            clock.now = datetime.now(UTC) - timedelta(hours=2)
        self.state = State(folder / "state")
        self.book = CostBook(folder / "state")
        self.ledger = self.book.ledger
        self.index = SessionIndex(self.ledger)

    @property
    def sources(self) -> Sources:
        """Return the sources for the agents that have files."""
        found = Sources.of(Agents(), str(self.root))
        assert found is not None
        return found

    def stores(self) -> list[Store]:
        return self.sources.stores(mine=False)

    def unread(self) -> list[Store]:
        return self.index.unread(self.stores())

    def read(self, *, mine: bool = False, stop: threading.Event | None = None) -> IngestResult:
        control = IngestControl(stop or threading.Event())
        return read_all(self.book, self.sources, mine=mine, control=control)

    def sessions(self, root: Path | None = None, **options: Any) -> dict[str, StoredSession]:
        """Return the sessions in a root folder by id."""
        sources, roots = self.sources, Roots.of([root or self.root])
        found = self.index.sessions(msgspec.structs.replace(sources, roots=roots), **options)
        return {one.id: one for one in found}

    def recorded(self) -> dict[str, tuple[str, Tokens]]:
        return recorded(self.ledger)

    def truth(self) -> dict[str, tuple[str, Tokens]]:
        return self.claude.truth.calls | self.codex.truth.calls

    def spending(self, root: Path) -> Spending:
        return Spending(self.state, Settings(), root.as_uri(), "gpt-5", root)

    def calls(self, *roots: Path) -> list[int]:
        """Return the number of calls in each root folder."""
        found = [self.spending(root).detail(CostDetailParams(), lambda: False) for root in roots]
        return [one.totals.calls for one in found]

    def branches(self, root: Path | None = None, **scope: Any) -> dict[str | None, int]:
        """Return the number of calls on each branch, in a root folder or in all folders."""
        params = CostDetailParams(by=("branch",), **scope)
        if root is not None:
            report = self.spending(root).detail(params, lambda: False)
        else:
            report = self.book.detail(params)
        return {row.branch or None: row.calls for row in report.rows}

    def codex_call_in(self, folder: Path, branch: str | None = None) -> None:
        """Write and read a session that makes a call now and started on a branch."""
        self.codex.clock.now = datetime.now(UTC)
        thread = Rollout(self.codex, self.codex.thread_id(), str(folder))
        thread.meta(**({"git": {"branch": branch}} if branch else {}))
        thread.begin_turn()
        thread.call()
        self.read()

    def call_in(self, *folders: Path) -> None:
        """Write and read a session with one call in each of these folders."""
        for folder in folders:
            session = self.claude.session(folder)
            session.user()
            session.reply()
        self.read()

    def statements(self) -> list[str]:
        """Return a list to which this thread's later SQL statements are added."""
        found: list[str] = []
        with self.ledger.reader() as connection:  # the same connection is used again
            connection.set_trace_callback(found.append)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.book.close()
    made.state.close()


def test_each_byte_is_read_once_and_each_call_counts_once(world: World) -> None:
    claude.everyday(world.claude, world.root)
    codex.everyday(world.codex, world.root)
    codex.everyday(world.codex, world.other)
    size = sum(store.size for store in world.stores())
    result = world.read()
    assert world.recorded() == world.truth()
    expected = IngestResult(calls=len(world.truth()), bytes_read=size, has_new_costs=True)
    assert result == expected
    assert world.unread() == []
    assert world.read() == IngestResult()


def test_checking_for_unread_calls_opens_no_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    sources, opened, open_ = world.sources, list[str](), os.open

    def watched(path: str, flags: int, *mode: int) -> int:
        opened.append(str(path))
        return open_(path, flags, *mode)

    monkeypatch.setattr(os, "open", watched)
    assert find_unread(world.book, sources) is not None
    assert str(session.path) not in opened
    read_all(world.book, sources, mine=True)
    assert str(session.path) in opened
    assert find_unread(world.book, sources) is None


def test_unreported_changes_are_found_by_listing_stores(world: World) -> None:
    sessions = [claude.everyday(world.claude, world.root) for _ in range(3)]
    codex.everyday(world.codex, world.root)
    assert world.read(mine=True).calls == len(world.truth())
    assert world.read(mine=True) == IngestResult()
    sessions[1].reply()
    assert world.read(mine=True).calls == 1
    assert world.read(mine=True) == IngestResult()
    world.book.ledger.close()
    for path in world.state.folder.glob("ledger.db*"):
        path.unlink()
    assert world.read(mine=True).calls == len(world.truth())


def test_stopped_reading_continues_where_it_stopped(world: World) -> None:
    for _ in range(4):
        codex.everyday(world.codex, world.root)
    size = sum(store.size for store in world.stores())
    stop = threading.Event()
    stop.set()
    readings = [world.read(stop=stop)]
    assert not readings[0].is_complete
    assert 0 < len(world.recorded()) < len(world.truth())
    while not readings[-1].is_complete:
        readings.append(world.read(stop=stop))
        assert len(readings) < 20
    assert world.recorded() == world.truth()
    assert sum(reading.bytes_read for reading in readings) == size


@pytest.mark.parametrize(
    ("tokens", "counted"),
    [
        (Tokens(10**18, 0, 0, 0, 5), Tokens(0, 0, 0, 0, 5)),
        (Tokens(3, 10**13, 0, 0, 5), Tokens(3, 0, 0, 0, 5)),
        (Tokens(3, 0, 0, 0, 2 * 10**12), Tokens(3)),
    ],
)
def test_only_impossible_numbers_are_refused(world: World, tokens: Tokens, counted: Tokens) -> None:
    session = world.claude.session(world.root)
    session.user()
    session.reply()
    body = session.message("msg_absurd", tokens)
    session.write(session.line("assistant", requestId="req_1", message=body))
    session.reply()
    world.read()
    assert world.recorded() == world.truth() | {"msg_absurd": (session.id, counted)}
    assert world.unread() == []


def test_only_one_process_reads_at_a_time(world: World) -> None:
    codex.everyday(world.codex, world.root)
    with held(world.state.folder / LOCK_NAME):
        result = world.read()
        assert not result.is_complete
        assert result.unread is not None
        assert result._replace(unread=None) == IngestResult(is_complete=False)
    assert world.read().calls == len(world.truth())


def test_a_deleted_session_is_missing_from_the_next_list(world: World) -> None:
    """No watcher reports sessions that were deleted while no server was running."""
    deleted, kept = claude.everyday(world.claude, world.root), world.claude.session(world.root)
    kept.reply()
    elsewhere = world.claude.session(world.other)
    elsewhere.reply()
    world.read()
    deleted.path.unlink()
    reader = SessionReader(world.sources, world.book)
    reader.read_all()
    assert [one.id for one in reader.sessions()] == [kept.id]
    assert list(world.sessions(world.other)) == [elsewhere.id]
    assert world.recorded() == world.claude.truth.calls


def call(agent: str, provider: str, **costs: Any) -> CallFinished:
    return CallFinished(
        at=datetime.now(UTC),
        session=agent,
        model="gpt-4o",
        provider=provider,
        buckets=Buckets(input=1_000_000),
        request_id=agent,
        **costs,
    )


def test_credits_are_the_reported_cost_and_the_agents_cost_is_kept(world: World) -> None:
    calls = [
        call("copilot-chat", "github-copilot", reported_cost=Decimal("0.07")),
        call("copilot-cli", "github-copilot"),
        call("pi", "openai", reported_cost=Decimal(3)),
        call("codex", "openai"),
    ]
    world.ledger.record_many(make_ledger_event(one, one.session) for one in calls)
    found = world.book.detail(CostDetailParams(by=("agent",)))
    rows = {str(row.agent): row for row in found.rows}
    assert (rows["copilot-chat"].cost_usd, rows["copilot-chat"].listed_cost_usd) == (0.07, None)
    assert (rows["copilot-cli"].cost_usd, rows["copilot-cli"].unpriced) == (None, True)
    ours = rows["codex"].cost_usd
    assert ours is not None
    assert (rows["pi"].cost_usd, rows["pi"].listed_cost_usd) == (3.0, ours)
    assert rows["codex"].listed_cost_usd is None
    assert "codex, pi: at API prices" in found.basis
    assert "copilot-chat, copilot-cli: AI credits as reported" in found.basis
    assert world.book.detail(CostDetailParams(workspace="file:///none")).basis == ""


def git(folder: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def make_worktree(world: World, tree: Path) -> None:
    git(world.root, "init", "-q")
    git(world.root, "commit", "-q", "--allow-empty", "-m", "a")
    git(world.root, "worktree", "add", "-q", str(tree))


def test_a_call_counts_for_the_branch_on_its_line(world: World) -> None:
    """A session that changes branches has calls on each of them, and on none while detached."""
    git(world.root, "init", "-q")  # after the calls, so that HEAD does not tell their branches
    session = world.claude.session(world.root)
    for branch in ("main", "feature", "HEAD", "main", ""):
        session.branch = branch
        session.user()
        session.reply()
    world.read()
    assert world.branches() == {"main": 3, "feature": 1, None: 1}
    scopes = [CostDetailParams(branch=name) for name in ("main", "feature", "")]
    parts = [world.book.detail(scope).totals.cost_usd for scope in scopes]
    assert sum(parts) == pytest.approx(world.book.detail(CostDetailParams()).totals.cost_usd)


def test_the_checked_out_branch_counts_until_the_next_checkout(world: World) -> None:
    """Codex records only the branch on which a session started."""
    root, nested, tree = world.root, world.root / "inner", world.home / "tree"
    git(root, "init", "-q", "-b", "main")
    git(root, "commit", "-q", "--allow-empty", "-m", "a")
    world.codex_call_in(root, "start")
    git(root, "switch", "-q", "-c", "feature")
    world.codex_call_in(root, "start")
    git(root, "branch", "-m", "renamed")
    world.codex_call_in(root)
    git(root, "worktree", "add", "-q", "-b", "other", str(tree))
    world.codex_call_in(tree)
    git(root, "switch", "-q", "--detach")
    world.codex_call_in(root, "start")
    git(root, "branch", "-D", "renamed")
    git(root, "switch", "-q", "main")
    nested.mkdir()
    git(nested, "init", "-q", "-b", "main")
    world.codex_call_in(nested)
    found = {"main": 1, "feature": 1, "renamed": 1, "other": 1, "main (inner)": 1, None: 1}
    assert world.branches(root) == world.branches(tree) == found
    assert world.branches(nested) == {"main": 1}
    assert world.branches() == {"main": 2, "feature": 1, "renamed": 1, "other": 1, None: 1}
    checked_out = [world.spending(folder).branch_cost() for folder in (root, tree, nested)]
    assert [(cost.name, cost.calls, cost.sessions) for cost in checked_out if cost] == [
        ("main", 1, 1),
        ("other", 1, 1),
        ("main", 1, 1),
    ]
    by_branch = world.spending(root).detail(CostDetailParams(by=("branch",)), lambda: False)
    for row in by_branch.rows:
        if row.branch and "(" not in row.branch:
            cost = world.spending(root).branch_cost(row.branch)
            assert cost is not None
            assert (cost.calls, cost.cost_usd) == (row.calls, row.cost_usd)
    world.codex.clock.now = datetime.now(UTC) - timedelta(hours=1)
    everyday(world.codex, root, turns=1)
    world.read()
    assert world.branches(root) == found | {None: 4}, "main was checked out later"


def test_a_branch_is_added_to_calls_that_were_recorded_without_it(world: World) -> None:
    session = world.claude.session(world.root)
    session.user()
    session.reply()
    world.read()
    with world.ledger.transaction() as connection:
        connection.execute("UPDATE session SET branch = ''")
        connection.execute("UPDATE index_form SET version = 0")
    world.ledger.close()
    assert world.branches() == {None: 1}
    world.read()
    assert world.branches() == {"main": 1}


def test_a_plugins_call_counts_for_the_checked_out_branch(world: World) -> None:
    git(world.root, "init", "-q", "-b", "topic")
    usage = {"input_tokens": 10, "output_tokens": 1}
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for fields in (
        {},
        {"branch": "given"},
        {"at": hour_ago},
        {"at": hour_ago.replace(tzinfo=None)},
    ):
        call = CostRecordParams(model="claude-opus-5", usage=usage, **fields)
        world.spending(world.root).record(call)
    assert world.branches(world.root) == {"topic": 1, "given": 1, None: 2}


def test_calls_below_links_and_worktrees_belong_to_the_workspace(world: World) -> None:
    below, linked, tree = world.root / "pkg", world.home / "link", world.home / "tree"
    below.mkdir()
    linked.symlink_to(world.root)
    make_worktree(world, tree)
    world.call_in(world.root, below, linked, tree, world.other)
    assert world.calls(world.root, tree, below, world.other, linked) == [4, 4, 1, 1, 4]


def remove(root: Path, tree: Path) -> None:
    git(root, "worktree", "remove", "--force", str(tree))


def delete_and_prune(root: Path, tree: Path) -> None:
    shutil.rmtree(tree)
    git(root, "worktree", "prune")


def move_and_remove(root: Path, tree: Path) -> None:
    git(root, "worktree", "move", str(tree), f"{tree}-moved")
    git(root, "worktree", "remove", "--force", f"{tree}-moved")


def move(root: Path, tree: Path) -> None:
    git(root, "worktree", "move", str(tree), f"{tree}-moved")


@pytest.mark.parametrize("end", [remove, delete_and_prune, move_and_remove, move])
def test_calls_of_a_former_worktree_stay_with_its_repository(
    world: World, end: Callable[[Path, Path], None]
) -> None:
    tree = world.home / "tree"
    make_worktree(world, tree)
    (tree / "pkg").mkdir()
    world.call_in(world.root, tree / "pkg", tree, world.other)
    end(world.root, tree)
    assert world.calls(world.root, world.other) == [3, 1]
    world.call_in(world.root)
    assert world.calls(world.root) == [4]
    assert len(world.sessions()) == 4


def test_worktree_seen_only_with_its_repository_is_remembered(world: World) -> None:
    """Calls that a plugin reports have no session file."""
    tree = world.home / "tree"
    make_worktree(world, tree)
    usage = {"input_tokens": 10, "output_tokens": 1}
    for folder in (world.root, tree):
        made = CostRecordParams(model="claude-opus-5", usage=usage, workspace=folder.as_uri())
        world.book.record(made)
    assert world.calls(world.root) == [2]
    remove(world.root, tree)
    assert world.calls(world.root) == [2]


def test_folder_that_becomes_another_repository_leaves_the_first(world: World) -> None:
    tree = world.home / "tree"
    make_worktree(world, tree)
    world.call_in(world.root, tree)
    remove(world.root, tree)
    tree.mkdir()
    git(tree, "init", "-q")
    world.call_in(tree)
    assert world.calls(world.root, tree) == [1, 2]


def test_worktrees_with_relative_paths_belong_to_the_repository(world: World) -> None:
    tree = world.home / "tree"
    make_worktree(world, tree)
    private = world.root / ".git" / "worktrees" / "tree"
    # git 2.48 and later write this with `worktree.useRelativePaths`
    (private / "gitdir").write_text(os.path.relpath(tree / ".git", private) + "\n")
    (tree / ".git").write_text(f"gitdir: {os.path.relpath(private, tree)}\n")
    world.call_in(world.root, tree)
    assert world.calls(world.root, tree) == [2, 2]


def test_an_old_session_is_built_only_if_it_is_its_agents_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the longer the history is, the longer it would take to read a new line."""
    built: list[str] = []
    merge = session_index._merge_rows

    def merge_and_note(*arguments: Any) -> StoredSession:
        session = merge(*arguments)
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
    shown = world.sessions(since_ms=1)
    assert {recent.id, lone.id} <= shown.keys()
    assert not {one.id for one in old} & shown.keys()
    assert built == list(shown)


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
    readers = world.sources.readers
    world.index.read(readers, unread[:2])
    missing = world.index.find_unread(stores)
    assert missing is not None
    assert missing.before == datetime.fromtimestamp(10**9 - 3, UTC)
    world.index.read(readers, unread)
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


def test_a_list_takes_the_same_number_of_statements_for_any_number_of_folders(world: World) -> None:
    for number in range(3):
        folder = world.root / str(number)
        folder.mkdir()
        world.claude.session(folder).reply()
        world.read()
        statements = world.statements()
        assert len(world.sessions()) == number + 1
        listing = [one for one in statements if "agent_session" in one]
        assert len(listing) == 2, "one for the sessions, and one for their sub-agents"


def test_a_search_reads_no_state_of_a_reader(world: World) -> None:
    """A reader's states are large, so they are loaded only for stores that have changed."""
    for _ in range(session_index._STORES_AT_ONCE + 1):
        world.claude.session(world.root).reply()
    world.read()
    statements = world.statements()
    assert world.unread() == []
    assert [one for one in statements if "FROM store" in one]
    assert not [one for one in statements if "state" in one]


def test_a_slower_read_does_not_overwrite_a_newer_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process reads, another one stores a newer version."""
    session = world.claude.session(world.root)
    session.reply()
    world.read()
    session.reply()
    (reader,) = world.sources.readers
    read, unread = type(reader).read, world.unread()

    def read_slowly(self: StoreReader, store: Store, state: bytes = b"") -> StoreRead:
        found = read(self, store, state)
        with monkeypatch.context() as patch:
            patch.setattr(type(reader), "read", read)
            SessionIndex(Ledger(world.ledger.path)).read([reader], unread)
        return found

    before = world.sessions()[session.id].tokens
    with monkeypatch.context() as patch:
        patch.setattr(type(reader), "read", read_slowly)
        world.index.read([reader], unread)
    assert before != world.claude.truth.context[session.id]
    assert world.sessions()[session.id].tokens == world.claude.truth.context[session.id]
    assert world.recorded() == world.claude.truth.calls
    assert world.unread() == []


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
    assert world.recorded() == world.claude.truth.calls


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


def fail(_self: object, _store: Store, _state: bytes = b"") -> StoreRead:
    raise RuntimeError("a defect of the reader")


def test_a_store_that_fails_to_read_is_read_again_after_it_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    attempts: list[str] = []

    def note_and_fail(self: object, store: Store, _state: bytes = b"") -> StoreRead:
        attempts.append(store.path)
        return fail(self, store)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.sources.readers[0]), "read", note_and_fail)
        world.read()
        world.read()
    assert attempts.count(str(session.path)) == 1
    session.reply()
    world.read()
    assert session.id in world.sessions()
    assert session.id in {name for name, _ in world.recorded().values()}


def test_a_failed_read_keeps_the_read_position_and_the_sessions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    before = session.path.stat().st_size
    session.reply()
    with monkeypatch.context() as patch:
        patch.setattr(type(world.sources.readers[0]), "read", fail)
        world.read()
    assert session.id in world.sessions()
    session.reply()
    assert world.read().bytes_read == session.path.stat().st_size - before


def unreadable(self: object, _store: Store, _state: bytes = b"") -> StoreRead:
    raise PermissionError(13, "Permission denied")


async def test_costs_are_incomplete_while_a_file_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(world.home))
    session = claude.everyday(world.claude, world.root)
    world.read()
    session.reply()
    editor = Editor(world.root, world.state.folder)
    agents, costs = editor.services.agents, editor.workspace.costs
    with monkeypatch.context() as patch:
        patch.setattr(type(world.sources.readers[0]), "read", unreadable)
        for read in (
            partial(agents.read_calls, editor.workspace, threading.Event()),
            partial(agents.find_all_sessions, editor.workspace),
        ):
            await read()
            assert not costs.read
            assert costs.unread is not None
            assert session.id in costs.unread.sessions
            assert agents.known(editor.workspace).is_tried
    await agents.read_calls(editor.workspace, threading.Event())
    assert (costs.read, costs.unread) == (True, None)
    await editor.close()


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


def locked(state: Path) -> contextlib.AbstractContextManager[None]:
    return held(state / "ledger.db")


@contextlib.contextmanager
def unwritable(state: Path) -> Iterator[None]:
    state.write_text("a file where the folder should be")
    yield


@pytest.mark.parametrize("fault", [corrupt, full, locked, unwritable])
async def test_sessions_are_listed_with_a_note_if_the_ledger_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
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
    editor = Editor(root, tmp_path / "no" / "state")
    (tmp_path / "no").mkdir()
    with fault(tmp_path / "no" / "state"):
        await editor.look()
        (row,) = editor.rows()
        assert (row.id, row.tokens) == (session.id, home.truth.context[session.id])
        assert row.note is not None
        assert row.note.endswith(NOT_KEPT)
        session.reply()
        await editor.read_changed(session.path)
        (row,) = editor.rows()
        assert row.tokens == home.truth.context[session.id]
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len([one for one in warnings if "sessions cannot be saved" in one]) == 1
    await editor.close()
