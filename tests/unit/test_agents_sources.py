"""Tests the agents that cannot be run here: readers of formats from public sources, and agents whose
files are described by fields in `known_agents.toml`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.truth import Tokens, append
from sidecar.agents import compressed, databases
from sidecar.agents.file_reading import parse_time
from sidecar.agents.reader_registry import survey
from sidecar.agents.readers import cursor as cursor_reader
from sidecar.agents.record_reader import NO_CONTEXT
from sidecar.known_agents import Agent, CallFields, SessionFields, all_agents
from sidecar.operating_system import HOME_VARIABLE
from tests.cases import read_table
from tests.unit.agents_world import World

SECONDS = 1_795_000_000


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


def calls_of(world: World) -> list[tuple[str, str | None, int, int, int]]:
    """Return the category, the model and the numbers of the recorded calls."""
    world.ingest()
    assert len(world.recorded()) == len({call.request_id for call in world.calls})
    return [
        (one.category, one.model, one.buckets.prompt, one.buckets.cache_read,
         one.buckets.completion)
        for one in {call.request_id: call for call in world.calls}.values()
    ]  # fmt: skip


class Junie:
    """A session of Junie."""

    def __init__(self, world: World) -> None:
        self.path = world.folder / "sessions" / "session-261120-100000-abcd" / "events.jsonl"
        self.time = SECONDS * 1000

    def event(self, kind: str, state: str = "IN_PROGRESS", **fields: Any) -> None:
        self.time += 1000
        event = {"state": state, "agentEvent": {"kind": kind, **fields}}
        line = {"kind": "SessionA2uxEvent", "event": event, "taskId": "t"}
        append(self.path, line | {"timestampMs": self.time})

    def reply(self, *usages: dict[str, Any], kind: str = "MainAgent") -> None:
        self.event("LlmResponseMetadataEvent", agent={"kind": kind}, modelUsage=usages)


def usage(model: str, size: int, output: int, read: int = 0) -> dict[str, Any]:
    numbers = {"inputTokens": size, "cacheInputTokens": read, "cacheCreateTokens": 4}
    return {"model": model, "cost": 0.5, **numbers, "outputTokens": output}


def test_junie_replies_may_have_several_calls(tmp_path: Path) -> None:
    world = World(tmp_path, "junie")
    junie = Junie(world)
    junie.event("CurrentDirectoryUpdatedEvent", currentDirectory=str(world.root))
    append(junie.path, {"kind": "UserPromptEvent", "timestampMs": junie.time})
    (shown,) = world.shown()
    assert shown.active
    junie.reply(usage("gpt-5.6-sol", 3, 186, 18_688), usage("gpt-5-mini", 30, 2))
    junie.reply(usage("gpt-5.6-sol", 900, 1), kind="SubAgent")
    (shown,) = world.shown()
    assert (shown.tokens, shown.model) == (18_695 + 186, "gpt-5.6-sol")
    junie.event("ContextWindowReportEvent", used=11_766, size=1_048_576)
    junie.event("TaskState", state="COMPLETED")
    (shown,) = world.shown()
    assert (shown.tokens, shown.limit, shown.active) == (11_766, 1_048_576, False)
    assert calls_of(world) == [
        ("main", "gpt-5.6-sol", 18_695, 18_688, 186),
        ("main", "gpt-5-mini", 34, 0, 2),
        ("subagent", "gpt-5.6-sol", 904, 0, 1),
    ]
    assert {call.agent_cost for call in world.calls} == {Decimal("0.5")}


def test_openhands_state_has_a_list_of_calls(tmp_path: Path) -> None:
    world = World(tmp_path, "openhands")
    path = world.folder / "conversations" / "ab" / "base_state.json"
    path.parent.mkdir(parents=True)
    tokens = {"model": "openai/gpt-5.2-codex", "prompt_tokens": 22_853, "completion_tokens": 341}
    tokens |= {"cache_read_tokens": 11_402, "context_window": 272_000}
    summary = {"token_usages": [{"model": "gpt-5", "prompt_tokens": 5, "response_id": "c"}]}
    task = {"token_usages": [{"model": "gpt-5", "prompt_tokens": 7, "response_id": "d"}]}
    ids = ["a", "b"]
    for status, count in (("running", 1), ("finished", 2)):
        usages = [{**tokens, "response_id": name} for name in ids[:count]]
        costs = [{"cost": 0.25, "timestamp": SECONDS + number} for number in range(count)]
        metrics = {"agent": {"token_usages": usages, "costs": costs}, "condenser": summary}
        metrics["task:1"] = task
        state = {"workspace": {"working_dir": str(world.root)}, "execution_status": status}
        path.write_text(json.dumps(state | {"stats": {"usage_to_metrics": metrics}}))
        (shown,) = world.shown()
        assert (shown.tokens, shown.limit) == (22_853 + 341, 272_000)
        assert shown.active is (status == "running")
    main = ("main", "gpt-5.2-codex", 22_853, 11_402, 341)
    others = [("summary", "gpt-5", 5, 0, 0), ("subagent", "gpt-5", 7, 0, 0)]
    assert calls_of(world) == [main, *others, main]
    assert {call.provider for call in world.calls} == {"openai"}


def test_grok_build_turns_count_by_their_last_line(tmp_path: Path) -> None:
    world = World(tmp_path, "grok-build")
    folder = world.folder / "sessions" / "%2Fp" / "s"
    folder.mkdir(parents=True)
    about = {"info": {"id": "s", "cwd": str(world.root)}, "current_model_id": "grok-5"}
    named = {"generated_title": "Named", "head_branch": "main"}
    (folder / "summary.json").write_text(json.dumps(about | named))
    for output in (5, 9):
        numbers = {"inputTokens": 100, "cachedReadTokens": 40, "outputTokens": output}
        update = {"sessionUpdate": "turn_completed", "prompt_id": "p", "usage": numbers}
        line = {"timestamp": SECONDS, "method": "session/update", "params": {"update": update}}
        append(folder / "updates.jsonl", line)
        world.ingest()
    assert world.recorded() == {"s/p": ("s", Tokens(60, 40, output=9))}
    assert {(one.at, one.is_copy) for one in world.calls} == {(parse_time(SECONDS), False)}
    signals = {"contextTokensUsed": 4_000, "contextWindowTokens": 256_000}
    (folder / "signals.json").write_text(json.dumps(signals))
    (shown,) = world.shown()
    assert (shown.tokens, shown.limit, shown.model) == (4_000, 256_000, "grok-5")
    assert (shown.title, shown.branch, shown.active) == ("Named", "main", False)


class Grok:
    """A session of Grok Build."""

    def __init__(self, world: World, name: str = "s", **about: object) -> None:
        self.name, self.home = name, world.folder
        self.folder = world.folder / "sessions" / "%2Fp" / name
        self.folder.mkdir(parents=True)
        summary = {"info": {"id": name, "cwd": str(world.root)}, "current_model_id": "grok-5"}
        (self.folder / "summary.json").write_text(json.dumps(summary | about))
        self.ms = SECONDS * 1000

    def log(self, prompt: int, read: int, output: int) -> None:
        self.ms += 1000
        numbers = {"prompt_tokens": prompt, "cached_prompt_tokens": read}
        numbers |= {"completion_tokens": output, "reasoning_tokens": 1}
        at = datetime.fromtimestamp(self.ms / 1000, UTC).isoformat()
        line = {"ts": at, "sid": self.name, "msg": "shell.turn.inference_done", "ctx": numbers}
        append(self.home / "logs/unified.jsonl", {"ts": at, "msg": "prompt received"})
        append(self.home / "logs/unified.jsonl", line)

    def update(self, kind: str, **fields: object) -> None:
        self.ms += 1000
        params = {"update": {"sessionUpdate": kind, **fields}}
        meta = {"_meta": {"agentTimestampMs": self.ms}}
        append(self.folder / "updates.jsonl", {"timestamp": SECONDS, "params": params | meta})

    def end_turn(self, prompt: int, read: int, output: int, name: str = "p") -> None:
        numbers = {"inputTokens": prompt, "cachedReadTokens": read, "outputTokens": output}
        usage = numbers | {"reasoningTokens": 2}
        self.update("turn_completed", prompt_id=name, usage=usage)


@pytest.mark.parametrize("live", [True, False])
def test_grok_build_calls_are_in_its_log(tmp_path: Path, live: bool) -> None:
    world = World(tmp_path, "grok-build")
    grok = Grok(world)
    grok.update("user_message_chunk")
    grok.log(100, 40, 5)
    grok.update("tool_call")
    if live:
        (shown,) = world.shown()
        assert (shown.tokens, shown.active, shown.quality) == (105, True, "exact")
    grok.log(120, 60, 7)
    grok.end_turn(220, 100, 12)
    grok.log(140, 0, 9)
    grok.end_turn(140, 0, 9, "q")
    (shown,) = world.shown()
    assert (shown.tokens, shown.active) == (149, False)
    assert calls_of(world) == [
        ("main", "grok-5", 100, 40, 5),
        ("main", "grok-5", 120, 60, 7),
        ("main", "grok-5", 140, 0, 9),
    ]
    grok.update("auto_compact_completed")
    (shown,) = world.shown()
    assert (shown.tokens, shown.compacted) == (None, True)


def test_grok_build_calls_that_left_the_log_are_the_rest_of_their_turn(tmp_path: Path) -> None:
    world = World(tmp_path, "grok-build")
    grok = Grok(world)
    grok.log(120, 60, 7)
    grok.end_turn(220, 100, 12)
    (grok.folder / "signals.json").write_text(json.dumps({"contextTokensUsed": 4_000}))
    (shown,) = world.shown()
    assert (shown.tokens, shown.quality, shown.error_percent) == (4_000, "estimate", 25)
    assert calls_of(world) == [("main", "grok-5", 120, 60, 7), ("main", "grok-5", 100, 40, 5)]
    (grok.home / "logs/unified.jsonl").unlink()
    grok.end_turn(30, 0, 3, "q")
    assert calls_of(world)[2:] == [("main", "grok-5", 30, 0, 3)]


def test_grok_build_subagents_are_part_of_their_session(tmp_path: Path) -> None:
    world = World(tmp_path, "grok-build")
    grok, child = Grok(world), Grok(world, "child", session_kind="subagent")
    (grok.folder / "subagents/child").mkdir(parents=True)
    grok.log(100, 0, 1)
    child.log(30, 0, 1)
    child.end_turn(30, 0, 1)
    totals = {"session": {"inputTokens": 30, "outputTokens": 1, "reasoningTokens": 1}}
    (child.folder / "usage.json").write_text(json.dumps(totals))
    grok.update("subagent_finished", child_session_id="child")
    grok.end_turn(130, 0, 2)
    assert set(calls_of(world)) == {
        ("main", "grok-5", 100, 0, 1),
        ("subagent", "grok-5", 30, 0, 1),
    }
    assert {call.session for call in world.calls} == {"s"}
    (shown,) = world.shown()
    assert [(one.tokens) for one in shown.subagents] == [31]


def field(number: int, value: int | bytes | str) -> bytes:
    """Encode a field in protobuf."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def generation(size: int, output: int, read: int, model: str | None, response: str) -> bytes:
    used = field(1, 1132) + field(2, size) + field(3, output)
    used += (field(5, read) if read else b"") + field(11, response)
    times = field(9, field(4, field(1, SECONDS) + field(2, 5_000_000)))
    chat = field(4, used) + times + (field(19, model) if model else b"") + b"\x7d1234"
    return field(1, chat) + field(2, b"\x01")


