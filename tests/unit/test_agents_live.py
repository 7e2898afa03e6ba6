"""Tests how sessions of several agents are found, updated, watched and configured."""

from __future__ import annotations

import json
import math
import os
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.claude import everyday as claude_everyday
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.codex import everyday as codex_thread
from benchmarks.agents.databases import CrushStore
from benchmarks.agents.gemini import GeminiHome
from benchmarks.agents.gemini import everyday as gemini_everyday
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import paths_to_watch, readers_of
from sidecar.agents.session_events import StoredSession
from sidecar.config.settings import Agents
from sidecar.known_agents import all_agents
from sidecar.project.file_watcher import Changes, FileWatcher
from sidecar.workspace import agent_sessions
from sidecar.workspace.services import Services
from sidecar.workspace.state_folder import State
from tests.cases import read_rows
from tests.unit.agents_world import World, forks_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.of(Agents(), {"HOME": str(tmp_path)})


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeHome:
    return ClaudeHome(tmp_path / ".claude")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the path of each opened file."""
    paths: list[str] = []

    def open_(path: str, flags: int, *mode: int) -> int:
        paths.append(path)
        return real(path, flags, *mode)

    real = os.open
    monkeypatch.setattr(os, "open", open_)
    return paths


@pytest.fixture
def world(tmp_path: Path, root: Path) -> World:
    assert root.exists()
    return World(tmp_path, Agents())


def test_sessions_of_all_agents_are_listed_newest_first(
    tmp_path: Path, root: Path, world: World, claude: ClaudeHome
) -> None:
    oldest = claude.session(root)
    oldest.reply()
    ids = [
        oldest.id,
        codex_thread(CodexHome(tmp_path / ".codex", seed=40), root, 1).id,
        GeminiHome(tmp_path / ".gemini", seed=80).session(root).id,
    ]
    assert list(world.sessions(root)) == ids[::-1]


def test_unchanged_files_are_not_opened_again(
    root: Path, world: World, claude: ClaudeHome, opened: list[str]
) -> None:
    sessions = [claude.session(root) for _ in range(5)]
    for session in sessions:
        session.reply()
    world.ingest()
    opened.clear()
    assert world.ingest() == 0
    assert len(world.sessions(root)) == 5
    assert opened == []
    before = sessions[2].path.stat().st_size
    sessions[2].reply()
    assert world.ingest() == sessions[2].path.stat().st_size - before
    assert set(opened) == {str(sessions[2].path)}
    assert world.sessions(root)[sessions[2].id].tokens == (claude.truth.context[sessions[2].id])


@pytest.mark.parametrize("agent", [*forks_of("claude-code"), *forks_of("codex")])
def test_forks_are_read_in_their_own_folders(tmp_path: Path, agent: str) -> None:
    world = World(tmp_path, agent)
    if all_agents()[agent].reader == "codex":
        codex = CodexHome(world.folder)
        codex.thread(world.root).call()
        truth = codex.truth
    else:
        claude = ClaudeHome(world.folder)
        claude_everyday(claude, world.root)
        truth = claude.truth
    world = World(tmp_path, agent)  # a folder that a pattern names is found once it exists
    world.check(truth)
    assert set(world.agent_of.values()) == {agent}


@pytest.mark.parametrize("agent", ["claude-code", "codex", "pi"])
def test_session_whose_file_was_empty_at_first_is_found(
    agent: str, tmp_path: Path, root: Path, world: World
) -> None:
    """An agent creates its file shortly before writing the first line."""
    if agent == "pi":
        path = tmp_path / ".pi/agent/sessions/--project--/1_a.jsonl"
        path.parent.mkdir(parents=True)
        head = {"type": "session", "id": "a", "timestamp": "2026-11-23T15:00:00Z", "cwd": str(root)}
        path.write_text(json.dumps(head) + "\n")
    elif agent == "codex":
        thread = CodexHome(tmp_path / ".codex").thread(root)
        thread.call()
        path = thread.path
    else:
        session = ClaudeHome(tmp_path / ".claude").session(root)
        session.reply()
        path = session.path
    written = path.read_bytes()
    path.write_bytes(b"")
    assert world.sessions(root) == {}
    path.write_bytes(written)
    assert [session.source for session in world.sessions(root).values()] == [agent]


class Editor:
    """A server's workspace with one root folder."""

    def __init__(self, root: Path, state: Path) -> None:
        self.services = Services(state=State(state))
        self.workspace = self.services.roots.add(root.as_uri())
        self.workspace.path = root
        self.services.configured.set()

    async def look(self) -> list[str]:
        """Read the sessions as the server does when it starts, and return their ids."""
        await self.services.agents.find_sessions(self.workspace)
        return self.shown()

    def shown(self) -> list[str]:
        return [row.id for row in self.services.sessions(self.workspace).rows(every=True)]

    async def close(self) -> None:
        await self.services.aclose()
        self.services.workers.close()


