"""Tests the reader for opencode with all three formats. Another process writes to the databases."""

from __future__ import annotations

import json
import math
import queue
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.opencode import Conversation, Form, OpenHome, everyday
from benchmarks.agents.truth import Truth
from sidecar.agents.folders import Places
from sidecar.agents.reader_registry import paths_to_watch
from sidecar.agents.readers.opencode import own_window
from sidecar.agents.stores import COMPACTED
from sidecar.config.settings import Agents
from sidecar.project.file_watcher import Changes, FileWatcher
from tests.unit.agents_world import World, forks_of

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
    """Check the session and tokens of all recorded calls."""
    world.ingest()
    assert sorted(world.recorded().values()) == sorted(truth.calls.values())


@pytest.mark.parametrize("form", FORMS)
def test_every_call_counts_once(world: World, home: OpenHome, form: Form) -> None:
    for turns in (1, 4):
        everyday(home, world.root, form, turns)
        world.ingest()
    if form == "files":
        assert {owner for owner, _ in world.recorded().values()} >= set(home.truth.context)
        assert len(world.recorded()) == len(home.truth.calls)
    else:
        check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize("form", ["first", "second"])
def test_row_that_is_updated_in_place_counts_once(world: World, home: OpenHome, form: Form) -> None:
    """A message is not a call until its token counts are known. Until then, they are 0."""
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
def test_messages_copied_by_a_fork_count_once(world: World, home: OpenHome, form: Form) -> None:
    """A fork copies the messages under new ids."""
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
def test_messages_in_old_and_new_tables_count_once(
    world: World, home: OpenHome, at_once: bool
) -> None:
    made = everyday(home, world.root, "first")
    if not at_once:
        check(world, home.truth)
    newer = made.upgrade()
    newer.user()
    newer.reply()
    check(world, home.truth)
    world.check_context(home.truth)


def test_messages_in_files_and_database_count_once(world: World, home: OpenHome) -> None:
    made = everyday(home, world.root, "first")
    check(world, home.truth)
    made.form = "files"
    made.save()
    for message in made.messages:
        made.put(*message)
    check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize("form", FORMS)
def test_summary_does_not_set_the_context_size(world: World, home: OpenHome, form: Form) -> None:
    made = everyday(home, world.root, form)
    made.compact()
    assert world.sessions()[made.id].note == COMPACTED
    made.user()
    assert world.sessions()[made.id].note == COMPACTED
    made.reply()
    made.save()
    world.check_context(home.truth)


def test_reasoning_and_cache_are_counted_separately(world: World, home: OpenHome) -> None:
    """The output excludes reasoning, and the input excludes cached tokens."""
    everyday(home, world.root)
    world.ingest()
    assert {call.category for call in world.calls} == {"main", "subagent"}
    assert {call.workspace for call in world.calls} == {str(world.root)}
    assert {call.provider for call in world.calls} == {"anthropic"}