class Antigravity:
    """A conversation of Antigravity CLI."""

    def __init__(self, world: World, inner: str = "conversations") -> None:
        self.home = world.home / ".gemini" / "antigravity-cli"
        self.database = Database(
            self.home / inner / "c.db",
            "CREATE TABLE gen_metadata (idx INTEGER PRIMARY KEY, data BLOB, size);"
            "CREATE TABLE trajectory_metadata_blob (id TEXT PRIMARY KEY, data BLOB);",
        )

    def add(self, number: int, data: bytes) -> None:
        self.database.write("gen_metadata", idx=number, data=data, size=len(data))


def test_antigravity_calls_are_read_by_the_numbers_of_their_fields(tmp_path: Path) -> None:
    world = World(tmp_path, "antigravity-cli")
    made = Antigravity(world)
    made.add(0, generation(300, 20, 0, "gemini-3-pro", "r0"))
    about = field(1, field(1, world.root.as_uri())) + field(2, field(1, SECONDS - 60))
    made.database.write("trajectory_metadata_blob", id="main", data=about)
    (shown,) = world.shown()
    assert (shown.tokens, shown.model) == (320, "gemini-3-pro")
    made.add(1, generation(2**20, 30, 300, None, "r1"))
    (shown,) = world.shown()
    assert (shown.tokens, shown.model) == (2**20 + 330, "gemini-3-pro")
    assert calls_of(world) == [
        ("main", "gemini-3-pro", 300, 0, 20),
        ("main", "gemini-3-pro", 2**20 + 300, 300, 30),
    ]
    assert {call.workspace for call in world.calls} == {str(world.root)}


