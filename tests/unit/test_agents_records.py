"""Tests the agents whose files are described by fields in `known_agents.toml`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.truth import Tokens, append
from sidecar.agents.record_reader import NO_CONTEXT
from sidecar.known_agents import Agent, CallFields, SessionFields, all_agents
from sidecar.operating_system import HOME_VARIABLE
from tests.cases import read_table
from tests.unit.agents_world import World

FILES = read_table("agent_records")
READER = {name: one.reader or name for name, one in all_agents().items()}
WITHOUT_READER = {name for name, one in all_agents().items() if one.calls}
SECONDS = 1_795_000_000


def calls_of(world: World) -> list[tuple[str, Tokens]]:
    """Return the sessions and numbers of the recorded calls."""
    world.ingest()
    return sorted(world.recorded().values(), key=lambda one: one[1].fresh)


class Database:
    """An agent's database, to which it adds rows."""

    def __init__(self, path: Path, tables: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.run(tables)

    def run(self, sql: str) -> None:
        with closing(sqlite3.connect(self._path)) as db:
            db.executescript(sql)

    def write(self, table: str, **row: object) -> None:
        with closing(sqlite3.connect(self._path)) as db:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            db.execute(f"REPLACE INTO {table} ({names}) VALUES ({marks})", [*row.values()])  # noqa: S608
            db.commit()


def write_files(world: World, agent: str) -> None:
    """Write the files of a case: a session `s` with one call."""
    for name, text in FILES[agent].items():
        path, content = world.folder / name, text.replace("ROOT", world.root.as_posix())
        if path.suffix in {".db", ".sqlite"}:
            Database(path, content)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.lstrip())


@pytest.mark.parametrize("agent", [name for name, of in READER.items() if of in WITHOUT_READER])
def test_calls_are_read_by_their_fields(tmp_path: Path, agent: str) -> None:
    """Of a total without a number of calls, the context is unknown."""
    of = READER[agent]
    assert of in FILES, "add the agent's files to tests/fixtures/cases/agent_records.toml"
    world = World(tmp_path, agent)
    write_files(world, of)
    assert calls_of(world) == [("s", Tokens(100, 40, output=7))]
    assert [one.model for one in world.calls] == ["glm-5"]
    assert {one.workspace for one in world.calls} == {str(world.root)}
    calls = all_agents()[of].calls
    is_sum = calls is not None and calls.has_totals and not calls.count
    (shown,) = world.shown()
    tokens = None if is_sum else 147
    assert (shown.tokens, shown.model, shown.quality) == (tokens, "glm-5", "exact")
    assert shown.title == {"gptme": "Named", "hermes": "Named"}.get(of)
    assert world.ingest() == 0


@pytest.fixture
def hermes(tmp_path: Path) -> tuple[World, Database]:
    world = World(tmp_path, "hermes")
    database = Database(
        world.folder / "state.db",
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, cwd, git_branch, title, model, started_at,"
        " ended_at, model_config);"
        "CREATE TABLE session_model_usage (session_id, model, billing_provider, task,"
        " input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens,"
        " api_call_count, PRIMARY KEY (session_id, model, billing_provider, task)) WITHOUT ROWID;",
    )
    row = {"id": "s", "cwd": str(world.root), "title": "Named", "started_at": SECONDS + 0.5}
    database.write("sessions", **row, git_branch="main")
    return world, database


def total(database: Database, count: int, size: int, output: int, task: str = "") -> None:
    row: dict[str, Any] = {"session_id": "s", "model": "gpt-5", "billing_provider": "openai"}
    row |= {"task": task, "input_tokens": size, "output_tokens": output}
    database.write("session_model_usage", **row, api_call_count=count, cache_read_tokens=0)


