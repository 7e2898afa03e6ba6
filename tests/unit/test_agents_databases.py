"""Tests the readers for Goose, Crush and Zed with databases that another process writes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.agents.databases import CrushStore, GooseStore, ZedStore
from sidecar.agents.compressed import zstd
from sidecar.agents.stores import COMPACTED, NO_USAGE
from tests.unit.agents_world import World


@pytest.fixture
def goose(tmp_path: Path) -> Iterator[tuple[World, GooseStore]]:
    world = World(tmp_path, "goose")
    store = GooseStore(world.home / ".local/share/goose/sessions/sessions.db")
    yield world, store
    store.db.close()


@pytest.fixture
def crush(tmp_path: Path) -> Iterator[tuple[World, CrushStore]]:
    world = World(tmp_path, "crush")
    store = CrushStore(world.root / ".crush" / "crush.db")
    listed = world.home / ".local/share/crush/projects.json"
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps({"projects": [{"path": str(world.root), "data_dir": ".crush"}]}))
    yield world, store
    store.db.close()


@pytest.fixture(params=[True, False], ids=["zstd", "json"])
def zed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[World, ZedStore]]:
    world = World(tmp_path, "zed")
    store = ZedStore(world.home / ".local/share/zed/threads/threads.db")
    store.pack = zstd.compress if request.param else None
    yield world, store
    store.db.close()


@pytest.mark.parametrize("ledger", [True, False])
def test_goose_calls_count_once(goose: tuple[World, GooseStore], ledger: bool) -> None:
    """Calls come from Goose's ledger or, if there is none, from the `accumulated` columns."""
    world, store = goose
    for _ in range(2):
        store.session(world.root, ledger=ledger)
        world.check_calls(store.truth)
    world.check_context(store.truth)
    shown = next(iter(world.sessions().values()))
    assert (shown.limit, shown.title) == (1_000_000, "A name")


@pytest.mark.parametrize("source", ["provider_reported", "estimated", None])
def test_goose_bills_only_what_the_provider_reports(
    goose: tuple[World, GooseStore], source: str | None
) -> None:
    """Costs from any other source were calculated by Goose from its own price list."""
    world, store = goose
    store.session(world.root, ledger=True)
    store.db.execute("UPDATE usage_ledger SET cost_source = ?", (source,))
    world.ingest()
    costs = {(call.reported_cost, call.agent_cost) for call in world.calls}
    cost = Decimal("0.01")
    assert costs == {(cost, None) if source == "provider_reported" else (None, cost)}


def test_goose_calls_have_the_time_of_their_request(goose: tuple[World, GooseStore]) -> None:
    world, store = goose
    store.session(world.root, ledger=True)
    (written,) = zip(*store.db.execute("SELECT created_timestamp FROM usage_ledger"), strict=True)
    world.ingest()
    assert tuple(call.at.timestamp() for call in world.calls) == written
    assert len(set(written)) == 3


@pytest.mark.parametrize("continued", [True, False], ids=["continued", "not continued"])
@pytest.mark.parametrize("ledger", [True, False])
def test_goose_counts_an_imported_session_once(
    goose: tuple[World, GooseStore], ledger: bool, continued: bool
) -> None:
    """An import copies messages and the total, which becomes the first row of the ledger."""
    world, store = goose
    original = store.session(world.root, ledger=ledger)
    copy = store.copy(original, imported=True)
    if continued:
        store.db.execute(store.ledger_table)
        store.carry_forward(copy)
        store.call(copy, ledger=True)
    world.check_calls(store.truth)


def test_goose_counts_the_calls_of_a_fork(goose: tuple[World, GooseStore]) -> None:
    world, store = goose
    fork = store.copy(store.session(world.root), imported=False)
    store.call(fork)
    world.check_calls(store.truth)


