"""opencode's sessions in all three forms, the databases read while their writer lives."""

from __future__ import annotations

import math
import queue
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents.opencode import OpenHome, everyday
from sidecar.agents.registry import paths_to_watch
from sidecar.agents.stores import COMPACTED
from sidecar.config.settings import Agents
from sidecar.workspace.file_watcher import FileWatcher
from tests.unit.agents_world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.agents.opencode import Conversation, Form
    from benchmarks.agents.truth import Truth
    from sidecar.workspace.file_watcher import Changes

FORMS: tuple[Form, ...] = ("files", "first", "second")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "opencode")


@pytest.fixture
def home(world: World) -> Iterator[OpenHome]:
    made = OpenHome(world.home / ".local" / "share" / "opencode")
    yield made
    made.close()


def check(world: World, truth: Truth) -> None:
    """Calls by session and tokens: their ids are worked out from what copies keep."""
    world.ingest()
    assert sorted(world.recorded().values()) == sorted(truth.calls.values())


@pytest.mark.parametrize("form", FORMS)
def test_every_call_counts_once(world: World, home: OpenHome, form: Form) -> None:
    for turns in (1, 4):
        everyday(home, world.root, form, turns)
        world.ingest()
    if form == "files":
        assert {owner for owner, _ in world.recorded().values()} >= set(home.truth.context)
        assert world.ledger is not None
        assert len(world.recorded()) == len(home.truth.calls)
    else:
        check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize("form", ["first", "second"])
def test_rows_change_in_place(world: World, home: OpenHome, form: Form) -> None:
    """A message is there with zeros before it has its numbers: not a value, nor a call."""
    made = everyday(home, world.root, form)
    check(world, home.truth)
    made.user()
    zeros = {"input": 0, "output": 0, "cache": {"read": 0, "write": 0}}
    made.message("assistant", modelID="x", tokens=zeros)
    check(world, home.truth)
    world.check_context(home.truth)
    made.reply()
    read = len(world.calls)
    check(world, home.truth)
    assert len(world.calls) - read <= 2
    world.check_context(home.truth)


@pytest.mark.parametrize("form", ["first", "second"])
def test_a_forks_copies_count_once(world: World, home: OpenHome, form: Form) -> None:
    """They have new ids: a peer counts them again."""
    made = everyday(home, world.root, form)
    check(world, home.truth)
    fork = made.fork()
    check(world, home.truth)
    world.check_context(home.truth)
    fork.user()
    fork.reply()
    made.reply()
    check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize("at_once", [True, False])
def test_an_upgrade_leaves_the_old_tables_behind(
    world: World,
    home: OpenHome,
    at_once: bool,
) -> None:
    made = everyday(home, world.root, "first")
    if not at_once:
        check(world, home.truth)
    newer = made.upgrade()
    newer.user()
    newer.reply()
    check(world, home.truth)
    world.check_context(home.truth)


def test_files_and_database_may_tell_the_same(world: World, home: OpenHome) -> None:
    made = everyday(home, world.root, "first")
    check(world, home.truth)
    made.form = "files"
    made.save()
    for message in made.messages:
        made.put(*message)
    check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize("form", FORMS)
def test_a_summary_is_no_size(world: World, home: OpenHome, form: Form) -> None:
    made = everyday(home, world.root, form)
    made.compact()
    assert world.sessions()[made.id].occupancy.note == COMPACTED
    made.user()
    assert world.sessions()[made.id].occupancy.note == COMPACTED
    made.reply()
    made.save()
    world.check_context(home.truth)


def test_parts_of_a_message(world: World, home: OpenHome) -> None:
    """Reasoning comes beside the output, and the cache beside the input."""
    everyday(home, world.root)
    world.ingest()
    assert {call.category for call in world.calls} == {"main", "subagent"}
    assert {call.workspace for call in world.calls} == {str(world.root)}
    assert {call.provider for call in world.calls} == {"anthropic"}