def test_totals_are_recorded_by_what_was_added(hermes: tuple[World, Database]) -> None:
    """One added call is exact, and so is the context. Of several, only the sum is known."""
    world, database = hermes
    total(database, 1, 100, 5)
    assert [(one.tokens, one.title, one.branch) for one in world.shown()] == [
        (105, "Named", "main")
    ]
    total(database, 2, 350, 8)
    total(database, 1, 9, 9, "title_generation")
    assert [one.tokens for one in world.shown()] == [253]
    total(database, 5, 1350, 20)
    assert [one.tokens for one in world.shown()] == [None]
    sizes = [(one[1].fresh, one[1].output) for one in calls_of(world)]
    assert sizes == [(9, 9), (100, 5), (250, 3), (1000, 12)]
    assert world.ingest() == 0


def test_totals_of_subagents_are_part_of_their_session(hermes: tuple[World, Database]) -> None:
    world, database = hermes
    total(database, 1, 100, 5)
    delegate = json.dumps({"max_tokens": None, "_delegate_from": "s"})
    database.write("sessions", id="t", started_at=SECONDS + 1, model_config=delegate)
    row: dict[str, Any] = {"session_id": "t", "model": "gpt-5", "task": "", "api_call_count": 1}
    database.write("session_model_usage", **row, billing_provider="openai", input_tokens=30)
    (shown,) = world.shown()
    assert (shown.id, [one.tokens for one in shown.subagents]) == ("s", [30])
    found = {(one.session, one.category, one.workspace) for one in world.calls}
    assert found == {("s", "main", str(world.root)), ("s", "subagent", str(world.root))}


def test_windows_are_in_the_settings(hermes: tuple[World, Database]) -> None:
    world, database = hermes
    total(database, 1, 100, 5)
    assert [one.limit for one in world.shown()] == [None]
    settings = """
# The model
model:
  default: gpt-5   # the newest
  provider: custom
  context_length: 250000
custom_providers:
- name: Local
  base_url: http://localhost:1234/v1
  models:
    "gpt-5":
      context_length: 240000
    qwen3.5:27b:
      context_length: 5
"""
    (world.folder / "config.yaml").write_text(settings)
    assert [one.limit for one in world.shown()] == [240_000]
    (world.folder / "config.yaml").write_text(settings.replace('"gpt-5"', "other"))
    assert [one.limit for one in world.shown()] == [250_000]
    (world.folder / "config.yaml").write_text(settings.replace("gpt-5", "other"))
    assert [one.limit for one in world.shown()] == [None]


def test_totals_that_start_again_lose_no_call(hermes: tuple[World, Database]) -> None:
    world, database = hermes
    total(database, 3, 300, 5)
    world.ingest()
    total(database, 1, 40, 2)
    assert [one[1].fresh for one in calls_of(world)] == [40, 300]


def test_totals_count_once_when_the_state_is_lost(hermes: tuple[World, Database]) -> None:
    world, database = hermes
    for count in (1, 2):
        total(database, count, 100 * count, 5 * count)
        world.ingest()
    with world.ledger.transaction() as connection:
        connection.execute("UPDATE store SET state = x'00', size = 0")
    assert [one[1].fresh for one in calls_of(world)] == [100, 100]


