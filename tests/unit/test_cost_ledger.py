"""Tests that the ledger records each call once, that its daily totals are right, and that an unusable
ledger is reported and loses no call.
"""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.cost import ledger as ledger_file
from sidecar.cost.ledger import SUMS, Ledger, LedgerError
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from tests.unit.cost_calls import held

START = datetime(2026, 11, 20, 10, tzinfo=UTC)


def call(
    number: int = 0, *, request: str | None = None, output: int = 5, cost: str | None = None
) -> LedgerEvent:
    """Return a call made `number` minutes after `START`."""
    return LedgerEvent(
        at=START + timedelta(minutes=number),
        model="gpt-5",
        provider="openai",
        buckets=Buckets(input=100 + number, output=output),
        workspace="file:///w",
        session="s",
        request_id=request,
        estimated_tokens=90,
        reported_cost=None if cost is None else Decimal(cost),
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / "ledger.db")


def rows(ledger: Ledger, query: str) -> list[tuple[object, ...]]:
    with ledger.reader() as connection:
        return connection.execute(query).fetchall()


def test_a_request_id_counts_once(ledger: Ledger) -> None:
    assert ledger.record(call(request="a")) == ("a", False)
    assert ledger.record(call(1, request="a")) == ("a", True)
    elsewhere = msgspec.structs.replace(call(request="a"), provider="anthropic")
    assert ledger.record(elsewhere) == ("a", False), "ids are unique for a provider"
    assert rows(ledger, "SELECT sum(calls), sum(input) FROM event_sums") == [(2, 200)]
    ledger.close()
    other = Ledger(ledger.path)
    assert other.record(msgspec.structs.replace(call(request="a"), session="t")).duplicate
    other.close()


def test_an_agents_call_counts_once_when_its_provider_gets_another_name(ledger: Ledger) -> None:
    first = msgspec.structs.replace(call(request="a", output=1), agent="cline")
    renamed = msgspec.structs.replace(first, provider="newco", buckets=Buckets(input=100, output=9))
    assert ledger.record_many([first]).new == [first]
    assert ledger.record_many([renamed]).new == []
    assert rows(ledger, "SELECT sum(calls), sum(output) FROM event_sums") == [(1, 9)]
    other_agent = msgspec.structs.replace(renamed, agent="amp", provider="thirdco")
    assert ledger.record_many([other_agent]).new == [other_agent]


def test_an_agents_call_that_a_plugin_reported_counts_once(ledger: Ledger) -> None:
    agents = msgspec.structs.replace(call(request="a"), agent="cline")
    ledger.record(call(request="a"))
    assert ledger.record_many([agents]).new == []
    ledger.record_many([msgspec.structs.replace(agents, request_id="b")])
    assert ledger.record(call(request="b")).duplicate


def test_two_requests_with_one_key_are_both_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.cost.ledger._hash_request", lambda _request: 7)
    assert [ledger.record(call(request=name)).duplicate for name in "aba"] == [False, False, True]
    batch = ledger.record_many(call(request=name) for name in "acbca")
    assert [event.request_id for event in batch.new] == ["c"]
    assert ledger.record_many([call(request="c"), call(request="d")]).new == [call(request="d")]
    assert rows(ledger, "SELECT request FROM event ORDER BY id") == [(name,) for name in "abcd"]


def test_repeated_call_in_a_batch_is_amended(ledger: Ledger) -> None:
    calls = [call(request="a", output=1), call(request="a", output=9), call(request="a", output=4)]
    assert ledger.record_many(calls) == ([calls[0]], True, 0)
    assert rows(ledger, "SELECT output FROM event") == [(9,)]


def test_invalid_calls_in_a_batch_are_skipped(ledger: Ledger) -> None:
    valid = call(request="b")
    invalid = [
        call(request="a", output=-1),
        call(request="a", cost="NaN"),
        call(request="\ud800"),
        call(request="a" * 1000),
        msgspec.structs.replace(valid, telemetry_id="\ud800"),
        msgspec.structs.replace(valid, model=""),
        msgspec.structs.replace(valid, session="\ud800"),
    ]
    batch = ledger.record_many([*invalid[:4], valid, *invalid[4:]])
    assert batch == ([valid], True, len(invalid))
    assert rows(ledger, "SELECT request FROM event") == [("b",)]