def test_a_title_of_its_own(world: World, home: OpenHome) -> None:
    made = everyday(home, world.root)
    assert world.sessions()[made.id].title == "A title"


def test_kilo_keeps_such_a_database(tmp_path: Path) -> None:
    world = World(tmp_path, "kilo-code")
    home = OpenHome(world.home / ".local" / "share" / "kilo", name="kilo")
    everyday(home, world.root, "first")
    check(world, home.truth)
    world.check_context(home.truth)
    assert set(world.agent_of.values()) == {"kilo-code"}
    home.close()


def test_a_growing_database_is_told_and_what_lies_beside_it_is_not_watched(
    world: World, home: OpenHome
) -> None:
    """Older versions leave a folder for each message's parts: tens of thousands."""
    made = everyday(home, world.root)
    (home.folder / "storage" / "part" / "msg_1").mkdir(parents=True)
    watched = world.readers[0].folders(world.places)
    assert not [path for path in watched if (home.folder / "storage" / "part").is_relative_to(path)]
    told: queue.SimpleQueue[Changes] = queue.SimpleQueue()
    watcher = FileWatcher()
    find_paths = partial(paths_to_watch, Agents(sources=("opencode",)), (), world.places)
    watcher.subscribe(find_paths, told.put, math.inf)
    assert told.get(timeout=60) is None
    another_writer_adds(home, made)
    seen: set[str] = set()
    while not seen:
        paths = told.get(timeout=60) or ()
        stores = (world.readers[0].store_at(world.places, path) for path in paths)
        seen |= {store.path for store in stores if store}
    watcher.close()
    assert seen == {str(home.path)}


def another_writer_adds(home: OpenHome, made: Conversation) -> None:
    with closing(sqlite3.connect(home.path, isolation_level=None)) as other:
        other.execute(
            "UPDATE session_v2 SET time_updated = time_updated + 1 WHERE id = ?", (made.id,)
        )


def test_the_first_database_is_watched_before_it_exists(world: World) -> None:
    """opencode makes its folder, then its database: both are seen without a look at everything."""
    folder = world.home / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    (reader,) = world.readers
    assert {str(folder / name) for name in ("opencode.db", "opencode.db-wal")} <= {
        *reader.folders(world.places)
    }


def test_only_sessions_that_changed_are_read_again(world: World, home: OpenHome) -> None:
    made = [everyday(home, world.root, "first") for _ in range(3)]
    world.ingest()
    (reader,) = world.readers
    made[1].reply()
    (store,) = world.stores()
    read = reader.read(store, world.states()[store.path])
    changed = {session.name for session in read.sessions}
    assert (changed, read.restarted) == ({made[1].id}, False)
    world.check_context(home.truth)


def test_a_deleted_session_is_not_shown_and_stays_billed(world: World, home: OpenHome) -> None:
    made = [everyday(home, world.root, "first") for _ in range(2)]
    world.ingest()
    home.db.execute("DELETE FROM message WHERE session_id = ?", (made[0].id,))
    home.db.execute("DELETE FROM session WHERE id = ?", (made[0].id,))
    check(world, home.truth)
    assert set(world.sessions()) == {made[1].id}


def test_rows_of_other_types_cost_no_other_row(world: World, home: OpenHome) -> None:
    """SQLite's columns take every type."""
    everyday(home, world.root, "first")
    rows = ((b"1", 1, "later", None), ("x", "early", 1, None), ("x", None, None, 7))
    home.db.executemany("INSERT INTO message VALUES (hex(randomblob(8)), ?, ?, ?, ?)", rows)
    home.db.execute("INSERT INTO part VALUES ('p', 'm', 'x', 'now', 1, '\"type\":\"compaction\"')")
    home.db.execute("INSERT INTO session VALUES ('x', '', NULL, '/', 'Title', 1, 2)")
    home.db.execute("INSERT INTO session VALUES ('y', '', NULL, '/', x'00', 1, 'later')")
    check(world, home.truth)
    world.check_context(home.truth)
