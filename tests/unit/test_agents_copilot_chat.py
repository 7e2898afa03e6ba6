"""Tests the reader for Copilot in VS Code: each call counts once, and context sizes are right."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.copilot import (
    INPUT,
    MODEL,
    OUTPUT,
    ChatLog,
    CodeHome,
    DebugLog,
    Traces,
    everyday,
)
from sidecar.agents.session_events import StoredSession
from sidecar.agents.session_index import make_ledger_event
from sidecar.agents.stores import COMPACTED, NO_USAGE, NOT_VISIBLE
from sidecar.cost.prices import Prices
from tests.unit.agents_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "copilot-chat")


@pytest.fixture
def home(world: World) -> CodeHome:
    return CodeHome(world.home / ".config" / "Code" / "User")


@pytest.fixture
def chat(world: World, home: CodeHome) -> ChatLog:
    return everyday(home, world.root, 3)


def only(world: World) -> StoredSession:
    (session,) = world.sessions().values()
    return session


@pytest.mark.parametrize("flat", [False, True])
def test_every_turn_counts_once(world: World, home: CodeHome, flat: bool) -> None:
    for turns in (1, 5):
        everyday(home, world.root, turns, flat=flat)
    world.check(home.truth)


def test_only_new_bytes_are_read(world: World, home: CodeHome, chat: ChatLog) -> None:
    world.ingest()
    size = chat.path.stat().st_size
    chat.turn()
    before = len(world.calls)
    assert world.ingest() == chat.path.stat().st_size - size
    assert len(world.calls) == before + 1
    assert world.ingest() == 0
    world.check(home.truth)


def test_growing_prompt_of_a_turn_is_not_added_up(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    """VS Code saves a turn after each of its calls, and each saved version is read."""
    request = chat.begin()
    last = (0, 0)
    for _ in range(10):
        last = chat.call(request)
        chat.save()
        world.ingest()
    assert only(world).tokens == last[0]
    assert only(world).active is True
    chat.end(request, last)
    chat.save()
    chat.took(request)
    home.truth.context[chat.id] = sum(last)
    world.check(home.truth)
    assert only(world).active is False


def test_removed_messages_stay_billed(world: World, home: CodeHome, chat: ChatLog) -> None:
    chat.undo(1)
    chat.turn()
    world.check(home.truth)
    assert len(home.truth.calls) == 4


def test_push_truncates_the_list_before_appending(world: World, chat: ChatLog) -> None:
    keep = [request["requestId"] for request in chat.state["requests"]]
    fresh = {**chat.state["requests"][0], "requestId": "b", "promptTokens": 5, "result": None}
    chat.write({"kind": 2, "k": ["requests"], "i": 1, "v": [fresh]})
    chat.write({"kind": 1, "k": ["requests", 1, "promptTokens"], "v": 4_321})
    assert only(world).tokens == 4_321
    world.ingest()
    assert set(world.recorded()) == {*keep, "b"}


def test_deletions_and_unknown_paths_are_applied_safely(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    chat.write(
        {"kind": 3, "k": ["customTitle"]},
        {"kind": 1, "k": [], "v": {"requests": []}},
        {"kind": 1, "k": ["__proto__", "requests"], "v": []},
        {"kind": 1, "k": ["requests", 99, "promptTokens"], "v": 1},
        {"kind": 1, "k": ["requests", -1, "promptTokens"], "v": 1},
        {"kind": 1, "k": ["requests", "constructor", "promptTokens"], "v": 1},
        {"kind": 1, "k": ["inputState", "selectedModel", "metadata", "x", "y"], "v": 1},
        {"kind": 2, "k": ["requests", 0, "promptTokens"], "v": [1]},
        {"kind": 7, "k": ["requests"]},
        {"kind": 1, "k": ["requests", 0, "elapsedMs"]},
        {"kind": 1, "k": ["workingDirectory"], "v": "file:///elsewhere"},
        {"kind": 1, "k": ["workingDirectory", "path"], "v": "/elsewhere"},
    )
    world.check_context(home.truth)
    chat.write({"kind": 3, "k": ["requests", 2, "promptTokens"]})
    chat.write({"kind": 1, "k": ["requests", 2, "result", "metadata", "outputTokens"], "v": 11})
    chat.write({"kind": 1, "k": ["requests", 2, "result", "metadata", "promptTokens"], "v": 70})
    assert only(world).tokens == 81
    chat.write({"kind": 3, "k": ["requests"]})
    assert world.sessions() == {}


def test_compacted_log_is_read_again(world: World, home: CodeHome, chat: ChatLog) -> None:
    world.ingest()
    seen = only(world)
    chat.undo(1)
    inode = chat.path.stat().st_ino
    chat.log_every = 0
    chat.turn()
    assert chat.path.stat().st_ino == inode
    assert chat.path.read_bytes().count(b"\n") < 5
    world.check(home.truth)
    assert seen != only(world)


def test_broken_incomplete_and_huge_lines_are_skipped(
    world: World, home: CodeHome, chat: ChatLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidecar.agents import file_reading

    monkeypatch.setattr(file_reading, "LONGEST_LINE", 1 << 20)
    results = {"toolCallResults": "x" * (9 << 20)}
    chat.write({"kind": 1, "k": ["requests", 0, "result", "metadata", "more"], "v": results})
    with chat.path.open("a") as file:
        file.write('{"kind":1,"k":["requests",0,"promptTokens"],"v":"no number"}\n{"kind"\n\n')
    chat.turn()
    with chat.path.open("a") as file:
        file.write('{"kind":1,"k":["requests",0,"promptTokens"],"v":12')
    world.check(home.truth)
    assert [*world.skipped.values()] == [3]


def test_turn_is_billed_for_the_output_of_all_calls(world: World, chat: ChatLog) -> None:
    """All 490 output tokens are billed, but only the last call's 60 tokens are in the context."""
    request = chat.begin()
    request |= {"promptTokens": 20_000, "completionTokens": 490, "copilotCredits": 3.25}
    chat.end(request, (20_000, 60))
    chat.save()
    world.ingest()
    billed = next(call for call in world.calls if call.request_id == request["requestId"])
    assert (billed.buckets.completion, billed.reported_cost) == (490, Decimal("0.0325"))
    assert only(world).tokens == 20_060


