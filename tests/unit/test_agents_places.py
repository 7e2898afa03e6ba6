"""Tests how agents' sessions are found, updated and watched: variables, settings, links and copies.

The cases of variables and settings follow the agents' own code; `docs/reference/agents.md` names the versions.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
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
from sidecar.agents.reader_registry import Sources, paths_to_watch, readers_here, readers_of
from sidecar.agents.session_events import StoredSession
from sidecar.config.settings import Agents
from sidecar.known_agents import all_agents
from sidecar.project.file_watcher import Changes, FileWatcher
from sidecar.project.footprint import find_all_footprints, sent_files
from sidecar.workspace import agent_sessions
from tests.cases import read_cases, read_rows
from tests.unit.agents_world import Editor, World, forks_of

AT = "2026-11-20T10:00:0{}.000Z"


def sources(home: Path, agent: str, project: Path, env: dict[str, str] | None = None) -> Sources:
    settings, roots = Agents(sources=(agent,)), Roots.of([project])
    places = Places.of(settings, {"HOME": str(home), **(env or {})}, roots.paths)
    return Sources(readers_here(settings, places, roots), places, roots)


def found(home: Path, agent: str, project: Path, env: dict[str, str] | None = None) -> list[str]:
    stores = sources(home, agent, project, env).stores(mine=False)
    return sorted(os.path.relpath(store.path, home) for store in stores)


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("case", read_cases("agent_variables", tuple[str, str, str, str]))
def test_sessions_are_found_where_a_variable_says(
    tmp_path: Path, case: tuple[str, str, str, str]
) -> None:
    agent, variable, value, file = case
    folders = [str(tmp_path / one.strip()) for one in value.split(",")]
    expected = [str(write(Path(one, file) if file else Path(one))) for one in folders]
    shown = found(tmp_path, agent, tmp_path / "p", {variable: ",".join(folders)})
    assert shown == sorted(os.path.relpath(path, tmp_path) for path in expected)


def test_folder_whose_name_has_a_comma_is_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "a,b" / "projects" / "-p" / "s.jsonl")
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path / "a,b")}
    assert found(tmp_path, "claude-code", tmp_path, env) == ["a,b/projects/-p/s.jsonl"]


def test_crush_list_is_found_where_its_variable_says(tmp_path: Path) -> None:
    project = tmp_path / "p"
    write(project / ".crush" / "crush.db")
    listed = {"projects": [{"path": str(project), "data_dir": str(project / ".crush")}]}
    write(tmp_path / "x" / "projects.json", listed)
    env = {"CRUSH_GLOBAL_DATA": str(tmp_path / "x")}
    assert found(tmp_path, "crush", project, env) == ["p/.crush/crush.db"]


@pytest.mark.parametrize("value", ["chat.md", "notes/chat.md"])
def test_aider_history_is_found_where_its_variable_says(tmp_path: Path, value: str) -> None:
    project = tmp_path / "p"
    path = write(project / value)
    sources_ = sources(tmp_path, "aider", project, {"AIDER_CHAT_HISTORY_FILE": value})
    assert [store.path for store in sources_.stores()] == [str(path)]
    assert [store.path for store in sources_.stores_at([str(path)])] == [str(path)]


@pytest.mark.parametrize("agent", ["opencode", "kilo-code"])
def test_relative_database_is_in_the_data_folder(tmp_path: Path, agent: str) -> None:
    name = {"opencode": "opencode", "kilo-code": "kilo"}[agent]
    write(tmp_path / ".local" / "share" / name / "mine.sqlite")
    variable = {"opencode": "OPENCODE_DB", "kilo-code": "KILO_DB"}[agent]
    shown = found(tmp_path, agent, tmp_path, {variable: "mine.sqlite"})
    assert shown == [f".local/share/{name}/mine.sqlite"]
    assert found(tmp_path, agent, tmp_path, {variable: ":memory:"}) == []


QWEN = '{"advanced": {"runtimeOutputDir": "%s"}, // comment\n}'
PI = '{"sessionDir": "%s"}'
VIBE = '[session_logging]\nsave_dir = "%s"\n'
SETTINGS = [
    ("pi", ".pi/agent/settings.json", PI, "~/mine", "mine/a.jsonl"),
    ("pi", "p/.pi/settings.json", PI, ".pi/sessions", "p/.pi/sessions/a.jsonl"),
    ("pi", ".pi/agent/settings.json", PI, "here", "p/here/a.jsonl"),
    ("qwen-code", ".qwen/settings.json", QWEN, "~/out", "out/projects/-p/chats/a.jsonl"),
    ("qwen-code", "p/.qwen/settings.json", QWEN, ".qwen", "p/.qwen/projects/-p/chats/a.jsonl"),
    ("vibe", ".vibe/config.toml", VIBE, "~/log", "log/unified/a/meta.json"),
    ("vibe", ".vibe/config.toml", VIBE, "~/log", "log/session_a/meta.json"),
]


@pytest.mark.parametrize(("agent", "file", "text", "value", "session"), SETTINGS)
def test_sessions_are_found_where_a_setting_says(
    tmp_path: Path, agent: str, file: str, text: str, value: str, session: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text % value)
    write(tmp_path / session)
    assert found(tmp_path, agent, tmp_path / "p") == [session]
    assert str(tmp_path / session).startswith(
        tuple(paths_to_watch(Agents(sources=(agent,)), [], _places(tmp_path, agent)))
    )


def _places(home: Path, agent: str) -> Places:
    return Places.of(Agents(sources=(agent,)), {"HOME": str(home)}, [home / "p"])


def test_settings_of_a_moved_home_count(tmp_path: Path) -> None:
    write(tmp_path / "q" / "settings.json", {"advanced": {"runtimeOutputDir": "~/out"}})
    write(tmp_path / "out" / "projects" / "-p" / "chats" / "a.jsonl")
    env = {"QWEN_HOME": str(tmp_path / "q")}
    assert found(tmp_path, "qwen-code", tmp_path, env) == ["out/projects/-p/chats/a.jsonl"]


@pytest.mark.parametrize("value", [5, None, "", [], {"a": 1}, "/", "~"])
def test_useless_setting_is_ignored(tmp_path: Path, value: object) -> None:
    write(tmp_path / ".pi" / "agent" / "settings.json", {"sessionDir": value})
    write(tmp_path / ".pi" / "agent" / "sessions" / "--p--" / "a.jsonl")
    assert found(tmp_path, "pi", tmp_path / "p") == [".pi/agent/sessions/--p--/a.jsonl"]


@pytest.mark.parametrize("variable", ["QWEN_DATA_DIR", "OPENCODE_DATA_DIR", "AMP_DATA_DIR"])
def test_variables_that_no_agent_reads_are_ignored(tmp_path: Path, variable: str) -> None:
    agent, file = {
        "QWEN_DATA_DIR": ("qwen-code", ".qwen/projects/-p/chats/a.jsonl"),
        "OPENCODE_DATA_DIR": ("opencode", ".local/share/opencode/opencode.db"),
        "AMP_DATA_DIR": ("amp", ".local/share/amp/threads/T-a.json"),
    }[variable]
    write(tmp_path / file)
    assert found(tmp_path, agent, tmp_path, {variable: str(tmp_path / "x")}) == [file]


# Links

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege")
CODEX_SESSIONS = ".codex/sessions"
LINKED = [
    ("codex", CODEX_SESSIONS, "2026/11/20/rollout-a.jsonl", "2026"),
    ("codex", CODEX_SESSIONS, "2026/11/20/rollout-a.jsonl", "2026/11/20"),
    ("kimi-code", ".kimi-code/sessions", "wd_p/session_a/agents/main/wire.jsonl", "wd_p"),
    ("qwen-code", ".qwen/projects", "-p/chats/a.jsonl", "-p/chats"),
    ("gemini-cli", ".gemini/tmp", "p/chats/session-a.jsonl", "p"),
    ("claude-code", ".claude/projects", "-p/a.jsonl", "-p"),
    ("continue", ".continue/sessions", "a.json", "a.json"),
    ("amp", ".local/share/amp/threads", "T-a.json", "T-a.json"),
]


@needs_links
@pytest.mark.parametrize(("agent", "folder", "session", "linked"), LINKED)
def test_linked_folders_and_files_are_followed(
    tmp_path: Path, agent: str, folder: str, session: str, linked: str
) -> None:
    top, outside = tmp_path / folder, tmp_path / "outside"
    write(outside / session)
    (top / linked).parent.mkdir(parents=True, exist_ok=True)
    (top / linked).symlink_to(outside / linked)
    assert found(tmp_path, agent, tmp_path) == [f"{folder}/{session}"]


@needs_links
def test_a_folder_reached_by_several_ways_counts_once(tmp_path: Path) -> None:
    top = tmp_path / CODEX_SESSIONS
    write(top / "2026" / "rollout-a.jsonl")
    write(tmp_path / "outside" / "rollout-b.jsonl")
    for link, target in (
        ("again", top / "2026"), ("2026/loop", top), ("2026/home", tmp_path), ("self", top / "self"),
        ("x", tmp_path / "outside"), ("y", tmp_path / "outside"), ("gone", tmp_path / "no"),
        ("rollout-c.jsonl", top / "2026" / "rollout-a.jsonl"), ("root", Path("/")),
    ):  # fmt: skip
        (top / link).symlink_to(target)
    (tmp_path / ".codex" / "archived_sessions").symlink_to(top)
    shown = found(tmp_path, "codex", tmp_path)
    assert len(shown) == 2
    assert f"{CODEX_SESSIONS}/2026/rollout-a.jsonl" in shown
    env = {"CODEX_HOME": f"{tmp_path}/.codex,{tmp_path}/link"}
    (tmp_path / "link").symlink_to(tmp_path / ".codex")
    assert found(tmp_path, "codex", tmp_path, env) == shown


@needs_links
def test_self_link_among_projects_hides_no_session(tmp_path: Path) -> None:
    projects = tmp_path / ".claude" / "projects"
    write(projects / "-p" / "a.jsonl")
    (projects / "self").symlink_to(projects / "self")
    assert found(tmp_path, "claude-code", tmp_path) == [".claude/projects/-p/a.jsonl"]


@needs_links
def test_linked_folder_is_watched(tmp_path: Path) -> None:
    top = tmp_path / ".pi" / "agent" / "sessions"
    path = write(tmp_path / "outside" / "a.jsonl")
    top.mkdir(parents=True)
    (top / "--p--").symlink_to(path.parent)
    watched = sources(tmp_path, "pi", tmp_path)
    (reader,) = watched.readers
    assert str(top / "--p--") in reader.folders(watched.places)
    stores = watched.stores_at([str(top / "--p--" / "a.jsonl")])
    assert [store.path for store in stores] == [str(top / "--p--" / "a.jsonl")]


# Copies


def pi_message(name: str | None, tokens: int) -> dict[str, Any]:
    usage = {"input": tokens, "output": 10, "cacheRead": 0, "cacheWrite": 0}
    message = {"role": "assistant", "model": "kimi-k3", "usage": usage, "stopReason": "stop"}
    return {"type": "message", "id": name, "timestamp": AT.format(2), "message": message}


def pi_header(root: Path) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": "s", "timestamp": AT.format(0), "cwd": str(root)}


@pytest.mark.parametrize(
    "copy",
    [
        [{**pi_message(None, 500), "type": "message_end"}],
        [{**pi_message(None, 500), "recordType": "message", "type": None}],
        [pi_message("m1", 500)],
        ["header", {**pi_message(None, 500), "type": "message_end"}],
        ["header", {**pi_message(None, 500), "type": "turn_end"}],
    ],
)
def test_pi_side_files_are_not_sessions(tmp_path: Path, copy: list[Any]) -> None:
    world = World(tmp_path, "pi")
    sessions = tmp_path / ".pi" / "agent" / "sessions" / "--p--"
    header = pi_header(world.root)
    write(sessions / "s.jsonl", header, pi_message("m1", 500))
    lines = [header if line == "header" else line for line in copy]
    write(sessions / "subagent-artifacts" / "run_worker_transcript.jsonl", *lines)
    write(sessions / "exports" / "run.jsonl", *lines)
    world.ingest()
    assert len(world.recorded()) == 1
    assert list(world.sessions()) == ["s"]


def qwen_lines(root: Path, session: str, telemetry: dict[str, Any] | None) -> list[dict[str, Any]]:
    line = {"sessionId": session, "cwd": str(root)}
    usage = {"promptTokenCount": 700, "candidatesTokenCount": 20, "totalTokenCount": 720}
    event = {"event.name": "qwen-code.api_response", "prompt_id": f"{session}########1",
             "input_token_count": 700, "output_token_count": 20, "total_token_count": 720,
             **(telemetry or {})}  # fmt: skip
    return [
        {**line, "uuid": "u", "type": "user", "timestamp": AT.format(1)},
        *([{**line, "uuid": "t", "type": "system", "subtype": "ui_telemetry",
            "timestamp": AT.format(2), "model": "qwen3", "systemPayload": {"uiEvent": event}}]
          if telemetry is not None else []),
        {**line, "uuid": "a", "type": "assistant", "timestamp": AT.format(3), "model": "qwen3",
         "usageMetadata": usage},
    ]  # fmt: skip


@pytest.mark.parametrize("telemetry", [None, {}, {"response_id": "chatcmpl-1"}])
def test_qwen_fork_repeats_no_call(tmp_path: Path, telemetry: dict[str, Any] | None) -> None:
    world = World(tmp_path, "qwen-code")
    chats = tmp_path / ".qwen" / "projects" / "-p" / "chats"
    write(chats / "one.jsonl", *qwen_lines(world.root, "one", telemetry))
    for source, name in (("one", "two"), ("two", "three")):
        copied = qwen_lines(world.root, name, telemetry)
        origins = [{"sessionId": source, "messageUuid": line["uuid"]} for line in copied]
        lines = [
            line | {"forkedFrom": origin} for line, origin in zip(copied, origins, strict=True)
        ]
        write(chats / f"{name}.jsonl", *lines)
    world.ingest()
    assert {name for name, _ in world.recorded().values()} == {"one"}
    assert len(world.recorded()) == 1
    assert sorted(world.sessions()) == ["one", "three", "two"]


def test_qwen_side_files_are_not_sessions(tmp_path: Path) -> None:
    chats = tmp_path / ".qwen" / "projects" / "-p" / "chats"
    for name in ("a.jsonl", "a.ledger.jsonl", "a.runtime.json", "archive/b.jsonl",
                 "archive/b.ledger.jsonl"):  # fmt: skip
        write(chats / name)
    shown = found(tmp_path, "qwen-code", tmp_path)
    assert [Path(path).name for path in shown] == ["a.jsonl", "b.jsonl"]


def test_qwen_session_is_found_again_after_it_was_archived(tmp_path: Path) -> None:
    world = World(tmp_path, "qwen-code")
    chats = tmp_path / ".qwen" / "projects" / "-p" / "chats"
    path = write(chats / "one.jsonl", *qwen_lines(world.root, "one", None))
    world.ingest()
    (chats / "archive").mkdir()
    path.rename(chats / "archive" / path.name)
    world.ingest()
    assert len(world.recorded()) == 1
    assert list(world.sessions()) == ["one"]


@pytest.mark.parametrize("message", [None, "chatcmpl-1"])
def test_kimi_fork_repeats_no_call(tmp_path: Path, message: str | None) -> None:
    """Kimi CLI's fork copies the lines unchanged into a new session's folder."""
    world = World(tmp_path, "kimi-cli")
    tokens = {"input_other": 500, "output": 20, "input_cache_read": 0, "input_cache_creation": 0}
    payload = {"token_usage": tokens, "message_id": message}
    line = {"timestamp": 1795168804.25, "message": {"type": "StatusUpdate", "payload": payload}}
    for name in ("one", "two"):
        write(tmp_path / ".kimi" / "sessions" / "0" / name / "wire.jsonl", line)
    world.ingest()
    assert len(world.recorded()) == 1


@pytest.mark.parametrize(
    ("variable", "file"),
    [
        ("GEMINI_CLI_HOME", ".gemini/GEMINI.md"),
        ("QWEN_HOME", "QWEN.md"),
        ("PI_CODING_AGENT_DIR", "AGENTS.md"),
        ("XDG_CONFIG_HOME", "opencode/AGENTS.md"),
        ("CODEX_HOME", "AGENTS.md"),
    ],
)
def test_own_prompt_file_is_found_where_a_variable_says(
    tmp_path: Path, variable: str, file: str
) -> None:
    path = write(tmp_path / "x" / file, {"a": 1})
    places = Places.of(Agents(), {"HOME": str(tmp_path), variable: str(tmp_path / "x")})
    (tmp_path / "p").mkdir()
    assert [one.path for one in sent_files(find_all_footprints(tmp_path / "p", places))] == [
        str(path)
    ]


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
    await editor.read_changed(session.path)
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
    events = list[str]()
    editor.services.listeners.append(lambda event: events.append(event.what))
    look = partial(editor.read_changed, store.path)
    await look()
    assert events.count("calls") == 1
    await look()
    assert events.count("calls") == 1
    store.session(name, 4)
    await look()
    assert events.count("calls") == 2
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
