"""Tests Parquet exports, and the queries in the DuckDB docs."""

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
from sidecar.cost.events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices

PAGE = Path(__file__).parents[2] / "docs/how-to/duckdb.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
EVENTS = [
    LedgerEvent(
        at=datetime(2026, 11, 1 + number % 5, 23, 59, 59, 999_000, tzinfo=UTC),
        model=("claude-sonnet-4-5", "gpt-5", "unknown-model")[number % 3],
        provider=("anthropic", "openai", "nobody")[number % 3],
        agent="claude-code",
        session=f"session-{number % 4}",
        request_id=str(number),
        buckets=Buckets(input=number, cache_read=1_000, cache_write_5m=7, output=10, reasoning=3),
        reported_cost=Decimal("0.000000000001") if number == 0 else None,
    )
    for number in range(30)
]


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared folder with the structure that the docs describe."""
    book = CostBook(state_dir())
    book.ledger.record_many(EVENTS)
    book.close()
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("shared/jane.parquet", "jane.parquet"):
        result = CliRunner().invoke(cost, ["export", "--format", "parquet", "--output", name])
        assert result.exit_code == 0, result.output
    return tmp_path / "shared"


def test_costs_and_times_are_exact(shared: Path) -> None:
    prices = Prices()
    expected = sum((prices.cost(event).usd or Decimal(0) for event in EVENTS), Decimal(0))
    query = "SELECT count(*), sum(costUsd), sum(inputTokens), min(epoch_ms(\"at\")) FROM 'shared/*.parquet'"
    calls, usd, tokens, first = duckdb.execute(query).fetchall()[0]
    assert (calls, usd, tokens) == (30, expected, sum(event.buckets.input for event in EVENTS))
    assert first == int(EVENTS[0].at.timestamp() * 1000)
    assert duckdb.execute(
        "SELECT count(*) FROM 'shared/*.parquet' WHERE costUsd IS NULL"
    ).fetchall() == [(10,)]


@pytest.mark.parametrize("query", QUERIES)
def test_each_query_of_the_page_runs(shared: Path, query: str) -> None:
    rows = duckdb.sql(query)
    assert rows is None or len(rows.fetchall()) > 0


def test_parquet_needs_a_file_that_can_be_written(tmp_path: Path) -> None:
    assert CliRunner().invoke(cost, ["export", "--format", "parquet"]).exit_code == 2
    missing = str(tmp_path / "no/such/file")
    for form in ("parquet", "csv"):
        result = CliRunner().invoke(cost, ["export", "--format", form, "--output", missing])
        assert (result.exit_code, "cannot write" in result.output) == (2, True)


def test_csv_can_be_written_to_a_file(shared: Path) -> None:
    printed = CliRunner().invoke(cost, ["export"]).stdout
    CliRunner().invoke(cost, ["export", "--output", "calls.csv"])
    assert Path("calls.csv").read_text("utf-8") == printed
