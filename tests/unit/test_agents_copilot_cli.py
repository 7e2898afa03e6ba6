"""Tests the Copilot CLI reader with event files and a database that another process writes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents.copilot_cli import CliHome, everyday
from sidecar.agents.session_events import StoredSession
from sidecar.agents.stores import COMPACTED, NO_USAGE
from sidecar.models import catalogue
from tests.unit.agents_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "copilot-cli")


@pytest.fixture(params=[True, False], ids=["newer", "older"])
def home(world: World, request: pytest.FixtureRequest) -> Iterator[CliHome]:
    made = CliHome(world.home / ".copilot", newer=request.param)
    yield made
    made.db.close()


@pytest.fixture
def newer(world: World) -> Iterator[CliHome]:
    made = CliHome(world.home / ".copilot")
    yield made
    made.db.close()


def only(world: World) -> StoredSession:
    (session,) = world.sessions().values()
    return session


def test_every_call_counts_once_while_the_database_is_open(world: World, home: CliHome) -> None:
    for _ in range(3):
        session = everyday(home, world.root)
        world.check_calls(home.truth)
        home.call(session)
    world.check(home.truth)


def test_only_new_rows_are_read(world: World, newer: CliHome) -> None:
    session = everyday(newer, world.root)
    world.ingest()
    before = len(world.calls)
    newer.call(session)
    newer.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    world.ingest()
    assert len(world.calls) == before + 1
    world.check_calls(newer.truth)


def test_cost_comes_from_credits(world: World, newer: CliHome) -> None:
    everyday(newer, world.root)
    world.ingest()
    assert {call.reported_cost for call in world.calls} == {Decimal("0.025")}
    assert {call.category for call in world.calls} == {"main", "summary", "subagent"}
    assert {call.workspace for call in world.calls} == {str(world.root)}


def test_compaction_does_not_set_the_context_size(world: World, newer: CliHome) -> None:
    session = everyday(newer, world.root)
    newer.call(session, "compaction")
    assert only(world).note == COMPACTED
    newer.call(session)
    world.check_context(newer.truth)


def test_tier_determines_the_window(world: World, newer: CliHome) -> None:
    catalogue.refresh()
    session = everyday(newer, world.root)
    newer.event(session, "session.model_change", newModel="claude-opus-5", contextTier="default")
    assert only(world).limit == 200_000
    newer.event(session, "session.model_change", newModel="claude-opus-5", contextTier="long")
    assert only(world).limit == 1_000_000
    newer.event(session, "session.truncation", tokenLimit=128_000)
    assert only(world).limit == 128_000


def test_session_with_only_events_is_a_lower_bound(world: World, newer: CliHome) -> None:
    """Totals in the events are ignored, because they may cover only a part of the session."""
    session = everyday(newer, world.root)
    newer.db.execute("DELETE FROM assistant_usage_events")
    newer.event(session, "assistant.message", messageId="other", outputTokens=50)
    world.ingest()
    assert {call.buckets.prompt for call in world.calls} == {0}
    assert (only(world).tokens, only(world).note) == (None, NO_USAGE)


def test_message_that_is_read_before_its_row_counts_once(world: World, newer: CliHome) -> None:
    everyday(newer, world.root)
    session = newer.session(world.root)
    newer.event(session, "assistant.message", messageId="first", outputTokens=50)
    world.ingest()
    newer.call(session)
    world.check_calls(newer.truth)


def test_sessions_of_other_folders_are_ignored(world: World, newer: CliHome) -> None:
    other = world.home / "other"
    other.mkdir()
    mine = everyday(newer, other)
    everyday(newer, world.root)
    assert set(world.sessions(other)) == {mine}


def record(tokens: int, **fields: Any) -> dict[str, Any]:
    counts = {"inputTokens": tokens, "outputTokens": 9, "cacheReadTokens": 5, "reasoningTokens": 4}
    return {"model": "gpt-5", "maxPromptTokens": 150_000, **counts, **fields}


@pytest.mark.parametrize("has_rows", [True, False], ids=["terminal", "editor"])
def test_records_of_the_event_log_count_once(
    world: World, newer: CliHome, *, has_rows: bool
) -> None:
    """Editors' sessions (ACP) have no rows. Rows are a few milliseconds older than records."""
    session = newer.session(world.root)
    if has_rows:
        newer.call(session)
    newer.event(session, "session.usage_record", usage=record(100, isByok=True))
    newer.event(session, "session.usage_record", usage=record(70, parentToolCallId="call"))
    tokens = {"model": "gpt-5", "inputTokens": 80, "outputTokens": 3, "cacheReadTokens": 2}
    newer.event(session, "session.compaction_complete", compactionTokensUsed=tokens)
    own = {"isByok": True, "modelProvider": "azure_openai"}
    newer.event(session, "session.usage_record", usage=record(120, **own))
    if has_rows:
        newer.call(session)
    world.ingest()
    recorded = [call for call in world.calls if call.model == "gpt-5"]
    found = {(call.buckets.prompt, call.category, call.provider) for call in recorded}
    assert found == {
        (100, "main", "openai"),
        (70, "subagent", "github-copilot"),
        (80, "summary", "github-copilot"),
        (120, "main", "azure"),
    }
    assert len(world.calls) == 4 + has_rows  # only the row before the records counts
    shown = only(world)
    assert (shown.tokens, shown.limit, shown.note) == (129, 150_000, None)


@pytest.mark.parametrize("has_records", [True, False], ids=["records", "messages"])
def test_calls_in_the_copied_log_of_a_fork_count_once(
    world: World, newer: CliHome, *, has_records: bool
) -> None:
    def call(session: str, number: int) -> None:
        if has_records:
            newer.event(session, "session.usage_record", usage=record(100 + number))
        else:
            newer.event(session, "assistant.message", outputTokens=100 + number)

    def fork(source: str) -> str:
        made = newer.session(world.root)
        folder = newer.folder / "session-state"
        copied = (folder / source / "events.jsonl").read_text().splitlines(keepends=True)
        with (folder / made / "events.jsonl").open("a") as log:
            log.writelines(copied[1:])  # the first event, `session.start`, is the fork's own
        call(made, 10)
        return made

    session = newer.session(world.root)
    for number in range(3):
        call(session, number)
    first = fork(session)
    second = fork(first)
    call(session, 20)
    world.ingest()
    owners = Counter(owner for owner, _ in world.recorded().values())
    assert owners == {session: 4, first: 1, second: 1}
