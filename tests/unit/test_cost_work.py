"""Tests how much work a cost report takes: connections, SQL statements and totals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from sidecar.cost import ledger as ledger_file
from sidecar.cost.cost_protocol import CostKey
from sidecar.cost.days import TimeRange, local_day, milliseconds
from sidecar.cost.ledger import Ledger, LedgerError, ReadCancelledError
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.reports import report, tally_calls
from sidecar.cost.sums import Scope, Tally, read_events, read_tallies

START = datetime(2026, 6, 1, tzinfo=UTC)
CALLS = 60
QUESTIONS = 7
"""The number of SQL statements for a report on whole days."""


def calls(count: int = CALLS) -> Iterator[LedgerEvent]:
    """Yield calls to two models. Each day has its own session."""
    for number in range(count):
        yield LedgerEvent(
            at=START + timedelta(hours=number * 5),
            model=("gpt-5", "gpt-5-mini")[number % 2],
            provider="openai",
            buckets=Buckets(input=number, output=1),
            session=f"s{number * 5 // 24}",
        )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return a list that records each new read connection."""
    made: list[sqlite3.Connection] = []
    connect = ledger_file.connect_reader

    def counted(path: Path) -> sqlite3.Connection:
        made.append(connect(path))
        return made[-1]

    monkeypatch.setattr(ledger_file, "connect_reader", counted)
    return made


@pytest.fixture
def ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[sqlite3.Connection]
) -> Iterator[Ledger]:
    """Yield a ledger whose daily totals include almost all calls."""
    monkeypatch.setattr(ledger_file, "FOLD_EVERY", 25)
    made = Ledger(tmp_path / "ledger.db", UTC)
    made.record_many(calls())
    yield made
    made.close()


def count(ledger: Ledger) -> int:
    with ledger.reader() as connection:
        (found,) = connection.execute("SELECT count(*) FROM event").fetchone()
    return int(found)


def test_report_of_whole_days_runs_seven_statements(ledger: Ledger) -> None:
    asked: list[str] = []
    scope = Scope(times=TimeRange(local_day(START, UTC)))
    with ledger.reader() as connection:
        connection.set_trace_callback(asked.append)
        result = report(connection, Prices(), scope, ["model"])
        connection.set_trace_callback(None)
    assert result.totals.calls == CALLS
    assert len(asked) == QUESTIONS, asked


MODELS = ("gpt-5", "claude-sonnet-4-5", "nobody-knows-me", "reported")


@pytest.fixture
def many_sessions(ledger: Ledger) -> Ledger:
    """Add sessions with every kind of price. Some session names are used by two agents."""
    ledger.record_many(
        LedgerEvent(
            at=START + timedelta(hours=number),
            model=MODELS[number % 4],
            provider="openai",
            agent="codex" if number % 3 else "claude-code",
            session=f"m{number * 7 % 50}",
            buckets=Buckets(input=100 + number * 3_000, cache_read=number, output=number % 11),
            reported_cost=Decimal(number) / 1000 if number % 4 == 3 else None,
        )
        for number in range(200)
    )
    return ledger


@pytest.mark.parametrize("times", [TimeRange(), TimeRange(start_ms=milliseconds(START) + 7)])
def test_sessions_are_ranked_by_their_exact_costs(many_sessions: Ledger, times: TimeRange) -> None:
    prices, scope = Prices(), Scope(times=times)
    expected: dict[tuple[str, str], Decimal] = {}
    for event in read_events(many_sessions, scope):
        key = event.session, event.agent
        cost = prices.cost(event).usd or Decimal(0)
        expected[key] = expected.get(key, Decimal(0)) + cost
    with many_sessions.reader() as connection:
        found = read_tallies(connection, scope, ("session", "agent"))
    ranked = sorted(expected, key=lambda name: (-expected[name], name))
    assert list(found) == ranked
    assert {name: tally.cost for name, tally in found.items()} == expected


@pytest.mark.parametrize("key", ["agent", "workspace"])
def test_few_owners_are_summed_by_the_ledger(many_sessions: Ledger, key: CostKey) -> None:
    with many_sessions.reader() as connection:
        by_owner = tally_calls(connection, Prices(), Scope(), (key,))
        by_session = tally_calls(connection, Prices(), Scope(), (key, "session"))
    added: dict[tuple[str | None, ...], Tally] = {}
    for (owner, _), tally in by_session.items():
        added[owner,] = added.get((owner,), Tally()) + tally
    assert by_owner == added


@pytest.mark.parametrize("how", ["cancelled", "faulty"])
def test_connection_is_closed_after_an_error(
    ledger: Ledger, opened: list[sqlite3.Connection], how: str
) -> None:
    cancelled = (lambda: True) if how == "cancelled" else None
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n"
    with (
        pytest.raises(ReadCancelledError if cancelled else LedgerError),
        ledger.reader(cancelled) as connection,
    ):
        connection.execute(slow if cancelled else "SELECT nonsense")
    assert closed(opened[0])
    assert count(ledger) == CALLS


def test_cancelling_one_report_does_not_cancel_the_next(ledger: Ledger) -> None:
    given_up = False
    with ledger.reader(lambda: given_up) as connection:
        connection.execute("SELECT count(*) FROM event").fetchone()
    given_up = True
    with ledger.reader() as connection:
        rows = connection.execute("SELECT 1 FROM event AS a, event AS b, event AS c").fetchall()
    assert len(rows) == CALLS**3


def test_report_survives_closing_the_ledger(
    ledger: Ledger, opened: list[sqlite3.Connection]
) -> None:
    with ledger.reader() as connection:
        ledger.close()
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (CALLS,)
    assert closed(connection)
    assert count(ledger) == CALLS
    ledger.close()
    assert all(map(closed, opened))


def test_reads_share_a_connection_and_see_new_calls(
    ledger: Ledger, opened: list[sqlite3.Connection]
) -> None:
    assert count(ledger) == CALLS
    ledger.record_many(calls(1))
    assert count(ledger) == CALLS + 1
    assert len(opened) == 1


def test_reads_at_the_same_time_have_their_own_connections(
    ledger: Ledger, opened: list[sqlite3.Connection]
) -> None:
    with ledger.reader() as connection:
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (CALLS,)
        ledger.record_many(calls(1))
        assert count(ledger) == CALLS + 1
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (CALLS,)
    assert len(opened) == 2
    assert [closed(one) for one in opened] == [True, False], "one connection is kept"


def closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False
