"""Tests the task reader for Cline and its forks."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.cline import ClineHome, everyday
from sidecar.agents import session_index
from sidecar.agents.stores import COMPACTED
from sidecar.known_agents import all_agents
from tests.unit.agents_world import World, forks_of


@pytest.fixture(params=["cline", "kilo-code", *forks_of("cline")])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, request.param)


@pytest.fixture
def home(world: World) -> ClineHome:
    user = world.home / ".config" / "Code" / "User"
    agent = world.readers[0].agent
    extension = all_agents()[agent].extension or ""
    return ClineHome(user / "globalStorage" / extension, own_items=agent != "cline")


def test_every_call_counts_once(world: World, home: ClineHome) -> None:
    task = everyday(home, world.root)
    for _ in range(2):
        world.check(home.truth)
        task.call()
    assert {call.workspace for call in world.calls} == {str(world.root)}
    assert {call.model for call in world.calls} == {"claude-sonnet-4-5"}
    assert all(call.reported_cost for call in world.calls)


def test_rewritten_task_counts_once_when_it_gains_a_provider(
    world: World, home: ClineHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = everyday(home, world.root)
    world.check_calls(home.truth)
    monkeypatch.setattr(session_index, "billing_provider", lambda _named, _model: "newco")
    task.call()
    world.ingest()
    with world.ledger.reader() as connection:
        (calls,) = connection.execute("SELECT count(*) FROM event").fetchone()
    assert calls == len(home.truth.calls)


def test_unfinished_call_is_not_recorded(world: World, home: ClineHome) -> None:
    task = everyday(home, world.root)
    task.say("api_req_started", json.dumps({"request": "…"}))
    world.check(home.truth)


def test_cost_of_zero_is_a_known_cost(world: World, home: ClineHome) -> None:
    task = everyday(home, world.root)
    task.say("api_req_started", json.dumps({"tokensIn": 5, "tokensOut": 6, "cost": 0}))
    world.ingest()
    assert world.calls[-1].reported_cost == Decimal(0)


@pytest.mark.parametrize(
    ("protocol", "prompt"), [("openai", 1_000), ("anthropic", 1_900), (None, 1_900)]
)
def test_protocol_determines_whether_input_includes_cached_tokens(
    world: World, home: ClineHome, protocol: str | None, prompt: int
) -> None:
    task = everyday(home, world.root)
    numbers: dict[str, Any] = {"tokensIn": 1_000, "tokensOut": 5, "cacheReads": 900}
    task.say("api_req_started", json.dumps({**numbers, "apiProtocol": protocol}))
    world.ingest()
    assert world.calls[-1].buckets.prompt == prompt


def test_condensed_context_has_its_new_size(world: World, home: ClineHome) -> None:
    task = everyday(home, world.root)
    task.say("condense_context", "", contextCondense={"newContextTokens": 4_000})
    assert world.sessions()[task.id].tokens == 4_000
    task.say("condense_context", "")
    assert world.sessions()[task.id].note == COMPACTED
    task.call()
    world.check_context(home.truth)


def test_half_written_task_is_read_when_complete(world: World, home: ClineHome) -> None:
    task = everyday(home, world.root)
    world.ingest()
    whole = task.path.read_bytes()
    task.path.write_bytes(whole[: len(whole) // 2])
    world.ingest()
    task.path.write_bytes(whole)
    world.check_calls(home.truth)