def test_antigravity_history_names_the_folder(tmp_path: Path) -> None:
    world = World(tmp_path, "antigravity-cli")
    made = Antigravity(world)
    append(made.home / "history.jsonl", {"conversationId": "c", "workspace": str(world.root)})
    made.add(0, generation(300, 20, 0, "gemini-3-pro", "r0"))
    assert [one.tokens for one in world.shown()] == [320]


def test_antigravity_background_conversations_are_subagents(tmp_path: Path) -> None:
    world = World(tmp_path, "antigravity-cli")
    Antigravity(world, "implicit").add(0, generation(300, 20, 0, "gemini-3-pro", "r0"))
    assert [one[0] for one in calls_of(world)] == ["subagent"]


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, field(1, field(4, field(40, 7))), b"\x0a\xff"])
def test_doctor_says_that_antigravity_changed_its_layout(tmp_path: Path, data: bytes) -> None:
    world = World(tmp_path, "antigravity-cli")
    Antigravity(world).add(0, data)
    (found,) = survey(world.readers, world.places)
    assert found.problem is not None
    assert "unknown layout" in found.problem


EVENTS = (
    "CREATE TABLE transcript_events (session_id, seq, event_json TEXT, event_zstd BLOB,"
    " created_at, PRIMARY KEY (session_id, seq));"
    "CREATE TABLE session_nodes (session_key, current_session_id, entry_json, status);"
)


