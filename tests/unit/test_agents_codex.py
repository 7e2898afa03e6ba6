"""Tests the reader for Codex: each call is recorded once, and context sizes are right."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.codex import CodexHome, Rollout, everyday
from benchmarks.agents.truth import Tokens, append
from sidecar.agents.compressed import zstd
from sidecar.agents.stores import COMPACTED, REWOUND
from tests.cases import read_rows
from tests.unit.agents_world import World

VERSIONS: dict[str, dict[str, Any]] = {
    "events": {},
    "records and events": {"records": True},
    "records": {"records": True, "counts": False},
    "ordinals": {"records": True, "ordinals": True},
    "spaces": {"spaces": True},
    "no turn ids": {"turn_ids": False},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "codex")


@pytest.fixture
def home(world: World) -> CodexHome:
    return CodexHome(world.home / ".codex")


@pytest.fixture
def thread(world: World, home: CodexHome) -> Rollout:
    return everyday(home, world.root, 3)


@pytest.mark.parametrize("options", VERSIONS.values(), ids=VERSIONS)
def test_every_call_counts_once(world: World, home: CodexHome, options: dict[str, Any]) -> None:
    for turns in (1, 3, 5):
        everyday(home, world.root, turns, **options).half_line()
    world.check(home.truth)
    assert {one.id: one.limit for one in world.shown()} == home.truth.window


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("spawned", [False, True])
@pytest.mark.parametrize("restamped", [False, True])
@pytest.mark.parametrize("options", VERSIONS.values(), ids=VERSIONS)
def test_forks_count_only_their_own_calls(
    world: World,
    home: CodexHome,
    options: dict[str, Any],
    restamped: bool,
    spawned: bool,
    goes_on: bool,
) -> None:
    parent = everyday(home, world.root, 3, **options)
    fork = parent.fork(restamped=restamped, spawned=spawned)
    if goes_on:
        fork.begin_turn()
        fork.call()
        parent.begin_turn()
        parent.call()
        again = fork.fork(restamped=restamped)
        again.begin_turn()
        again.call()
    world.check_calls(home.truth)


@pytest.mark.parametrize("restamped", [False, True])
@pytest.mark.parametrize("turn_ids", [False, True])
def test_fork_without_its_parent_counts_only_its_own_calls(
    world: World, home: CodexHome, restamped: bool, turn_ids: bool
) -> None:
    parent = everyday(home, world.root, 3, turn_ids=turn_ids)
    fork = parent.fork(restamped=restamped)
    fork.begin_turn()
    fork.call()
    parent.path.unlink()
    world.ingest()
    assert set(world.recorded()) == {f"{fork.id}#1"}


def test_fork_with_a_first_ordinal_counts_only_its_own_calls(world: World, home: CodexHome) -> None:
    parent = everyday(home, world.root, 3, ordinals=True)
    fork = parent.fork(names_ordinal=True, spawned=True)
    fork.begin_turn()
    fork.call()
    world.check_calls(home.truth)
    assert [call.category for call in world.calls].count("subagent") == 1


def test_subagent_is_not_listed_as_a_session(world: World, home: CodexHome) -> None:
    parent = everyday(home, world.root, 1)
    child = parent.fork(spawned=True)
    child.begin_turn()
    child.call()
    world.check_context(home.truth)
    (subagent,) = world.sessions()[parent.id].subagents
    tokens = home.truth.calls[f"{child.id}#1"][1]
    assert (subagent.id, subagent.tokens) == (child.id, tokens.prompt + tokens.output)
    assert subagent.active


@pytest.mark.parametrize("cut", range(0, 40_000, 1_777))
def test_reading_in_two_steps(world: World, home: CodexHome, cut: int) -> None:
    parent = everyday(home, world.root, 2)
    fork = parent.fork()
    fork.begin_turn()
    fork.call()
    whole = fork.path.read_bytes()
    fork.path.write_bytes(whole[: len(whole) - cut])
    world.ingest()
    fork.path.write_bytes(whole)
    assert world.ingest() <= cut + 25_000
    world.check_calls(home.truth)


def test_compressed_and_archived_threads_are_read(world: World, home: CodexHome) -> None:
    """Compressed threads are read too, although two other programs ignore them."""
    for place in range(4):
        thread = everyday(home, world.root, 2)
        if place == 1:
            thread.compress(zstd.compress)
        if place == 2:
            thread.compress(zstd.compress, keep=True)
        if place == 3:
            archive = home.folder / "archived_sessions"
            archive.mkdir()
            shutil.copy(thread.path, archive / thread.path.name)
    world.check(home.truth)


def test_thread_compressed_after_reading_counts_once(
    world: World, home: CodexHome, thread: Rollout
) -> None:
    world.ingest()
    thread.compress(zstd.compress)
    world.check_calls(home.truth)


def test_thread_with_events_and_records_counts_each_call_once(
    world: World, home: CodexHome
) -> None:
    thread = everyday(home, world.root, 2)
    thread.begin_turn()
    tokens = Tokens(5, 6, 0, 0, 7)
    thread.count(tokens)
    thread.record("resp_1", tokens)
    home.truth.calls[f"{thread.id}#{thread.calls + 1}"] = (thread.id, tokens)
    thread.records = True
    thread.call()
    world.check_calls(home.truth)


def test_versions_that_report_only_totals_are_read(world: World, home: CodexHome) -> None:
    thread = home.thread(world.root)
    thread.begin_turn()
    for _ in range(3):
        thread.call(fields={"last_token_usage": None})
    world.check_calls(home.truth)


def test_model_may_come_from_the_event(world: World, home: CodexHome) -> None:
    thread = home.thread(world.root)
    thread.call(fields={"model": "gpt-5-mini"})
    thread.call()
    world.check_calls(home.truth)
    assert [call.model for call in world.calls] == ["gpt-5-mini", "unknown"]


@pytest.mark.parametrize("estimate", [False, True])
def test_size_is_unknown_after_a_compaction(
    world: World, home: CodexHome, thread: Rollout, estimate: bool
) -> None:
    thread.compact(estimate=estimate)
    thread.event("token_count", **thread.last)
    (shown,) = world.sessions().values()
    assert (shown.tokens, shown.note) == (None, COMPACTED)
    thread.begin_turn()
    thread.call(repeats=0)
    world.check_context(home.truth)


def test_record_of_a_summary_does_not_set_the_context_size(world: World, home: CodexHome) -> None:
    thread = everyday(home, world.root, 1, records=True)
    thread.write("compacted", {"message": "", "compaction_response_id": "resp_c"})
    thread.record("resp_c", Tokens(90_000, 0, 0, 0, 900))
    assert [session.note for session in world.sessions().values()] == [COMPACTED]
    world.ingest()
    assert [call.category for call in world.calls] == [*["main"] * 3, "summary"]


def test_summary_recorded_before_its_compaction_is_recognized(
    world: World, home: CodexHome
) -> None:
    """Codex 0.169 writes lines in this order if the provider does not support compaction."""
    thread = everyday(home, world.root, 1, records=True)
    output = {"type": "message", "role": "assistant", "content": []}
    metadata = {"history_sequence": 7, "compaction_output": True}
    line = {"timestamp": thread.clock.tick(), "type": "response_item", "payload": output}
    append(thread.path, {**line, "metadata": metadata})
    thread.record("resp_c", Tokens(90_000, 0, 0, 0, 900))
    thread.write("compacted", {"message": "", "compaction_response_id": "resp_c"})
    thread.call()
    world.ingest()
    assert [call.category for call in world.calls] == [*["main"] * 3, "summary", "main"]
    world.check_context(home.truth)


def test_removed_turns_stay_billed(world: World, home: CodexHome, thread: Rollout) -> None:
    thread.event("thread_rolled_back", num_turns=1)
    world.check_calls(home.truth)
    assert [session.note for session in world.sessions().values()] == [REWOUND]


def test_turn_in_another_folder_changes_the_session_folder(world: World, home: CodexHome) -> None:
    elsewhere = world.home / "elsewhere"
    elsewhere.mkdir()
    thread = home.thread(elsewhere)
    thread.begin_turn(cwd=str(world.root))
    thread.call()
    assert set(world.sessions()) == {thread.id} == set(world.sessions(elsewhere))
    other = home.thread(elsewhere)
    other.begin_turn()
    other.call()
    assert set(world.sessions()) == {thread.id}


def test_nulls_are_accepted_and_broken_lines_skipped(
    world: World, home: CodexHome, thread: Rollout
) -> None:
    thread.event("token_count", info=None, rate_limits=None)
    thread.event("token_count", info="unreadable")
    with thread.path.open("a", encoding="utf-8") as file:
        file.write('{"timestamp":"2026","type":"event_msg","payload":{"type":"token_count","in\n\n')
    thread.begin_turn()
    thread.call()
    world.check(home.truth)
    assert world.skipped[str(thread.path)] == 2


def test_turn_state_follows_its_events(world: World, home: CodexHome) -> None:
    thread = home.thread(world.root)
    thread.begin_turn()
    thread.call()
    assert [session.active for session in world.sessions().values()] == [True]
    thread.end_turn()
    assert [session.active for session in world.sessions().values()] == [False]


def tiers_of(world: World) -> list[str]:
    world.ingest()
    return [call.tier for call in world.calls]


@pytest.mark.parametrize(
    ("setting", "tier"), read_rows("agents", "service_tiers", "setting", "tier")
)
@pytest.mark.parametrize("options", [{}, {"records": True}, {"records": True, "counts": False}])
def test_calls_have_the_tier_of_the_threads_settings(
    world: World, home: CodexHome, options: dict[str, Any], setting: object, tier: str
) -> None:
    thread = everyday(home, world.root, 1, **options)
    before = len(tiers_of(world))
    thread.begin_turn()
    settings = {"model": "gpt-5.6-terra", "service_tier": setting}
    thread.event("thread_settings_applied", thread_settings=settings)
    thread.call()
    thread.call()
    assert tiers_of(world)[before:] == [tier, tier]
    world.check_calls(home.truth)


def test_tier_changes_within_a_thread(world: World, home: CodexHome) -> None:
    """An event contains all settings. It lacks the tier if that is the standard tier."""
    thread = home.thread(world.root)
    for setting in ("flex", None, "priority", "default"):
        thread.begin_turn()
        tier = {} if setting is None else {"service_tier": setting}
        thread.event("thread_settings_applied", thread_settings={"model": "gpt-5.4", **tier})
        thread.call()
        world.ingest()
    assert tiers_of(world) == ["flex", "", "priority", ""]


def test_tier_of_a_usage_record_takes_precedence(world: World, home: CodexHome) -> None:
    thread = home.thread(world.root, records=True, counts=False)
    thread.begin_turn()
    thread.event("thread_settings_applied", thread_settings={"service_tier": "priority"})
    recorded: list[dict[str, Any]] = [{"service_tier": one} for one in ("flex", "default", None)]
    for number, fields in enumerate([*recorded, {}]):
        thread.record(f"resp_{number}", Tokens(10 + number, output=1), **fields)
    assert tiers_of(world) == ["flex", "", "priority", "priority"]


@pytest.mark.parametrize("restamped", [False, True])
def test_copied_usage_records_belong_to_the_parent(
    world: World, home: CodexHome, restamped: bool
) -> None:
    """Copied records contain the parent's id, so the parent's file is not needed."""
    parent = everyday(home, world.root, 2, records=True, counts=False)
    known = set(home.truth.calls)
    fork = parent.fork(restamped=restamped)
    fork.begin_turn()
    fork.call()
    parent.path.unlink()
    world.ingest()
    assert set(world.recorded()) == set(home.truth.calls) - known


def test_consecutive_calls_with_equal_tokens_are_two(world: World, home: CodexHome) -> None:
    """A larger total means that there was a new call, even if its token counts are the same."""
    thread = home.thread(world.root)
    thread.begin_turn()
    thread.tokens = lambda: Tokens(900, 100, 0, 0, 50, 5)  # type: ignore[method-assign]
    for repeats in (0, 2, 0):
        thread.call(repeats=repeats)
    world.check_calls(home.truth)
    assert len(world.calls) == 3
