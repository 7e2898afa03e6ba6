"""Sessions of several agents together: the first look, looking again, watching, settings."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents.claude import ClaudeHome
from benchmarks.agents.codex import CodexHome
from benchmarks.agents.codex import everyday as codex_thread
from benchmarks.agents.gemini import GeminiHome
from sidecar.agents import live, tail
from sidecar.agents.places import Places
from sidecar.agents.reader import readers_of
from sidecar.agents.roots import Roots
from sidecar.agents.values import StoredSession
from sidecar.agents.watch import changes
from sidecar.config.settings import AGENTS, Agents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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
    """The session files that are opened from now on."""
    paths: list[str] = []

    def open_(path: str, flags: int) -> int:
        paths.append(path)
        return real(path, flags)

    real = os.open
    monkeypatch.setattr(os, "open", open_)
    return paths


def test_all_agents_together_the_newest_first(
    tmp_path: Path, root: Path, places: Places, claude: ClaudeHome
) -> None:
    oldest = claude.session(root)
    oldest.reply()
    ids = [
        oldest.id,
        codex_thread(CodexHome(tmp_path / ".codex", seed=40), root, 1).id,
        GeminiHome(tmp_path / ".gemini", seed=80).session(root).id,
    ]
    seen = live.look(readers_of(Agents()), places, Roots.of([root]))
    assert [session.id for session in seen.sessions] == ids[::-1]


def test_what_did_not_change_is_not_opened_again(
    root: Path, places: Places, claude: ClaudeHome, opened: list[str]
) -> None:
    sessions = [claude.session(root) for _ in range(5)]
    for session in sessions:
        session.reply()
    readers, roots = readers_of(Agents()), Roots.of([root])
    seen = live.look(readers, places, roots)
    opened.clear()
    assert live.look(readers, places, roots, seen) == seen
    assert opened == []
    sessions[2].reply()
    again = live.look_again(readers, places, roots, seen, [str(sessions[2].path)])
    assert set(opened) == {str(sessions[2].path)}
    assert again == live.look(readers, places, roots)


def test_of_a_large_file_the_end_is_read(
    root: Path, places: Places, claude: ClaudeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = claude.session(root)
    session.size = 200_000
    for _ in range(20):
        session.reply(blocks=1)
    session.size = 100
    session.reply(blocks=1)
    session.reply(blocks=1)
    counts = []
    real = tail._read

    def read(file: object, count: int) -> bytes:
        counts.append(count)
        return real(file, count)  # type: ignore[arg-type]

    monkeypatch.setattr(tail, "_read", read)
    (shown,) = live.look(readers_of(Agents()), places, Roots.of([root])).sessions
    assert shown.occupancy.tokens == claude.truth.context[session.id]
    assert sum(counts) < 200_000 < session.path.stat().st_size / 10


def test_old_sessions_are_left_alone_but_for_the_newest(
    root: Path, places: Places, claude: ClaudeHome
) -> None:
    ids = []
    for age in range(4):
        session = claude.session(root)
        session.reply()
        os.utime(session.path, (100 - age, 100 - age))
        ids.append(session.id)
    readers, roots = readers_of(Agents()), Roots.of([root])
    seen = live.look(readers, places, roots, since_ns=10**12)
    assert [session.id for session in seen.sessions] == ids[:1]
    seen = live.look(readers, places, roots, since_ns=99 * 10**9)
    assert len(seen.sessions) == 2


def test_a_long_history_of_other_projects_is_not_searched_to_its_end(
    tmp_path: Path, root: Path, places: Places, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_OLD", 3)
    home = CodexHome(tmp_path / ".codex")
    for _ in range(8):
        codex_thread(home, tmp_path, 1)
    seen = live.look(readers_of(Agents()), places, Roots.of([root]), since_ns=10**19)
    assert seen.sessions == ()
    assert len(set(opened)) == 3


@pytest.mark.parametrize(
    ("active", "ended", "seconds", "state"),
    [
        (True, False, 500, "running"),
        (True, False, 700, "idle"),
        (None, False, 30, "running"),
        (None, False, 90, "idle"),
        (False, False, 1, "idle"),
        (False, False, 90_000, "ended"),
        (True, True, 1, "ended"),
    ],
)
def test_what_a_session_does(active: bool | None, ended: bool, seconds: int, state: str) -> None:
    at = datetime(2026, 9, 1, tzinfo=UTC)
    session = StoredSession(
        id="a", source="pi", path="", cwd=None, updated_at=at, active=active, ended=ended
    )
    assert session.state(at + timedelta(seconds=seconds)) == state


def test_a_session_that_vanishes_is_gone(root: Path, places: Places, claude: ClaudeHome) -> None:
    session = claude.session(root)
    session.reply()
    readers, roots = readers_of(Agents()), Roots.of([root])
    seen = live.look(readers, places, roots)
    session.path.unlink()
    assert live.look_again(readers, places, roots, seen, [str(session.path)]).sessions == ()


def test_disabled_agents_open_nothing(
    root: Path, places: Places, claude: ClaudeHome, opened: list[str]
) -> None:
    claude.session(root).reply()
    for settings in (Agents(enabled=False), Agents(sources=("codex",)), Agents(sources=())):
        readers = readers_of(settings)
        assert live.look(readers, places, Roots.of([root])).sessions == ()
    assert opened == []


def test_a_path_that_the_settings_name(tmp_path: Path, root: Path, claude: ClaudeHome) -> None:
    settings = Agents(paths={"claude-code": "~/elsewhere"})
    places = Places.of(settings, {"HOME": str(tmp_path)})
    ClaudeHome(tmp_path / "elsewhere", seed=2).session(root).reply()
    claude.session(root).reply()
    assert len(live.look(readers_of(settings), places, Roots.of([root])).sessions) == 2


def test_every_known_agent_has_a_reader_of_its_name() -> None:
    assert [one.agent for one in readers_of(Agents())] == list(AGENTS)


@pytest.fixture
def watched(places: Places) -> Iterator[Iterator[frozenset[str] | None]]:
    stop = threading.Event()
    yield changes(Agents(), places, stop, poll_seconds=0.2)
    stop.set()


def _path_in(watched: Iterator[frozenset[str] | None], path: Path) -> bool:
    return any(found is not None and str(path) in found for found in watched)


def test_a_growing_file_is_seen(
    root: Path, claude: ClaudeHome, watched: Iterator[frozenset[str] | None]
) -> None:
    session = claude.session(root)
    session.reply()
    assert next(watched) is None
    session.reply()
    assert _path_in(watched, session.path)


def test_a_folder_that_appears_is_watched(
    root: Path, claude: ClaudeHome, watched: Iterator[frozenset[str] | None]
) -> None:
    assert next(watched) is None
    session = claude.session(root)
    session.reply()
    assert next(watched) is None
    assert next(watched) is None
    session.reply()
    assert _path_in(watched, session.path)


def test_what_a_new_folder_holds_already_is_seen(
    root: Path, tmp_path: Path, watched: Iterator[frozenset[str] | None]
) -> None:
    """Codex begins a folder each day: its first lines are written before that is watched."""
    codex = CodexHome(tmp_path / ".codex")
    (codex.folder / "sessions").mkdir(parents=True)
    assert next(watched) is None
    made: list[Path] = []
    for day in range(20):
        codex.clock.now = datetime(2026, 1, 1 + day, tzinfo=UTC)
        made.append(codex.thread(root).path)
    seen: set[str] = set()
    while not seen.issuperset(map(str, made)):
        found = next(watched)
        seen.update(found or ())


def test_watching_ends(places: Places, claude: ClaudeHome, root: Path) -> None:
    claude.session(root).reply()
    stop = threading.Event()
    watching = changes(Agents(), places, stop, poll_seconds=60)
    threading.Timer(0.1, stop.set).start()
    assert list(watching) == []


def test_a_fifo_in_gits_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    assert Roots.of([tmp_path]).paths == (os.path.realpath(tmp_path),)


class Watching:
    """What is reported, on a thread of its own, with a poll that never comes."""

    def __init__(self, places: Places, roots: Roots) -> None:
        self.stop, self._seen = threading.Event(), queue.Queue[frozenset[str] | None]()
        self._changes = changes(Agents(), places, self.stop, roots=roots, poll_seconds=3_600)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for paths in self._changes:
            self._seen.put(paths)

    def until_seen(self, path: Path, grow: Callable[[], object]) -> None:
        """Let a file grow until it is reported."""
        for _ in range(120):
            grow()
            with suppress(queue.Empty):
                while str(path) not in (self._seen.get(timeout=0.5) or ()):
                    pass
                return
        raise AssertionError(path)

    def until_told_to_look(self) -> None:
        """Wait until everything is to be looked at anew."""
        while self._seen.get(timeout=60) is not None:
            pass


@pytest.fixture
def watching(places: Places, root: Path) -> Iterator[Watching]:
    one = Watching(places, Roots.of([root]))
    yield one
    one.stop.set()


def test_an_agents_first_use_is_seen_long_before_the_poll(
    root: Path, tmp_path: Path, watching: Watching
) -> None:
    """First where there is none to be watched, then beside one that is."""
    codex = CodexHome(tmp_path / ".codex").thread(root)
    watching.until_seen(codex.path, codex.call)
    claude = ClaudeHome(tmp_path / ".claude").session(root)
    claude.reply()
    watching.until_told_to_look()
    watching.until_seen(claude.path, claude.reply)


def test_a_history_that_aider_begins_in_the_project_is_followed(
    root: Path, watching: Watching
) -> None:
    history = root / ".aider.chat.history.md"

    def grow() -> None:
        with history.open("a") as file:
            file.write("> Tokens: 1k sent, 2 received.\n")

    watching.until_seen(history, grow)


def test_write_while_the_watch_is_renewed_is_seen(
    root: Path, tmp_path: Path, places: Places
) -> None:
    """The write comes after the caller was told to look, before the new watch is in force."""
    codex = CodexHome(tmp_path / ".codex").thread(root)
    stop = threading.Event()
    reported = changes(Agents(), places, stop, poll_seconds=3_600)
    begin = threading.Timer(0.2, ClaudeHome(tmp_path / ".claude").session(root).reply)
    begin.start()
    assert next(reported) is None
    codex.call()
    give_up = threading.Timer(20, stop.set)
    give_up.start()
    found = next(reported, frozenset())
    give_up.cancel()
    assert found is None or str(codex.path) in found
    stop.set()