def test_amending_keeps_the_larger_numbers(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "FOLD_EVERY", 1)
    ledger.record(call(request="a", output=1))
    assert ledger.record_many([call(3, request="a", output=9)]).new == []
    assert ledger.record_many([call(4, request="a", output=4)]).new == []
    assert ledger.record(call(5, request="a", output=99)).duplicate
    query = "SELECT calls, input, output, estimated FROM {}"
    assert rows(ledger, query.format("daily")) == [(1, 103, 9, 90)]
    assert rows(ledger, query.format("event_sums")) == [(1, 103, 9, 90)]
    assert rows(ledger, "SELECT at FROM event") == [(int(START.timestamp()) * 1000,)]


def test_amending_keeps_a_reported_cost(ledger: Ledger) -> None:
    ledger.record(call(request="a", output=1, cost="0.5"))
    ledger.record_many([call(request="a", output=9)])
    query = "SELECT output, reported, cost, basis FROM event"
    assert rows(ledger, query) == [(9, 5 * 10**11, 5 * 10**11, "reported")]


def test_record_many_is_atomic(ledger: Ledger) -> None:
    def offset(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE offset (at INTEGER)")

    batch = ledger.record_many([call(request="a"), call(request="a"), call(1)], also=offset)
    assert batch == ([call(request="a"), call(1)], True, 0)
    assert ledger.record_many([call(request="a")]) == ([], False, 0)
    assert ledger.record_many([call(request="a", output=9_999)]) == ([], True, 0)

    def fail(_connection: sqlite3.Connection) -> None:
        raise RuntimeError

    fresh = msgspec.structs.replace(call(2, request="b"), model="new", session="new")
    with pytest.raises(RuntimeError):
        ledger.record_many([fresh], also=fail)
    assert rows(ledger, "SELECT count(*) FROM event") == [(2,)]
    assert not ledger.record(fresh).duplicate, "names that were rolled back are made again"
    names = "SELECT model FROM event JOIN kind ON kind.id = event.kind ORDER BY event.id"
    assert rows(ledger, names) == [("gpt-5",), ("gpt-5",), ("new",)]


_number = st.integers(0, 10**6)
_events = st.builds(
    LedgerEvent,
    at=st.integers(0, 10**6).map(lambda seconds: START + timedelta(seconds=seconds)),
    model=st.sampled_from(["gpt-5", "claude-haiku-4-5"]),
    provider=st.sampled_from(["openai", "openrouter"]),
    category=st.sampled_from(["main", "summary"]),
    tier=st.sampled_from(["", "batch"]),
    session=st.sampled_from(["a", "b"]),
    buckets=st.builds(
        Buckets,
        **dict.fromkeys(Buckets.__struct_fields__, _number),
    ),
    request_id=st.none() | st.sampled_from("abcdef"),
    estimated_tokens=st.none() | _number,
    reported_cost=st.none() | st.decimals(0, 10, places=9),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(_events, st.booleans()), max_size=30), st.sampled_from([1, 3, 7]))