@pytest.fixture
async def editor(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Editor]:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Editor(root, tmp_path / "state")
    yield made
    await made.close()


@pytest.mark.parametrize(("hours", "shown"), [((30, 40, 50), 1), ((1, 2, 30), 2)])
async def test_only_the_newest_of_the_old_sessions_is_listed(
    hours: tuple[int, ...], shown: int, root: Path, claude: ClaudeHome, editor: Editor
) -> None:
    now, ids = time.time(), []
    for age in hours:
        session = claude.session(root)
        session.reply()
        os.utime(session.path, (now - age * 3600, now - age * 3600))
        ids.append(session.id)
    assert set(await editor.look()) == set(ids[:shown])


async def test_search_in_the_history_of_other_projects_is_limited(
    tmp_path: Path, editor: Editor, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_sessions, "MAX_OLD_STORES", 3)
    home = CodexHome(tmp_path / ".codex")
    for age in range(8):
        thread = codex_thread(home, tmp_path, 1)
        os.utime(thread.path, (10**9 - age, 10**9 - age))
    opened.clear()
    assert await editor.look() == []
    assert len({path for path in opened if str(path).endswith(".jsonl")}) == 3


async def test_deleted_session_is_no_longer_listed(
    root: Path, claude: ClaudeHome, editor: Editor
) -> None:
    session = claude.session(root)
    session.reply()
    assert await editor.look() == [session.id]
    session.path.unlink()
    await editor.services.agents.read_changed(editor.workspace, [str(session.path)])
    assert editor.shown() == []


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli"])
@pytest.mark.parametrize("is_another_left", [True, False])
async def test_session_deleted_without_a_watcher_is_not_running(
    tmp_path: Path, root: Path, editor: Editor, agent: str, *, is_another_left: bool
) -> None:
    """An agent may delete a session while no server runs, or between two commands."""
    makers: dict[str, Callable[[], Any]] = {
        "claude-code": partial(claude_everyday, ClaudeHome(tmp_path / ".claude"), root),
        "codex": partial(codex_thread, CodexHome(tmp_path / ".codex"), root, 1),
        "gemini-cli": partial(gemini_everyday, GeminiHome(tmp_path / ".gemini"), root),
    }
    new = makers[agent]
    kept = [new().id] if is_another_left else []
    deleted = new()
    assert deleted.id in await editor.look()
    deleted.path.unlink()
    assert await editor.look() == kept


async def test_session_that_is_no_longer_recent_is_found_again(
    root: Path, claude: ClaudeHome, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for age in (3, 2, 1):
        session = claude.session(root)
        session.reply()
        os.utime(session.path, (time.time() - age * 3600,) * 2)
        ids.append(session.id)
        await editor.look()
        await editor.services.agents.ensure_older_sessions(editor.workspace)
    monkeypatch.setattr(agent_sessions, "RECENT", timedelta(0))
    await editor.look()
    await editor.services.agents.ensure_older_sessions(editor.workspace)
    assert set(editor.shown()) == set(ids)


async def test_amended_call_in_a_database_updates_the_cost(
    tmp_path: Path, root: Path, editor: Editor
) -> None:
    """Crush updates a session's total cost in place. Its reader does not report `bytes_read`."""
    listed = tmp_path / ".local/share/crush/projects.json"
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps({"projects": [{"path": str(root), "data_dir": ".crush"}]}))
    store = CrushStore(root / ".crush" / "crush.db")
    name = store.session()
    look = partial(editor.services.agents.read_changed, editor.workspace, [str(store.path)])
    assert await look()
    assert not await look()
    store.session(name, 4)
    assert await look()
    store.db.close()