def test_totals_by_model_are_exact_and_credits_count_once(world: World, chat: ChatLog) -> None:
    request = chat.begin()
    totals = [
        {"model": "gpt-5.4", "inputTokens": 90_000, "cachedTokens": 70_000, "outputTokens": 800},
        {"model": "gpt-5-mini", "inputTokens": 500, "cachedTokens": 0, "outputTokens": 9},
    ]
    request |= {"modelTotals": totals, "copilotCredits": 12.5, "sessionCopilotCredits": 99.0}
    request |= {"promptTokens": 30_000, "completionTokens": 800}
    chat.save()
    world.ingest()
    calls = [call for call in world.calls if str(call.request_id).startswith(request["requestId"])]
    assert [(call.model, call.buckets.prompt, call.buckets.cache_read) for call in calls] == [
        ("gpt-5.4", 90_000, 70_000),
        ("gpt-5-mini", 500, 0),
    ]
    assert [call.reported_cost for call in calls] == [Decimal("0.125"), None]


def test_cost_comes_from_credits_and_not_from_tokens(world: World, chat: ChatLog) -> None:
    request = chat.turn()
    del request["copilotCredits"]
    free = chat.begin()
    free |= {"promptTokens": 4_000, "completionTokens": 50}
    chat.save()
    world.ingest()
    prices = Prices(())
    by_id = {call.request_id: make_ledger_event(call, "copilot-chat") for call in world.calls}
    assert prices.cost(by_id[free["requestId"]]).usd is None
    assert prices.cost(by_id[request["requestId"]]).usd is not None
    assert {event.provider for event in by_id.values()} == {"github-copilot"}


def test_zero_tokens_are_not_a_context_size(world: World, home: CodeHome) -> None:
    """Models from other extensions report 0 tokens, which means that the number is unknown."""
    chat = home.session(world.root)
    request = chat.begin("gateway/qwen3")
    request |= {"promptTokens": 0, "completionTokens": 0, "modelState": {"value": 1}}
    chat.save()
    assert (only(world).tokens, only(world).note) == (None, NO_USAGE)
    world.ingest()
    assert world.calls == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"summaries": [{"toolCallRoundId": "r2", "text": "…", "source": "foreground"}]},
        {"summary": {"toolCallRoundId": "r2", "text": "…"}},
        {"toolCallRounds": [{"id": "r1"}, {"id": "r2", "summary": "…"}]},
    ],
    ids=["summaries", "summary", "round"],
)
def test_size_is_unknown_after_a_summary_of_the_newest_round(
    world: World, home: CodeHome, chat: ChatLog, metadata: dict[str, Any]
) -> None:
    request = chat.begin()
    rounds = [{"id": "r1"}, {"id": "r2"}]
    chat.end(request, chat.call(request), **{"toolCallRounds": rounds, **metadata})
    chat.save()
    assert (only(world).note, only(world).tokens) == (COMPACTED, None)
    chat.turn()
    world.check_context(home.truth)


def test_size_is_known_after_a_summary_of_an_older_round(world: World, chat: ChatLog) -> None:
    request = chat.begin()
    last = chat.call(request)
    summaries = [{"toolCallRoundId": "r1", "text": "…"}]
    chat.end(request, last, toolCallRounds=[{"id": "r1"}, {"id": "r2"}], summaries=summaries)
    chat.save()
    assert only(world).tokens == sum(last)


