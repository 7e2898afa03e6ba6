"""Tests that calls in agents' files are recorded once, that each byte is read once, and that no
text is stored.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.agents import claude, codex
from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.truth import Tokens
from benchmarks.transcripts import recorded
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import CallFinished
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
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams
from sidecar.messages.vendor_usage import Usage
from sidecar.workspace.spending import Spending
from sidecar.workspace.state_folder import State


class World:
    """A user's home folder with two agents' sessions, a root folder and a ledger."""

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

    @property
    def sources(self) -> Sources:
        """Return the sources for the agents that have files."""
        found = Sources.of(Agents(), str(self.root))
        assert found is not None
        return found

    def read(self, *, mine: bool = False, stop: threading.Event | None = None) -> IngestResult:
        control = IngestControl(stop or threading.Event())
        return read_all(self.book, self.sources, mine=mine, control=control)

    def recorded(self) -> dict[str, tuple[str, Tokens]]:
        return recorded(self.book.ledger)

    def truth(self) -> dict[str, tuple[str, Tokens]]:
        return self.claude.truth.calls | self.codex.truth.calls

    def spending(self, root: Path) -> Spending:
        return Spending(self.state, Settings(), root.as_uri(), "gpt-5", root)

    def calls(self, root: Path) -> int:
        found = self.spending(root).detail(CostDetailParams(), lambda: False)
        return found.totals.calls

    def stores(self) -> list[str]:
        """Return the paths of the stores in the index."""
        with self.book.ledger.reader() as connection:
            return [path for (path,) in connection.execute("SELECT path FROM store")]

    def size(self) -> int:
        files = [path for path in self.home.rglob("*.jsonl") if path.name != "journal.jsonl"]
        return sum(path.stat().st_size for path in files)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.book.close()
    made.state.close()


def test_each_call_is_recorded_once_and_each_byte_read_once(world: World) -> None:
    claude.everyday(world.claude, world.root)
    codex.everyday(world.codex, world.root)
    codex.everyday(world.codex, world.other)
    result = world.read()
    assert world.recorded() == world.truth()
    assert (result.calls, result.refused, result.is_complete) == (len(world.truth()), 0, True)
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


def test_workspace_is_read_before_the_rest(world: World) -> None:
    claude.everyday(world.claude, world.root)
    mine = set(world.claude.truth.calls)
    claude.everyday(world.claude, world.other)
    world.read(mine=True)
    assert mine <= set(world.recorded())
    world.read()
    assert world.recorded() == world.truth()


def test_only_new_bytes_of_a_growing_file_are_read(world: World) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    for _ in range(3):
        before = session.path.stat().st_size
        session.user()
        session.reply()
        result = world.read(mine=True)
        assert result.bytes_read == session.path.stat().st_size - before
        assert world.recorded() == world.truth()
    assert world.read(mine=True) == IngestResult()


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
    stop = threading.Event()
    stop.set()
    readings = [world.read(stop=stop)]
    assert not readings[0].is_complete
    assert 0 < len(world.recorded()) < len(world.truth())
    while not readings[-1].is_complete:
        readings.append(world.read(stop=stop))
        assert len(readings) < 20
    assert world.recorded() == world.truth()
    assert sum(reading.bytes_read for reading in readings) == world.size()


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
    assert world.stores() == [str(session.path)]


def test_call_also_reported_by_a_plugin_counts_once(world: World) -> None:
    session = world.claude.session(world.root)
    session.user()
    session.reply()
    ((name, (_, tokens)),) = world.claude.truth.calls.items()
    usage = claude.usage(tokens)
    mine = CostRecordParams(model=session.model, usage=usage, request_id=name)
    assert not world.book.record(mine).duplicate
    assert world.read().calls == 0
    assert world.book.record(mine).duplicate
    assert len(world.recorded()) == 1


def test_only_one_process_reads_at_a_time(world: World) -> None:
    codex.everyday(world.codex, world.root)
    world.state.folder.mkdir(parents=True, exist_ok=True)
    code = (
        "import sqlite3, sys; made = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "made.execute('BEGIN EXCLUSIVE'); print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(world.state.folder / LOCK_NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = world.read()
        assert not result.is_complete
        assert result.unread is not None
        assert result._replace(unread=None) == IngestResult(is_complete=False)
        process.kill()
    assert world.read().calls == len(world.truth())


def test_calls_below_links_and_worktrees_belong_to_the_workspace(world: World) -> None:
    below, linked, tree = world.root / "pkg", world.home / "link", world.home / "tree"
    below.mkdir()
    linked.symlink_to(world.root)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(world.root)]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"],
                    ["worktree", "add", "-q", str(tree)]):  # fmt: skip
        subprocess.run([*git, *command], check=True, capture_output=True)
    for folder in (world.root, below, linked, tree, world.other):
        session = world.claude.session(folder)
        session.user()
        session.reply()
    world.read()
    assert [world.calls(root) for root in (world.root, tree, below, world.other)] == [4, 4, 1, 1]
    assert world.calls(linked) == 4


def test_no_text_is_stored(world: World) -> None:
    for folder in (world.root, world.other):
        claude.everyday(world.claude, folder)
        codex.everyday(world.codex, folder)
    world.read()
    kept = b"".join(path.read_bytes() for path in world.state.folder.rglob("*") if path.is_file())
    assert b"msg_01" in kept
    for secret in ("tokenizer reads a line", "def fold(state", "999999", "“counts”"):
        assert secret.encode() not in kept


def test_stores_with_an_outdated_state_are_read_again(world: World) -> None:
    codex.everyday(world.codex, world.root)
    world.read()
    with sqlite3.connect(world.book.ledger.path) as connection:
        connection.execute("UPDATE store SET size = 0, state = ?", (b"of another version",))
    again = world.read()
    assert (again.calls, again.bytes_read) == (0, world.size())
    assert world.recorded() == world.truth()


def test_calls_of_a_deleted_file_are_kept(world: World) -> None:
    session = claude.everyday(world.claude, world.root)
    world.read()
    os.unlink(session.path)
    world.read()
    assert world.recorded() == world.truth()
    assert str(session.path) not in world.stores()


def _call(agent: str, provider: str, cost: str | None, request: str) -> CallFinished:
    return CallFinished(
        at=datetime.now(UTC),
        session=agent,
        model="gpt-4o",
        provider=provider,
        usage=Usage(input_tokens=1_000_000, output_tokens=0, prompt_tokens=1_000_000),
        request=request,
        cost_usd=None if cost is None else Decimal(cost),
    )


def test_credits_are_the_reported_cost_and_the_agents_cost_is_kept(world: World) -> None:
    calls = [
        _call("copilot-chat", "github-copilot", "0.07", "a"),
        _call("copilot-cli", "github-copilot", None, "b"),
        _call("pi", "openai", "3.00", "c"),
        _call("codex", "openai", None, "d"),
    ]
    world.book.ledger.record_many(make_ledger_event(call, call.session) for call in calls)
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


def make_worktree(world: World, tree: Path, *options: str) -> None:
    git(world.root, "init", "-q")
    git(world.root, "commit", "-q", "--allow-empty", "-m", "a")
    git(world.root, *options, "worktree", "add", "-q", str(tree))


def call_in(world: World, *folders: Path) -> None:
    for folder in folders:
        session = world.claude.session(folder)
        session.user()
        session.reply()
    world.read()


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
    call_in(world, world.root, tree / "pkg", tree, world.other)
    end(world.root, tree)
    assert world.calls(world.root) == 3
    assert world.calls(world.other) == 1
    call_in(world, world.root)
    assert world.calls(world.root) == 4
    found = Sources.of(Agents(), str(world.root))
    assert found is not None
    index = SessionIndex(world.book.ledger)
    assert len(index.sessions(found.readers, found.places, found.roots)) == 4


def test_worktree_seen_only_with_its_repository_is_remembered(world: World) -> None:
    """Calls that a plugin reports have no session file."""
    tree = world.home / "tree"
    make_worktree(world, tree)
    usage = {"input_tokens": 10, "output_tokens": 1}
    for folder in (world.root, tree):
        made = CostRecordParams(model="claude-opus-5", usage=usage, workspace=folder.as_uri())
        world.book.record(made)
    assert world.calls(world.root) == 2
    remove(world.root, tree)
    assert world.calls(world.root) == 2


def test_folder_that_becomes_another_repository_leaves_the_first(world: World) -> None:
    tree = world.home / "tree"
    make_worktree(world, tree)
    call_in(world, world.root, tree)
    remove(world.root, tree)
    tree.mkdir()
    git(tree, "init", "-q")
    call_in(world, tree)
    assert [world.calls(root) for root in (world.root, tree)] == [1, 2]


def test_worktrees_with_relative_paths_belong_to_the_repository(world: World) -> None:
    tree = world.home / "tree"
    make_worktree(world, tree)
    private = world.root / ".git" / "worktrees" / "tree"
    # git 2.48 and later write this with `worktree.useRelativePaths`
    (private / "gitdir").write_text(os.path.relpath(tree / ".git", private) + "\n")
    (tree / ".git").write_text(f"gitdir: {os.path.relpath(private, tree)}\n")
    call_in(world, world.root, tree)
    assert [world.calls(root) for root in (world.root, tree)] == [2, 2]