def test_rollups_are_the_sums_of_the_events(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    calls: list[tuple[LedgerEvent, bool]],
    fold_every: int,
) -> None:
    monkeypatch.setattr(ledger_file, "FOLD_EVERY", fold_every)
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.db")
    for event, amend in calls:
        ledger.record_many([event]) if amend else ledger.record(event)
    sums = ", ".join(f"sum({name})" for name in SUMS)
    keys = "day, session, kind"
    by_event = (
        f"SELECT {keys}, {sums} FROM event_sums WHERE id <= (SELECT upto FROM folded) "  # noqa: S608
        f"GROUP BY {keys} ORDER BY {keys}"
    )
    by_day = f"SELECT {keys}, {', '.join(SUMS)} FROM daily WHERE calls > 0 ORDER BY {keys}"  # noqa: S608
    assert rows(ledger, by_day) == rows(ledger, by_event)
    assert rows(ledger, f"SELECT upto / {fold_every} FROM folded") == rows(  # noqa: S608
        ledger,
        f"SELECT coalesce(max(id), 0) / {fold_every} FROM event",  # noqa: S608
    )
    ledger.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"buckets": Buckets(input=-1)}, "token count"),
        ({"buckets": Buckets(output=10**13)}, "token count"),
        ({"estimated_tokens": -1}, "token count"),
        ({"model": ""}, "model"),
        ({"model": "m" * 513}, "model"),
        ({"category": "c" * 513}, "category"),
        ({"session": "s" * 513}, "session"),
        ({"request_id": "r" * 513}, "requestId"),
        ({"at": datetime(1969, 12, 31, tzinfo=UTC)}, "1969"),
        ({"at": datetime(9999, 12, 31, tzinfo=UTC)}, "9999"),
        ({"reported_cost": Decimal("1e308")}, "USD"),
        ({"reported_cost": Decimal(-1)}, "USD"),
    ],
)
def test_invalid_calls_are_refused(ledger: Ledger, change: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ledger.record(msgspec.structs.replace(call(), **change))
    assert rows(ledger, "SELECT count(*) FROM event") == [(0,)]
    ledger.record(call())


def test_moved_ledger_is_replaced_by_a_new_one(ledger: Ledger) -> None:
    ledger.record(call())
    for file in list(ledger.path.parent.iterdir()):
        file.rename(file.with_name(f"old-{file.name}"))
    assert rows(ledger, "SELECT count(*) FROM event") == [(0,)]
    ledger.record(call())
    assert rows(ledger, "SELECT count(*) FROM event") == [(1,)]


def test_ledger_of_a_newer_version_is_not_changed(ledger: Ledger) -> None:
    ledger.record(call())
    ledger.close()
    connection = sqlite3.connect(ledger.path)
    connection.execute(f"PRAGMA user_version = {ledger_file.VERSION + 1}")
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="newer version"):
        ledger.record(call())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path / "file" / "ledger.db").record(call())


@pytest.mark.parametrize(
    "content", ["CREATE TABLE other (id)", "CREATE TABLE event (id); PRAGMA user_version = 1"]
)
def test_a_database_of_another_form_is_renamed_and_named_in_the_log(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path)
    other.executescript(content)
    before = list(other.iterdump())
    other.close()
    ledger = Ledger(path)
    assert not ledger.record(call(request="a")).duplicate
    ledger.close()
    (aside,) = tmp_path.glob("ledger.db.broken-*")
    assert aside.name in caplog.text
    kept = sqlite3.connect(aside)
    assert list(kept.iterdump()) == before
    kept.close()


COUNT = "SELECT count(*) FROM event"


def long_call(number: int) -> LedgerEvent:
    session = f"a session with a long name {number}" * 5
    return msgspec.structs.replace(call(number % 1000, request=f"r-{number}"), session=session)


def record_until_failure(ledger: Ledger, numbers: range) -> int:
    """Record calls until the ledger fails, and return how many were recorded."""
    for done, number in enumerate(numbers):
        try:
            ledger.record(long_call(number))
        except LedgerError:
            return done
    return len(numbers)


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_a_truncated_file(ledger: Ledger, left: float) -> None:
    assert record_until_failure(ledger, range(200)) == 200
    ledger.close()
    os.truncate(ledger.path, int(ledger.path.stat().st_size * left))
    before = record_until_failure(ledger, range(1000, 1200))
    assert before < 200
    with pytest.raises(LedgerError, match=r"damaged|cannot be used"):
        ledger.record(long_call(1000 + before))


def test_a_file_that_another_process_locks(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record(long_call(1))
    ledger.close()
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.2)
    with held(ledger.path), pytest.raises(LedgerError, match="locked"):
        ledger.record(long_call(2))
    ledger.record(long_call(2))
    assert rows(ledger, COUNT) == [(2,)]


def test_a_full_disk(ledger: Ledger) -> None:
    """Earlier calls are kept while the disk is full, and recording continues once there is space."""
    resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")
    kept = record_until_failure(ledger, range(50))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in ledger.path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 300_000, hard))
    try:
        more = record_until_failure(ledger, range(50, 5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < more < 4_950
    assert rows(ledger, COUNT) == [(kept + more,)]
    ledger.record(long_call(10_000))
    assert rows(ledger, COUNT) == [(kept + more + 1,)]
