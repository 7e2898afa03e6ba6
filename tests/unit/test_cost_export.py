"""Tests exports, and the queries in the DuckDB docs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from sidecar.cli.cost import cost
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices

PAGE = Path(__file__).parents[2] / "docs/how-to/duckdb.md"
VIEW, COPY, *QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
EVENTS = [
    LedgerEvent(
        at=datetime(2026, 11, 1 + number % 5, 23, 59, 59, 999_000, tzinfo=UTC),
        model=("claude-sonnet-4-5", "gpt-5", "/home/jane/models/own.gguf")[number % 3],
        provider=("anthropic", "openai", "nobody")[number % 3],
        agent="aider",
        workspace="file:///home/jane/project",
        session=f"/home/jane/project/{number % 4}",
        request_id=f"/home/jane/project/{number}",
        buckets=Buckets(input=number, cache_read=1_000, cache_write_5m=7, output=10, reasoning=3),
        reported_cost=Decimal("0.000000000001") if number == 0 else None,
    )
    for number in range(30)
]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> duckdb.DuckDBPyConnection:
    """DuckDB with the view of the docs, in a folder with the structure that they describe."""
    book = CostBook(state_dir())
    book.ledger.record_many(EVENTS)
    book.close()
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("shared/jane.csv", "jane.csv"):
        result = CliRunner().invoke(cost, ["export", "--output", name])
        assert result.exit_code == 0, result.output
    connection = duckdb.connect()
    connection.execute(VIEW)
    return connection


def test_costs_and_times_are_exact(shared: duckdb.DuckDBPyConnection) -> None:
    prices = Prices()
    expected = sum((prices.cost(event).usd or Decimal(0) for event in EVENTS), Decimal(0))
    query = 'SELECT count(*), sum(costUsd), sum(inputTokens), min(epoch_ms("at")) FROM calls'
    [(calls, usd, tokens, first)] = shared.execute(query).fetchall()
    assert (calls, usd, tokens) == (30, expected, sum(event.buckets.input for event in EVENTS))
    assert first == int(EVENTS[0].at.timestamp() * 1000)
    [(unpriced,)] = shared.execute("SELECT count(*) FROM calls WHERE costUsd IS NULL").fetchall()
    assert unpriced == 10


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_page_runs(shared: duckdb.DuckDBPyConnection, query: str) -> None:
    assert len(shared.execute(query).fetchall()) > 0


def test_the_shared_copy_has_no_path(shared: duckdb.DuckDBPyConnection) -> None:
    assert "/home/jane" in Path("shared/jane.csv").read_text("utf-8")
    shared.execute(COPY)
    copied = Path("shared/jane.csv").read_text("utf-8")
    assert "home" not in copied
    assert "own.gguf" in copied
    shared.execute(VIEW)
    [(calls,)] = shared.execute("SELECT count(*) FROM calls").fetchall()
    assert calls == 30


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    missing = str(tmp_path / "no/such/file")
    for form in ("jsonl", "csv"):
        result = CliRunner().invoke(cost, ["export", "--format", form, "--output", missing])
        assert (result.exit_code, "cannot write" in result.output) == (2, True)


@pytest.mark.usefixtures("shared")
def test_csv_can_be_written_to_a_file() -> None:
    printed = CliRunner().invoke(cost, ["export"]).stdout
    assert Path("jane.csv").read_text("utf-8") == printed