def openclaw(world: World) -> Database:
    agent = world.home / ".openclaw" / "agents" / "main" / "agent"
    return Database(agent / "openclaw-agent.sqlite", EVENTS)


def test_openclaw_events_are_pis_entries(tmp_path: Path) -> None:
    """An event is text, or the same text compressed."""
    world = World(tmp_path, "openclaw")
    database = openclaw(world)
    models = [{"id": "claude-sonnet-5", "contextWindow": 150_000}]
    settings = {"models": {"providers": {"anthropic": {"models": models}}}}
    (world.home / ".openclaw/openclaw.json").write_text(json.dumps(settings))
    time = "2026-11-20T10:00:0{}.000Z"
    events: list[dict[str, Any]] = [{"type": "session", "id": "s", "cwd": str(world.root)}]
    for number in (1, 2, 3):
        numbers = {"input": 100 * number, "output": 7, "cacheRead": 40, "cacheWrite1h": 0}
        reply = {"role": "assistant", "model": "claude-sonnet-5", "stopReason": "stop"}
        message: dict[str, Any] = {**reply, "usage": {**numbers, "cost": {"total": 0.5}}}
        entry = {"type": "message", "id": str(number), "parentId": str(number - 1)}
        events.append(entry | {"message": message})
    events[1]["parentId"] = None
    database.write("session_nodes", current_session_id="s", status="running")
    for number, event in enumerate(events):
        text = json.dumps(event | {"timestamp": time.format(number)})
        data = compressed.zstd.compress(text.encode()) if number == 2 else None
        columns = {"event_json": None if data else text, "event_zstd": data}
        database.write("transcript_events", session_id="s", seq=number, **columns)
        world.ingest()
    assert calls_of(world) == [
        ("main", "claude-sonnet-5", 100 * number + 40, 40, 7) for number in (1, 2, 3)
    ]
    (shown,) = world.shown()
    assert (shown.tokens, shown.active, shown.limit) == (347, True, 150_000)