@pytest.mark.parametrize(
    ("variable", "sessions"),
    [
        ("", ".factory/sessions"),
        ("FACTORY_DIR", "elsewhere/sessions"),
        ("DROID_SESSIONS_DIR", "elsewhere"),
    ],
)
def test_droid_totals_are_beside_its_sessions(tmp_path: Path, variable: str, sessions: str) -> None:
    world = World(tmp_path, "droid", {variable: str(tmp_path / "elsewhere")})
    folder = tmp_path / sessions / "-p"
    start = {"type": "session_start", "id": "s", "title": "text", "cwd": str(world.root)}
    append(folder / "s.jsonl", start, {"type": "message", "id": "m", "message": {"content": "x"}})
    for size in (100, 250):
        usage = {"inputTokens": size, "outputTokens": size // 10, "cacheReadTokens": 3}
        document = {"model": "claude-opus-4-8", "tokenUsage": usage}
        new = folder / "new"
        new.write_text(json.dumps(document))
        new.replace(folder / "s.settings.json")
        (shown,) = world.shown()
        assert (shown.id, shown.tokens, shown.note) == ("s", None, NO_CONTEXT)
    assert [one[1].fresh for one in calls_of(world)] == [100, 150]


def made_up(calls: CallFields, sessions: SessionFields) -> Agent:
    return Agent(calls=calls, sessions=sessions, folders=("~/.made-up",))


LINE = {"in": 100, "out": 7, "who": {"dir": ""}, "t": SECONDS}


def test_agent_without_a_reader_is_added_by_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields may have another type, and a number may be text."""
    calls = CallFields(files=("{id}/log.jsonl",), input=("in", "prompt"), output="out", at="t")
    row = made_up(calls, SessionFields(folder="who.dir"))
    monkeypatch.setitem(all_agents(), "pi", row)
    world = World(tmp_path, "pi")
    path = world.folder / "s" / "log.jsonl"
    here = {"who": {"dir": str(world.root)}}
    append(path, LINE | here, {"in": [], "t": SECONDS + 1}, {"prompt": "30", "t": SECONDS + 2})
    assert calls_of(world) == [("s", Tokens(30)), ("s", Tokens(100, output=7))]
    append(path, {"in": 50, "t": "bad"}, {"who": 5, "in": 60})
    path.write_bytes(path.read_bytes() + b"broken\n")
    assert len(calls_of(world)) == 4
    assert world.skipped[str(path)] == 3


def test_table_of_records_may_describe_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then `sessions` has no `file`. A session that the agent deletes is no longer listed."""
    calls = CallFields(
        files=("state.db",),
        rows="chat",
        session="id",
        at="updated",
        model="model",
        input="size",
        output="out",
        has_totals=True,
    )
    row = made_up(calls, SessionFields(folder="dir", title="name"))
    monkeypatch.setitem(all_agents(), "vibe", row)
    world = World(tmp_path, "vibe")
    database = Database(
        world.folder / "state.db",
        "CREATE TABLE chat (id TEXT PRIMARY KEY, dir, name, model, size, out, updated)",
    )
    for number, name in enumerate(("first", "second"), 1):
        chat = {"dir": str(world.root), "name": name, "model": "gpt-5", "updated": SECONDS}
        database.write("chat", id=str(number), size=100 * number, out=5, **chat)
    assert sorted((one.id, one.title) for one in world.shown()) == [("1", "first"), ("2", "second")]
    database.run("DELETE FROM chat WHERE id = '1'")
    assert [one.title for one in world.shown()] == ["second"]
    assert [one[1].fresh for one in calls_of(world)] == [100, 200]


def test_fork_of_an_agent_without_a_reader_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = Agent(reader="gptme", folders=("~/.made-up",))
    monkeypatch.setitem(all_agents(), "continue", fork)
    world = World(tmp_path, "continue")
    write_files(world, "gptme")
    assert calls_of(world) == [("s", Tokens(100, 40, output=7))]
    assert [(one.source, one.title) for one in world.shown()] == [("continue", "Named")]
    unknown = Agent(reader="gptmee", folders=("~/.made-up",))
    monkeypatch.setitem(all_agents(), "continue", unknown)
    with pytest.raises(ValueError, match="gptmee, which is not in known_agents"):
        World(tmp_path, "continue")


def test_folder_may_be_inside_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gptme writes `~` for it."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    world = World(tmp_path, "gptme")
    write_files(world, "gptme")
    config = world.folder / "logs" / "s" / "config.toml"
    config.write_text(f'[chat]\nworkspace = "~/{world.root.relative_to(tmp_path)}"\n')
    assert [one.folder for one in world.shown()] == [str(world.root)]