def test_size_after_compact_appears_with_the_next_turn(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    chat.compact()
    assert only(world).note == COMPACTED
    chat.turn()
    world.check(home.truth)


def test_the_window_is_that_of_the_selected_model(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    assert only(world).limit == INPUT + OUTPUT
    chat.select("copilot/gpt-5.4", 272_000, 128_000)
    chat.save()
    assert only(world).limit == 400_000
    chat.select("copilot/gpt-5.4", 922_000, 128_000, contextSize=272_000)
    chat.save()
    assert only(world).limit == home.truth.window[chat.id] == 400_000


def test_auto_is_replaced_by_the_model_that_answered(world: World, home: CodeHome) -> None:
    chat = home.session(world.root)
    chat.select("copilot/auto", 0, 0)
    chat.turn(model="copilot/auto")
    assert (only(world).model, only(world).limit) == (MODEL, None)


def test_window_may_come_from_models_of_the_user(world: World, home: CodeHome) -> None:
    chat = home.session(world.root)
    chat.select("customendpoint/mine/qwen3-coder", 0, 0)
    chat.turn(model="customendpoint/mine/qwen3-coder")
    models = [{"id": "qwen3-coder", "maxInputTokens": 96_000, "maxOutputTokens": 32_000}]
    groups = [{"name": "mine", "vendor": "customendpoint", "models": models}]
    (home.user / "chatLanguageModels.json").write_text(json.dumps(groups))
    assert only(world).limit == 128_000


def test_title_of_the_agent_is_shown(world: World, chat: ChatLog) -> None:
    chat.state["customTitle"] = "Named"
    chat.save()
    assert only(world).title == "Named"
    chat.turn()
    assert only(world).title == "Named"
    chat.state["customTitle"] = "Renamed"
    chat.log_every = 0
    chat.turn()
    assert only(world).title == "Renamed"
    assert not any(b"amed" in state for state in world.states().values())
    chat.write({"kind": 3, "k": ["customTitle"]})
    assert only(world).title is None


def test_copies_of_a_session_in_several_storages_count_once(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    other = everyday(home, world.root, 1)
    empty = home.user / "globalStorage" / "emptyWindowChatSessions"
    empty.mkdir(parents=True)
    shutil.copy(chat.path, empty)
    assert set(world.sessions()) == {chat.id, other.id}
    world.check_calls(home.truth)


def test_log_is_preferred_to_the_flat_file_of_the_same_session(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    chat.path.with_suffix(".json").write_text('{"sessionId": "stale", "requests": []}')
    world.check(home.truth)


def test_multi_root_and_remote_projects_are_matched(world: World, home: CodeHome) -> None:
    several = world.home / "many.code-workspace"
    several.write_text('{ // folders\n "folders": [{"path": "work/my proj.ect"},], }')
    mine = home.session(world.root, storage=home.storage(world.root, workspace=several.as_uri()))
    away = f"vscode-remote://ssh-remote%2Bhost{world.root}"
    theirs = home.session(world.root, storage=home.storage(world.root, folder=away))
    for chat in (mine, theirs):
        chat.turn()
    assert set(world.sessions()) == {mine.id}
    world.check_calls(home.truth)


def test_vscode_server_uses_local_folders(world: World) -> None:
    """When VS Code runs in a browser, its URIs contain the host name of the server."""
    home = CodeHome(world.home / ".local" / "share" / "code-server" / "User")
    away = f"vscode-remote://localhost:8080{world.root}".replace(" ", "%20")
    chat = home.session(world.root, storage=home.storage(world.root, folder=away))
    chat.turn()
    world.check_context(home.truth)


def test_empty_window_uses_the_working_folder_of_its_session(world: World, home: CodeHome) -> None:
    chat = home.session(world.root, storage=home.storage(world.root, folder="file:///elsewhere"))
    uri = {"$mid": 1, "scheme": "file", "path": os.path.realpath(world.root)}
    chat.state["workingDirectory"] = uri
    chat.path = home.user / "globalStorage" / "emptyWindowChatSessions" / chat.path.name
    chat._saved = None
    chat.turn()
    world.check_context(home.truth)


@pytest.fixture
def log(world: World, home: CodeHome) -> DebugLog:
    """Return the debug log of a session with one turn. The log contains no calls yet.

    If a session has a debug log, calls are recorded from the log and not from the turns.
    """
    chat = home.session(world.root)
    made = chat.debug_log()
    made.begin()
    chat.turn()
    home.truth.calls.clear()
    return made


def test_debug_log_contains_every_call(world: World, home: CodeHome, log: DebugLog) -> None:
    log.write("turn_start")
    for _ in range(4):
        log.call()
    log.call("runSubagent", child=log.chat.clock.uuid())
    log.call("title")
    log.call(status="error")
    home.truth.context[log.chat.id] = None
    tokens = log.call()
    log.write("turn_end")
    world.check(home.truth)
    assert only(world).tokens == tokens.prompt + tokens.output
    assert {call.category for call in world.calls} == {"main", "subagent"}
    assert all(call.reported_cost for call in world.calls)


def test_turns_before_the_debug_log_come_from_the_session(
    world: World, home: CodeHome, chat: ChatLog
) -> None:
    log = chat.debug_log()
    log.begin()
    known = dict(home.truth.calls)
    chat.turn()
    home.truth.calls = known
    log.call()
    world.check_calls(home.truth)


def test_truncated_or_deleted_debug_log_counts_nothing_twice(
    world: World, home: CodeHome, log: DebugLog
) -> None:
    for _ in range(5):
        log.call()
    world.ingest()
    main = log.folder / "main.jsonl"
    lines = main.read_bytes().splitlines(keepends=True)
    main.write_bytes(b"".join(lines[3:]))
    log.chat.log_every = 0
    log.chat.save()
    world.check_calls(home.truth)
    shutil.rmtree(log.folder)
    log.chat._saved = None
    log.chat.save()
    world.check_calls(home.truth)


def test_window_may_come_from_the_model_list_of_the_debug_log(world: World, log: DebugLog) -> None:
    """The prompt and output limits are separate maximums, so their sum is not the window."""
    limits = {
        "max_context_window_tokens": 264_000,
        "max_prompt_tokens": 200_000,
        "max_output_tokens": 128_000,
    }
    models = [{"id": MODEL, "capabilities": {"limits": limits}}]
    (log.folder / "models.json").write_text(json.dumps(models))
    log.call()
    assert only(world).limit == 264_000


def test_sessions_without_input_tokens_have_no_size(world: World, log: DebugLog) -> None:
    attrs = {"model": MODEL, "inputTokens": 0, "outputTokens": 0, "debugName": "panel/editAgent"}
    before = only(world)
    log.write("llm_request", attrs=attrs)
    assert (only(world).tokens, only(world).note) == (before.tokens, before.note)
    assert before.tokens


def test_traces_are_read_while_they_are_being_written(
    world: World, home: CodeHome, log: DebugLog
) -> None:
    """An `invoke_agent` span reports the total usage of its calls, but is not a call itself."""
    traces = Traces(home)
    for _ in range(2):
        traces.turn(log.chat.id)
        log.chat.debug_log().call()
        home.truth.calls.popitem()
        world.check_calls(home.truth)
    traces.turn(log.chat.id)
    world.check(home.truth)
    assert {call.workspace for call in world.calls} == {str(world.root)}
    traces.db.close()


def test_remote_session_shows_that_its_size_is_not_visible(world: World) -> None:
    """Over SSH, the extension's files are on the remote machine, but the sessions are not."""
    user = world.home / ".vscode-server" / "data" / "User"
    storage = user / "workspaceStorage" / "abc"
    transcripts = storage / "GitHub.copilot-chat" / "transcripts"
    transcripts.mkdir(parents=True)
    (storage / "meta.json").write_text(json.dumps({"id": "abc", "name": world.root.name}))
    (transcripts / "s-1.jsonl").write_text("{}\n")
    session = only(world)
    assert (session.id, session.tokens, session.note) == (
        "s-1",
        None,
        NOT_VISIBLE,
    )


def test_running_turn_has_the_time_of_its_file(world: World, home: CodeHome) -> None:
    """A running turn has only a start time, so the file's modification time is used instead."""
    chat = everyday(home, world.root, 1)
    chat.begin()
    chat.save()
    os.utime(chat.path, (2_000_000_000, 2_000_000_000))
    assert only(world).updated_at == datetime.fromtimestamp(2_000_000_000, UTC)


def test_finished_turn_has_the_time_of_its_end(world: World, chat: ChatLog) -> None:
    end = chat.state["requests"][-1]["modelState"]["completedAt"]
    os.utime(chat.path, (2_000_000_000, 2_000_000_000))
    assert only(world).updated_at == datetime.fromtimestamp(end / 1000, UTC)


def test_calls_with_equal_tokens_in_a_debug_log_are_two(world: World, log: DebugLog) -> None:
    attrs = {"model": MODEL, "inputTokens": 900, "outputTokens": 9, "debugName": "panel/editAgent"}
    for _ in range(2):
        log.write("llm_request", attrs=attrs)
    world.ingest()
    assert [call.buckets.prompt for call in world.calls] == [900, 900]