def test_goose_counts_a_total_once_when_the_ledger_begins(goose: tuple[World, GooseStore]) -> None:
    """Goose carries the total of a session that an older version began into the ledger."""
    world, store = goose
    name = store.session(world.root)
    world.ingest()
    store.db.execute(store.ledger_table)
    store.carry_forward(name)
    store.call(name, ledger=True)
    world.check_calls(store.truth)


@pytest.mark.parametrize("ledger", [True, False])
def test_goose_subagents_are_billed_but_not_listed(
    goose: tuple[World, GooseStore], ledger: bool
) -> None:
    world, store = goose
    parent = store.session(world.root, 1, ledger=ledger)
    store.session(world.root, 1, ledger=ledger, parent=parent)
    world.check(store.truth)
    assert [call.category for call in world.calls] == ["main", "subagent"]
    assert len(world.sessions()[parent].subagents) == 1


def test_goose_reads_only_what_changed(goose: tuple[World, GooseStore]) -> None:
    world, store = goose
    for _ in range(5):
        store.session(world.root)
    world.ingest()
    store.session(world.root)
    before = len(world.calls)
    world.ingest()
    assert len(world.calls) - before == 2
    assert world.ingest() == 0


def test_crush_shows_the_size_of_the_newest_call(crush: tuple[World, CrushStore]) -> None:
    world, store = crush
    name = store.session()
    store.session(parent=name)
    world.check_context(store.truth)
    for calls in (4, 5):
        store.session(name, calls)
        world.ingest()
    world.check_context(store.truth)
    assert {call.buckets.prompt for call in world.calls} == {0}
    with world.ledger.reader() as connection:
        rows = connection.execute("SELECT reported FROM event ORDER BY reported").fetchall()
    assert [row[0] for row in rows] == [750_000_000_000, 1_250_000_000_000]
    assert world.calls[-1].reported_cost == Decimal("1.25")


def test_crush_size_is_unknown_after_a_summary(crush: tuple[World, CrushStore]) -> None:
    world, store = crush
    name = store.session()
    store.summarize(name)
    shown = world.sessions()[name]
    assert (shown.tokens, shown.note) == (None, COMPACTED)


def test_zed_calls_count_once(zed: tuple[World, ZedStore]) -> None:
    """A message's usage covers only the turn's latest call, so costs use the cumulative usage."""
    world, store = zed
    for turns in (1, 3):
        name = store.thread(world.root, turns)
    store.thread(world.root, 1, parent=name)
    world.check(store.truth)
    before = len(world.calls)
    store.thread(world.root, 2)
    world.check_calls(store.truth)
    assert len(world.calls) - before == 2
    assert {call.provider for call in world.calls} == {"anthropic"}


def test_zed_older_threads_list_their_usage(zed: tuple[World, ZedStore]) -> None:
    world, store = zed
    store.thread(world.root, 3, as_list=True)
    world.check(store.truth)


@pytest.mark.parametrize("as_list", [False, True])
def test_zed_threads_without_usage_show_the_reason(
    zed: tuple[World, ZedStore], as_list: bool
) -> None:
    world, store = zed
    store.thread(world.root, as_list=as_list, reports=False)
    assert [session.note for session in world.sessions().values()] == [NO_USAGE]


def test_damaged_zed_documents_are_skipped(zed: tuple[World, ZedStore]) -> None:
    world, store = zed
    store.thread(world.root)
    store.put("threads", id="broken", updated_at="2026-01-01", data_type="zstd", data=b"\x00",
              folder_paths=str(world.root))  # fmt: skip
    world.check(store.truth)
    assert [*world.skipped.values()] == [1]


def test_text_that_is_not_utf8_loses_nothing(crush: tuple[World, CrushStore]) -> None:
    world, store = crush
    store.session()
    with store.db:
        store.db.execute("UPDATE sessions SET title = CAST(x'41ff42' AS TEXT)")
    world.check_context(store.truth)
    assert [one.title for one in world.shown()] == ["A\ufffdB"]