@pytest.mark.parametrize(
    ("active", "ended", "seconds", "state"),
    read_rows("agents", "session_states", "active", "ended", "seconds", "state"),
)
def test_session_state_is_running_idle_or_ended(
    active: bool | None, ended: bool, seconds: int, state: str
) -> None:
    at = datetime(2026, 9, 1, tzinfo=UTC)
    session = StoredSession(id="a", source="pi", updated_at=at, active=active, ended=ended)
    assert session.state(at + timedelta(seconds=seconds)) == state


@pytest.mark.parametrize(
    "settings", [Agents(enabled=False), Agents(sources=("codex",)), Agents(sources=())]
)
def test_no_file_is_opened_while_agents_are_disabled(
    tmp_path: Path, root: Path, claude: ClaudeHome, opened: list[str], settings: Agents
) -> None:
    claude.session(root).reply()
    world = World(tmp_path, settings)
    opened.clear()
    assert (world.ingest(), world.sessions(root)) == (0, {})
    assert opened == []


def test_configured_folder_of_an_agent_is_read(
    tmp_path: Path, root: Path, claude: ClaudeHome
) -> None:
    world = World(tmp_path, Agents(paths={"claude-code": "~/elsewhere"}))
    ClaudeHome(tmp_path / "elsewhere", seed=2).session(root).reply()
    claude.session(root).reply()
    assert len(world.sessions(root)) == 2


def test_every_known_agent_has_a_reader() -> None:
    assert [one.agent for one in readers_of(Agents())] == list(all_agents())


def test_fifo_instead_of_git_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    assert Roots.of([tmp_path]).paths == (os.path.realpath(tmp_path),)


class Watching:
    """Watches agents' files for one root folder without polling, and collects the changes."""

    def __init__(self, places: Places, root: Path) -> None:
        self._reports: queue.SimpleQueue[Changes] = queue.SimpleQueue()
        self.watcher = FileWatcher()
        find_paths = partial(paths_to_watch, Agents(), [str(root)], places)
        self.watcher.subscribe(find_paths, self._reports.put, math.inf)
        self.wait_for_rescan()

    def wait_for_changes(self, *paths: Path) -> None:
        """Wait until the watcher has reported changes to these files."""
        left = set(map(str, paths))
        while left:
            left -= self._reports.get(timeout=60) or set()

    def wait_for_rescan(self) -> None:
        """Wait until the watcher reports None, which requests a full rescan."""
        while self._reports.get(timeout=60) is not None:
            pass


@pytest.fixture
def watching(places: Places, root: Path) -> Iterator[Callable[[], Watching]]:
    made: list[Watching] = []

    def start() -> Watching:
        made.append(Watching(places, root))
        return made[-1]

    yield start
    for each in made:
        each.watcher.close()


def test_existing_files_in_a_new_folder_are_reported(
    root: Path, tmp_path: Path, watching: Callable[[], Watching]
) -> None:
    """Codex creates a folder each day and writes to it before the watcher can watch it."""
    codex = CodexHome(tmp_path / ".codex")
    (codex.folder / "sessions").mkdir(parents=True)
    started = watching()
    made: list[Path] = []
    for day in range(20):
        codex.clock.now = datetime(2026, 1, 1 + day, tzinfo=UTC)
        made.append(codex.thread(root).path)
    started.wait_for_changes(*made)


def test_first_use_of_an_agent_is_reported_before_the_next_poll(
    root: Path, tmp_path: Path, watching: Callable[[], Watching]
) -> None:
    """An agent's new folder is noticed whether or not it is next to a watched folder."""
    started = watching()
    codex = CodexHome(tmp_path / ".codex").thread(root)
    started.wait_for_rescan()
    codex.call()
    started.wait_for_changes(codex.path)
    claude = ClaudeHome(tmp_path / ".claude").session(root)
    claude.reply()
    started.wait_for_rescan()
    claude.reply()
    started.wait_for_changes(claude.path)


def test_new_aider_history_in_the_project_is_watched(
    root: Path, watching: Callable[[], Watching]
) -> None:
    started = watching()
    history = root / ".aider.chat.history.md"
    for line in ("> Tokens: 1k sent, 2 received.\n", "> Tokens: 2k sent, 3 received.\n"):
        with history.open("a") as file:
            file.write(line)
        if line.startswith("> Tokens: 1k"):
            started.wait_for_rescan()
    started.wait_for_changes(history)