def test_session_without_a_folder_uses_no_project_settings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's working directory may contain another project's settings."""
    models = {"gpt-5": {"limit": {"context": 64_000}}}
    settings = {"provider": {"openai": {"models": models}}}
    (world.root / "opencode.json").write_text(json.dumps(settings))
    monkeypatch.chdir(world.root)
    assert own_window(world.places, "opencode", str(world.root), "gpt-5") == 64_000
    assert own_window(world.places, "opencode", "", "gpt-5") is None


KILO, OPENCODE = ("kilo-code", "kilo"), ("opencode", "opencode")


@pytest.mark.parametrize(
    ("names", "path", "variable"),
    [
        (OPENCODE, ".config/opencode/opencode.json", ""),
        (OPENCODE, "work/opencode.jsonc", ""),
        (OPENCODE, "work/my proj.ect/.opencode/opencode.json", ""),
        (OPENCODE, "elsewhere/opencode.json", "OPENCODE_CONFIG_DIR"),
        (KILO, ".config/kilo/kilo.json", ""),
        (KILO, ".config/kilo/opencode.jsonc", ""),
        (KILO, "work/my proj.ect/kilo.jsonc", ""),
        (KILO, "work/.kilocode/kilo.json", ""),
        (KILO, ".kilo/kilo.json", ""),
        (KILO, "elsewhere.json", "KILO_CONFIG"),
    ],
)
def test_window_comes_from_the_settings(
    tmp_path: Path, names: tuple[str, str], path: str, variable: str
) -> None:
    """The project is the repository `work`, and the session works in a folder of it."""
    agent, program = names
    file = tmp_path / path
    place = file.parent if variable.endswith("_DIR") else file
    world = World(tmp_path, agent, {variable: str(place)} if variable else None)
    (world.root.parent / ".git").mkdir()
    home = OpenHome(tmp_path / ".local/share" / program, program)
    everyday(home, world.root)
    world.ingest()
    models = {session.model: {"limit": {"context": 77_000}} for session in world.shown()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"provider": {"own": {"models": models}}}))
    assert [session.limit for session in world.shown()] == [77_000]


def test_settings_of_the_project_override_the_users(world: World) -> None:
    def write(path: Path, tokens: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        models = {"gpt-5": {"limit": {"context": tokens}}}
        path.write_text(json.dumps({"provider": {"openai": {"models": models}}}))
        assert own_window(places, "kilo-code", str(world.root), "gpt-5") == tokens

    variables = {"HOME": str(world.home), "KILO_CONFIG": str(world.home / "named.json")}
    places = Places.of(world.settings, variables)
    write(world.home / ".config/kilo/kilo.json", 1_000)
    write(world.home / "named.json", 2_000)
    write(world.root / "opencode.json", 3_000)
    write(world.root / "kilo.json", 4_000)
    write(world.root / ".kilo/kilo.jsonc", 5_000)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("New session - 2026-11-29T06:21:32.459Z", None),
        ("New session - 2026-11-29T06:21:32.459Z (fork #1)", None),
        ("Child session - 2026-11-29T06:21:32.459Z", None),
        ("New session - what it means", "New session - what it means"),
    ],
)
def test_placeholder_is_no_title(
    world: World, home: OpenHome, form: Form, title: str, shown: str | None
) -> None:
    """The agent makes the title during the first turn, which may end earlier."""
    made = everyday(home, world.root, form)
    made.title = title
    made.save()
    assert world.sessions()[made.id].title == shown


@pytest.mark.parametrize("agent", forks_of("opencode"))
def test_databases_of_forks_are_read(tmp_path: Path, agent: str) -> None:
    world = World(tmp_path, agent)
    home = OpenHome(world.folder, name=world.folder.name)
    everyday(home, world.root, "first")
    check(world, home.truth)
    world.check_context(home.truth)
    assert set(world.agent_of.values()) == {agent}
    home.close()


def test_database_is_watched_without_its_other_folders(world: World, home: OpenHome) -> None:
    """Older versions left tens of thousands of folders, each with the parts of one message."""
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
    """opencode creates a folder and then a database. Both are noticed without a full scan."""
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
    changed = {session.id for session in read.sessions if session.subagent_of is None}
    assert (changed, read.has_all_sessions) == ({made[1].id}, False)
    world.check_context(home.truth)


def test_deleted_session_is_hidden_and_stays_billed(world: World, home: OpenHome) -> None:
    made = [everyday(home, world.root, "first") for _ in range(2)]
    world.ingest()
    home.db.execute("DELETE FROM message WHERE session_id = ?", (made[0].id,))
    home.db.execute("DELETE FROM session WHERE id = ?", (made[0].id,))
    check(world, home.truth)
    assert set(world.sessions()) == {made[1].id}


def test_row_with_unexpected_types_does_not_affect_other_rows(world: World, home: OpenHome) -> None:
    """SQLite allows any type of value in every column."""
    everyday(home, world.root, "first")
    rows = ((b"1", 1, "later", None), ("x", "early", 1, None), ("x", None, None, 7))
    home.db.executemany("INSERT INTO message VALUES (hex(randomblob(8)), ?, ?, ?, ?)", rows)
    home.db.execute("INSERT INTO part VALUES ('p', 'm', 'x', 'now', 1, '\"type\":\"compaction\"')")
    home.db.execute("INSERT INTO session VALUES ('x', '', NULL, '/', 'Title', 1, 2)")
    home.db.execute("INSERT INTO session VALUES ('y', '', NULL, '/', x'00', 1, 'later')")
    check(world, home.truth)
    world.check_context(home.truth)


@pytest.mark.parametrize(
    ("provider", "written", "model", "tier"),
    [
        ("openai", "gpt-5.6-terra-fast", "gpt-5.6-terra", "priority"),
        ("anthropic", "claude-opus-5-fast", "claude-opus-5", "fast"),
        ("openai", "gpt-5.6-terra", "gpt-5.6-terra", ""),
        ("openrouter", "anthropic/claude-opus-5-fast", "anthropic/claude-opus-5-fast", ""),
        ("xai", "grok-3-fast", "grok-3-fast", ""),
    ],
)
@pytest.mark.parametrize("form", ["first", "second"])
def test_fast_model_is_a_service_tier(
    world: World, home: OpenHome, form: Form, provider: str, written: str, model: str, tier: str
) -> None:
    """opencode sends the same model's name, with the tier."""
    made = home.session(world.root, form)
    made.user()
    made.reply(**named(form, provider, written))
    world.ingest()
    assert {(call.model, call.tier) for call in world.calls} == {(model, tier)}
    (session,) = world.shown()
    assert session.model == model