def test_damaged_openclaw_events_hide_no_others(tmp_path: Path) -> None:
    world = World(tmp_path, "openclaw")
    database = openclaw(world)
    message = {"role": "assistant", "model": "gpt-5", "usage": {"input": 5, "output": 6}}
    entry = {"type": "message", "id": "a", "timestamp": "2026-11-20T10:00:00Z"}
    text = json.dumps(entry | {"message": message})
    header = json.dumps({"type": "session", "id": "s", "cwd": str(world.root)})
    bomb = compressed.zstd.compress(b"{" * (65 << 20))
    database.write("transcript_events", session_id="s", seq=0, event_json=header)
    database.write("transcript_events", session_id="s", seq=9, event_json=text)
    for number, data in enumerate((b"not compressed", bomb, b""), 1):
        database.write("transcript_events", session_id="s", seq=number, event_zstd=data)
    odd: list[tuple[object, object]] = [("s", "x"), ("s", None), (None, 1), (b"\xff", 2), (5, 5)]
    for name, place in odd:
        database.write("transcript_events", session_id=name, seq=place, event_json=text)
    assert calls_of(world) == [("main", "gpt-5", 5, 0, 6)]
    assert [one.id for one in world.shown()] == ["s"]
    assert sum(world.skipped.values()) == 2


def test_openclaw_files_of_before_are_read(tmp_path: Path) -> None:
    world = World(tmp_path, "openclaw")
    folder = world.home / ".openclaw" / "agents" / "main" / "sessions"
    message = {"role": "assistant", "model": "gpt-5", "usage": {"input": 5, "output": 6}}
    for name in ("a.jsonl", "b.jsonl.reset.2026", "c.json"):
        append(
            folder / name,
            {"type": "session", "id": name, "cwd": str(world.root), "timestamp": "2026-01-01"},
            {"type": "message", "id": name, "timestamp": "2026-01-01", "message": message},
        )
    assert {one.id: one.tokens for one in world.shown()} == {
        "a.jsonl": 11,
        "b.jsonl.reset.2026": 11,
    }


class Cursor:
    """Cursor's database."""

    def __init__(self, world: World) -> None:
        self.user = world.folder
        self.path = world.folder / "globalStorage" / "state.vscdb"
        table = "CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);"
        self.database = Database(self.path, table)

    def write(self, key: str, **value: Any) -> None:
        self.database.write("cursorDiskKV", key=key, value=json.dumps(value))


def test_cursor_has_contexts_without_calls(tmp_path: Path) -> None:
    world = World(tmp_path, "cursor")
    cursor = Cursor(world)
    folder = cursor.user / "workspaceStorage" / "w"
    folder.mkdir(parents=True)
    (folder / "workspace.json").write_text(json.dumps({"folder": world.root.as_uri()}))
    about: dict[str, Any] = {"name": "Named", "createdAt": SECONDS * 1000}
    about |= {"modelConfig": {"modelName": "gpt-5"}, "contextTokenLimit": 272_000}
    there = {"uri": {"scheme": "file", "path": world.root.as_posix()}}
    for size in (1_000, 2_500):
        cursor.write("composerData:a", **about, contextTokensUsed=size, workspaceIdentifier=there)
        (shown,) = world.shown()
        assert (shown.id, shown.tokens, shown.limit) == ("a", size, 272_000)
    assert (shown.title, shown.model, shown.quality) == ("Named", "gpt-5", "estimate")
    cursor.write("composerData:b", **about, workspaceIdentifier={"id": "w"})
    cursor.write("composerData:c", **about, workspaceIdentifier=there, subagentInfo={"a": 1})
    cursor.write("composerData:d", workspaceIdentifier=there)
    cursor.write("bubbleId:a:b", tokenCount={"inputTokens": 5})
    assert {one.id: one.tokens for one in world.shown()} == {"a": 2_500, "b": None}
    with closing(sqlite3.connect(cursor.path)) as db:
        db.execute("DELETE FROM cursorDiskKV WHERE key = 'composerData:b'")
        db.commit()
    assert [one.id for one in world.shown()] == ["a"]
    assert world.recorded() == {}


