"""Tests the reader for Gemini CLI: each call is recorded once, and context sizes are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.gemini import Chat, GeminiHome, everyday
from sidecar.agents.stores import COMPACTED, REWOUND
from tests.unit.agents_world import World

FORMS: dict[str, dict[str, Any]] = {
    "log": {},
    "flat": {"flat": True},
    "by hash": {"legacy": True},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "gemini-cli")


@pytest.fixture
def home(world: World) -> GeminiHome:
    return GeminiHome(world.home / ".gemini")


@pytest.fixture
def chat(world: World, home: GeminiHome) -> Chat:
    return everyday(home, world.root, 3)


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_every_call_counts_once(world: World, home: GeminiHome, options: dict[str, Any]) -> None:
    """The input includes cached tokens. Two other programs add them again."""
    for turns in (1, 3):
        everyday(home, world.root, turns, **options)
    world.check(home.truth)


def test_only_new_bytes_are_read(world: World, home: GeminiHome, chat: Chat) -> None:
    world.ingest()
    size = chat.path.stat().st_size
    chat.reply()
    assert world.ingest() == chat.path.stat().st_size - size
    assert world.ingest() == 0
    world.check_calls(home.truth)


def test_flat_session_continued_as_a_log_counts_once(world: World, home: GeminiHome) -> None:
    flat = everyday(home, world.root, 2, flat=True)
    world.ingest()
    flat.resume().reply()
    world.check(home.truth)


def test_removed_messages_stay_billed(world: World, home: GeminiHome, chat: Chat) -> None:
    before = home.truth.context[chat.id]
    user = chat.user()
    chat.reply()
    chat.rewind(user["id"])
    assert home.truth.context[chat.id] == before
    world.check(home.truth)
    chat.rewind("unknown")
    assert [session.note for session in world.sessions().values()] == [REWOUND]
    chat.reply()
    world.check_context(home.truth)


def test_size_is_unknown_after_a_rewind_in_a_resumed_session(
    world: World, home: GeminiHome
) -> None:
    everyday(home, world.root, 2, flat=True).resume().rewind("unknown")
    (shown,) = world.shown()
    assert (shown.tokens, shown.note) == (None, REWOUND)


def test_checkpoint_with_the_same_messages_changes_nothing(
    world: World, home: GeminiHome, chat: Chat
) -> None:
    chat.checkpoint()
    world.check(home.truth)


def test_size_is_unknown_after_a_compression(world: World, home: GeminiHome, chat: Chat) -> None:
    chat.compress()
    assert [session.note for session in world.sessions().values()] == [COMPACTED]
    chat.user()
    chat.reply()
    world.check(home.truth)


def test_long_rewind_reads_the_file_again(world: World, home: GeminiHome, chat: Chat) -> None:
    """Only the latest messages are kept between reads."""
    before = home.truth.context[chat.id]
    early = chat.user()
    for _ in range(60):
        chat.reply()
        world.check_context(home.truth)
    chat.rewind(early["id"])
    assert home.truth.context[chat.id] == before
    world.check(home.truth)


def test_turn_runs_while_a_tool_runs(world: World, home: GeminiHome) -> None:
    """Tool calls are written only after the tools have run, so a reply may be empty until then."""
    chat = home.session(world.root)
    chat.user()
    reply: dict[str, Any] = {"id": "r", "type": "gemini", "timestamp": chat.clock.tick()}
    calls = [{"id": "c", "name": "shell", "status": "success"}]
    for fields, active in (
        ({"content": ""}, True),
        ({"content": "Look", "toolCalls": calls}, True),
        ({"content": "Look", "toolCalls": []}, False),
    ):
        chat.put({**reply, **fields})
        assert [session.active for session in world.sessions().values()] == [active]


def test_a_session_is_idle_after_a_hook_stopped_it(world: World, home: GeminiHome) -> None:
    """A prompt that a hook refused is not written, and the first message is not a prompt."""
    chat = home.session(world.root)
    first = {"id": "c", "type": "user", "timestamp": chat.clock.tick()}
    chat.write({"$set": {"messages": [first | {"content": [{"text": "<session_context>\nA"}]}]}})
    assert [session.active for session in world.sessions().values()] == [False]
    chat.user()
    assert [session.active for session in world.sessions().values()] == [True]
    response = {"response": {"error": "Agent execution stopped by hook: enough"}}
    call = {"name": "shell", "status": "error", "result": [{"functionResponse": response}]}
    reply = {"id": "r", "type": "gemini", "timestamp": chat.clock.tick(), "content": ""}
    chat.put(reply | {"toolCalls": [call]})
    assert [session.active for session in world.sessions().values()] == [False]
    error = {"response": {"error": "No such file"}}
    failed = call | {"result": [{"functionResponse": error}]}
    chat.put(reply | {"id": "s", "toolCalls": [failed]})
    assert [session.active for session in world.sessions().values()] == [True]


def test_title_of_the_agent_is_shown(world: World, chat: Chat) -> None:
    chat.write({"$set": {"summary": "Named"}})
    assert [session.title for session in world.sessions().values()] == ["Named"]


def test_sessions_of_other_projects_are_ignored(world: World, home: GeminiHome, chat: Chat) -> None:
    other = world.home / "other"
    other.mkdir()
    mine = everyday(home, other, 1)
    assert set(world.sessions(other)) == {mine.id}
    assert set(world.sessions()) == {chat.id}


def test_calls_have_the_folder_of_their_project(world: World, chat: Chat) -> None:
    world.ingest()
    assert {call.workspace for call in world.calls} == {str(world.root)}
    assert {call.category for call in world.calls} == {"main", "subagent"}
    subagents = [one for session in world.shown() for one in session.subagents]
    assert len(subagents) == len({call.session for call in world.calls if call.category != "main"})
    assert all(subagent.tokens for subagent in subagents)


def test_half_written_files_are_read_when_complete(
    world: World, home: GeminiHome, chat: Chat
) -> None:
    flat = everyday(home, world.root, 2, flat=True)
    whole = flat.path.read_bytes()
    flat.path.write_bytes(whole[:-30])
    with chat.path.open("a") as file:
        file.write('{"broken "tokens"\n{"id":"half","type":"gemini","tokens":{"inp')
    world.ingest()
    flat.path.write_bytes(whole)
    world.check(home.truth)
    assert world.skipped[str(chat.path)] == 1