def named(form: Form, provider: str, model: str) -> dict[str, Any]:
    """Return the fields of a message that name its model."""
    if form == "second":
        return {"model": {"id": model, "providerID": provider}}
    return {"modelID": model, "providerID": provider}


NO_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}


def with_totals(home: OpenHome, form: Form) -> str:
    """Add the columns of a session's total. Returns the sessions' table."""
    table = "session_v2" if form == "second" else "session"
    missing = {"tokens_input", "tokens_output", "tokens_cache_read", "cost", "model"}
    for name in sorted(
        missing - {row[1] for row in home.db.execute(f"PRAGMA table_info({table})")}
    ):
        home.db.execute(f"ALTER TABLE {table} ADD COLUMN {name}")
    return table


@pytest.mark.parametrize("is_child", [False, True])
@pytest.mark.parametrize("form", ["first", "second"])
def test_total_of_a_session_whose_replies_have_no_tokens_counts_once(
    world: World, home: OpenHome, form: Form, is_child: bool
) -> None:
    owner = made = home.session(world.root, form)
    if is_child:
        made = home.session(world.root, form, owner)
    table = with_totals(home, form)

    def reply(number: int, tokens: dict[str, Any], *, is_finished: bool = True) -> None:
        created = home.now()
        time = {"created": created} | ({"completed": home.now()} if is_finished else {})
        data = {"time": time, "tokens": tokens, **named(form, "github-copilot", "gpt-5")}
        made.put(f"msg_{number}", "assistant", number, data)

    def total(tokens: int) -> None:
        home.db.execute(
            f"UPDATE {table} SET tokens_input = ?, tokens_output = ?, tokens_cache_read = 1000, "  # noqa: S608
            "cost = 0.5, model = ?, time_updated = ? WHERE id = ?",
            (tokens, tokens, '{"id":"gpt-5","providerID":"github-copilot"}', home.now(), made.id),
        )

    reply(1, NO_TOKENS, is_finished=False)
    total(50)
    world.ingest()
    assert world.recorded() == {}, "the reply may still get tokens"
    reply(1, NO_TOKENS)
    for tokens in (50, 70):
        total(tokens)
        world.ingest()
        [(session, counts)] = world.recorded().values()
        assert (session, counts.prompt, counts.output) == (owner.id, tokens + 1_000, tokens)
    assert {call.model for call in world.calls} == {"gpt-5"}
    assert {call.category for call in world.calls} == {"subagent" if is_child else "main"}
    assert [session.id for session in world.shown()] == [owner.id]


@pytest.mark.parametrize("model", ["gpt-5", '"gpt-5"', "{", "[1]", "", None, '{"id":{}}'])
@pytest.mark.parametrize("form", ["first", "second"])
def test_malformed_model_of_a_total_loses_no_call(
    world: World, home: OpenHome, form: Form, model: str | None
) -> None:
    home.session(world.root, form).reply()
    table = with_totals(home, form)
    made = home.session(world.root, form)
    created = home.now()
    data = {"time": {"created": created, "completed": created}, "tokens": NO_TOKENS}
    made.put("msg_1", "assistant", 1, data)
    home.db.execute(
        f"UPDATE {table} SET tokens_input = 5, model = ? WHERE id = ?",  # noqa: S608
        (model, made.id),
    )
    world.ingest()
    assert sorted(call.model for call in world.calls) == ["claude-sonnet-5", "unknown"]


def test_total_of_a_session_whose_replies_have_tokens_is_not_added(
    world: World, home: OpenHome
) -> None:
    everyday(home, world.root, "first")
    for name in ("tokens_input", "tokens_output", "cost"):
        home.db.execute(f"ALTER TABLE session ADD COLUMN {name} INTEGER DEFAULT 5")
    check(world, home.truth)


def test_sessions_in_one_file_have_their_own_times(world: World, home: OpenHome) -> None:
    """The file's modification time applies only to the session that was written last."""
    first = home.session(world.root)
    first.reply()
    home.clock.now += timedelta(hours=1)
    second = home.session(world.root)
    second.reply()
    assert list(world.sessions()) == [second.id, first.id]
    home.clock.now += timedelta(hours=1)
    first.reply()
    first.save()
    found = world.sessions()
    assert list(found) == [first.id, second.id]
    gap = found[first.id].updated_at - found[second.id].updated_at
    assert gap > timedelta(minutes=59)