def test_cursor_reads_only_the_changed_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may have gigabytes, so that no other row may be read."""
    steps, decoded = Counter[str](), list[bytes]()
    connect, decode = databases._connect, cursor_reader._conversation

    def counting_connect(uri: str) -> sqlite3.Connection:
        connection = connect(uri)
        connection.set_progress_handler(lambda: steps.update(["steps"]), 1)
        return connection

    def counting_decode(value: bytes) -> Any:
        decoded.append(value)
        return decode(value)

    monkeypatch.setattr(databases, "_connect", counting_connect)
    monkeypatch.setattr(cursor_reader, "_conversation", counting_decode)
    world = World(tmp_path, "cursor")
    cursor = Cursor(world)
    for name in "abcde":
        cursor.write(f"composerData:{name}", createdAt=SECONDS * 1000)
    with closing(sqlite3.connect(cursor.path)) as db:
        rows = ((f"bubbleId:{number}",) for number in range(10_000))
        db.executemany("INSERT INTO cursorDiskKV VALUES (?, '{}')", rows)
        db.commit()
    world.shown()
    assert len(decoded) == 5
    assert steps["steps"] < 1_000, "instructions of SQLite, of which a row needs at least one"
    cursor.write("composerData:c", createdAt=SECONDS * 1000, contextTokensUsed=5)
    world.shown()
    assert [b"contextTokensUsed" in one for one in decoded[5:]] == [True]


CECLI = """
# cecli chat started at 2026-11-20 10:00:00

> /bin/cecli --model openai/gpt-5 --message do it
#### do it
a reply
> 22k ◇ 50.0% ↑ 324 ↓ 22k ◇ 48.8% ↑↓
> 23k ◇ 0% ↑ 1.5k ↓ $0.0072 • 45k ◇ 24.4% ↑↓ $0.0072
"""


def test_cecli_has_a_line_for_each_call(tmp_path: Path) -> None:
    world = World(tmp_path, "cecli")
    history = world.root / ".cecli" / "chat.history"
    history.parent.mkdir()
    history.write_text(CECLI)
    (shown,) = world.shown()
    assert (shown.tokens, shown.quality, shown.error_percent) == (24_500, "estimate", 5)
    assert (shown.folder, shown.active) == (str(world.root), False)
    assert calls_of(world) == [
        ("main", "openai/gpt-5", 22_000, 11_000, 324),
        ("main", "openai/gpt-5", 23_000, 0, 1_500),
    ]
    assert {call.agent_cost for call in world.calls} == {None, Decimal("0.0072")}


FILES = read_table("agent_records")
READER = {name: one.reader or name for name, one in all_agents().items()}
WITHOUT_READER = {name for name, one in all_agents().items() if one.calls}


def recorded_tokens(world: World) -> list[tuple[str, Tokens]]:
    """Return the sessions and numbers of the recorded calls."""
    world.ingest()
    return sorted(world.recorded().values(), key=lambda one: one[1].fresh)


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
    assert recorded_tokens(world) == [("s", Tokens(100, 40, output=7))]
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
    sizes = [(one[1].fresh, one[1].output) for one in recorded_tokens(world)]
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
    assert [one[1].fresh for one in recorded_tokens(world)] == [40, 300]


def test_totals_count_once_when_the_state_is_lost(hermes: tuple[World, Database]) -> None:
    world, database = hermes
    for count in (1, 2):
        total(database, count, 100 * count, 5 * count)
        world.ingest()
    with world.ledger.transaction() as connection:
        connection.execute("UPDATE store SET state = x'00', size = 0")
    assert [one[1].fresh for one in recorded_tokens(world)] == [100, 100]


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
    assert [one[1].fresh for one in recorded_tokens(world)] == [100, 150]


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
    assert recorded_tokens(world) == [("s", Tokens(30)), ("s", Tokens(100, output=7))]
    append(path, {"in": 50, "t": "bad"}, {"who": 5, "in": 60})
    path.write_bytes(path.read_bytes() + b"broken\n")
    assert len(recorded_tokens(world)) == 4
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
    assert [one[1].fresh for one in recorded_tokens(world)] == [100, 200]


def test_fork_of_an_agent_without_a_reader_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = Agent(reader="gptme", folders=("~/.made-up",))
    monkeypatch.setitem(all_agents(), "continue", fork)
    world = World(tmp_path, "continue")
    write_files(world, "gptme")
    assert recorded_tokens(world) == [("s", Tokens(100, 40, output=7))]
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
