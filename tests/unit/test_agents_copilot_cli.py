"""Tests the Copilot CLI reader with event files and a database that another process writes to."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from benchmarks.agents.copilot_cli import CliHome, everyday
from sidecar.agents.stores import COMPACTED, NO_USAGE
from sidecar.models import catalogue
from tests.unit.agents_world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sidecar.agents.events import StoredSession


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
        world.ingest()
        world.check(home.truth)
        home.call(session)
    world.check_context(home.truth)
    world.ingest()
    world.check(home.truth)


def test_only_new_rows_are_read(world: World, newer: CliHome) -> None:
    session = everyday(newer, world.root)
    world.ingest()
    before = len(world.calls)
    newer.call(session)
    newer.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    world.ingest()
    assert len(world.calls) == before + 1
    world.check(newer.truth)


def test_cost_comes_from_credits(world: World, newer: CliHome) -> None:
    everyday(newer, world.root)
    world.ingest()
    assert {call.cost_usd for call in world.calls} == {Decimal("0.025")}
    assert {call.category for call in world.calls} == {"main", "summary", "subagent"}
    assert {call.workspace for call in world.calls} == {str(world.root)}


def test_compaction_does_not_set_the_context_size(world: World, newer: CliHome) -> None:
    session = everyday(newer, world.root)
    newer.call(session, "compaction")
    assert only(world).note == COMPACTED
    newer.call(session)
    world.check_context(newer.truth)


def test_tier_determines_the_window(world: World, newer: CliHome) -> None:
    catalogue.warm()
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
    assert {call.usage.prompt_tokens for call in world.calls} == {0}
    assert (only(world).tokens, only(world).note) == (None, NO_USAGE)


def test_message_that_is_read_before_its_row_counts_once(world: World, newer: CliHome) -> None:
    everyday(newer, world.root)
    session = newer.session(world.root)
    newer.event(session, "assistant.message", messageId="first", outputTokens=50)
    world.ingest()
    newer.call(session)
    world.ingest()
    world.check(newer.truth)


def test_sessions_of_other_folders_are_ignored(world: World, newer: CliHome) -> None:
    other = world.home / "other"
    other.mkdir()
    mine = everyday(newer, other)
    everyday(newer, world.root)
    assert set(world.sessions(other)) == {mine}


def test_reading_writes_nothing(world: World, newer: CliHome) -> None:
    everyday(newer, world.root)
    newer.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = newer.path.read_bytes()
    world.ingest()
    world.sessions()
    assert newer.path.read_bytes() == before
    assert {path.name for path in newer.folder.iterdir() if path.is_file()} == {
        "session-store.db",
        "session-store.db-wal",
        "session-store.db-shm",
    }
