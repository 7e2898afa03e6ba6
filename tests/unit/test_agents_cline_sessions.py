"""Tests the session reader for Cline 4 and later."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.agents import cline
from benchmarks.agents.cline_sessions import SessionsHome, everyday
from tests.unit.agents_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "cline")


@pytest.fixture
def home(world: World) -> SessionsHome:
    return SessionsHome(world.home / ".cline" / "data" / "sessions")


def test_every_call_counts_once_and_subagents_have_no_context(
    world: World, home: SessionsHome
) -> None:
    session = everyday(home, world.root)
    for _ in range(2):
        world.check(home.truth)
        session.call()
        session.subagent()
    assert [len(one.subagents) for one in world.shown()] == [3]
    assert {call.category for call in world.calls} == {"main", "subagent"}
    assert {call.workspace for call in world.calls} == {str(world.root)}
    assert {(call.model, call.provider) for call in world.calls} == {
        ("claude-sonnet-4-5", "anthropic")
    }
    assert {call.reported_cost for call in world.calls} == {Decimal("0.0123")}


def test_tasks_of_older_versions_are_read_too(world: World, home: SessionsHome) -> None:
    everyday(home, world.root)
    user = world.home / ".config" / "Code" / "User" / "globalStorage" / "saoudrizwan.claude-dev"
    tasks = cline.ClineHome(user)
    cline.everyday(tasks, world.root)
    world.ingest()
    assert world.recorded() == home.truth.calls | tasks.truth.calls
    shown = {name: one.tokens for name, one in world.sessions().items()}
    assert shown == home.truth.context | tasks.truth.context


def test_messages_copied_to_another_session_count_once(world: World, home: SessionsHome) -> None:
    first, second = everyday(home, world.root), home.session(world.root)
    second.messages = list(first.messages)
    second.cached = first.cached
    second.call()
    world.ingest()
    assert set(world.recorded()) == set(home.truth.calls)


def test_reply_without_a_model_uses_the_manifest_model(world: World, home: SessionsHome) -> None:
    session = home.session(world.root)
    session.call(modelInfo=None)
    world.ingest()
    (call,) = world.calls
    assert (call.model, call.provider) == ("claude-sonnet-4-5", "anthropic")
    assert world.sessions()[session.id].model == "claude-sonnet-4-5"


def test_unfinished_reply_has_no_numbers(world: World, home: SessionsHome) -> None:
    session = everyday(home, world.root)
    session.messages.append({"id": "x", "role": "assistant", "ts": 1, "content": []})
    session.messages.append({"id": "y", "role": "assistant", "metrics": {"inputTokens": 0}})
    session.write()
    world.check(home.truth)


def test_session_ends_when_its_manifest_says_so(world: World, home: SessionsHome) -> None:
    session = everyday(home, world.root)
    assert not world.sessions()[session.id].ended
    session.manifest(status="completed", ended_at=home.clock.tick())
    assert world.sessions()[session.id].ended


def test_title_derived_from_a_prompt_is_not_used(world: World, home: SessionsHome) -> None:
    session = everyday(home, world.root)
    assert world.sessions()[session.id].title is None


def test_half_written_file_is_read_when_complete(world: World, home: SessionsHome) -> None:
    session = everyday(home, world.root)
    data = session.path.read_bytes()
    session.path.write_bytes(data[: len(data) // 2])
    world.ingest()
    assert session.id not in world.sessions()
    assert world.recorded().keys() < home.truth.calls.keys()
    session.path.write_bytes(data)
    world.check_calls(home.truth)


def test_unrelated_files_are_ignored(world: World, home: SessionsHome) -> None:
    session = everyday(home, world.root)
    (session.folder / f"{session.id}.compaction.json").write_text(json.dumps({"messages": [1]}))
    (home.folder / "sessions.index.json").write_text("{}")
    (home.folder / "empty").mkdir()
    world.check(home.truth)
