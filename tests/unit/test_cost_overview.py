"""Tests that the table and charts of a cost report show the numbers in the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams

START = datetime(2026, 11, 10, 12, tzinfo=UTC)


def record(book: CostBook, model: str = "gpt-5", day: int = 0, tokens: int = 1_000_000) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": 0}
    at = START + timedelta(days=day)
    book.record(CostRecordParams(model=model, usage=usage, at=at))


def test_nothing_recorded_has_no_charts(book: CostBook) -> None:
    report = book.detail(CostDetailParams(charts=True))
    assert (report.charts, report.overview) == ([], "")
    assert report.table is not None
    assert (report.table.rows, report.table.total) == ([], [])


def test_report_without_charts_is_unchanged(book: CostBook) -> None:
    record(book)
    report = book.detail(CostDetailParams())
    assert (report.table, report.charts, report.overview) == (None, [], "")


def test_the_table_has_a_cell_for_each_number(book: CostBook) -> None:
    record(book)
    record(book, "nobody-knows-me", tokens=7)
    report = book.detail(CostDetailParams(charts=True))
    table = report.table
    assert table is not None
    assert table.heads[: table.names] == ["Model", "Category"]
    assert table.rows == [
        ["gpt-5", "main", "1", "1,000,000", "0", "0", "$1.25"],
        ["nobody-knows-me", "main", "1", "7", "0", "0", "unpriced"],
    ]
    total = ["Total", "", "2", "1,000,007", "0", "0", "≥$1.25"]
    assert table.total == total
    assert book.detail(CostDetailParams(charts=True, by=("session",))).table is not None


def test_charts_by_day_model_and_agent(book: CostBook) -> None:
    record(book)
    record(book, day=3, tokens=500_000)
    record(book, "nobody-knows-me", day=3)
    days, models, agents = book.detail(CostDetailParams(charts=True)).charts
    assert [(bar.label, bar.text) for bar in days.bars] == [
        ("2026-11-10", "$1.25"),
        ("2026-11-11", "$0.00"),
        ("2026-11-12", "$0.00"),
        ("2026-11-13", "≥$0.62"),  # without the call of an unknown model
    ]
    assert [bar.share for bar in days.bars] == [1.0, 0.0, 0.0, 0.5]
    assert [(bar.label, bar.text) for bar in models.bars] == [
        ("gpt-5", "$1.88"),
        ("nobody-knows-me", "unpriced"),
    ]
    assert [(bar.label, bar.text) for bar in agents.bars] == [("protocol", "≥$1.88")]


def test_many_days_and_models_stay_a_chart(book: CostBook) -> None:
    for number in range(20):
        record(book, f"gpt-5-2025-01-{number + 1:02}", day=2 * number)
    days, models, _ = book.detail(CostDetailParams(charts=True)).charts
    assert len(days.bars) == 30
    assert len(models.bars) == 12
    assert models.bars[-1].label == "9 others"


@pytest.mark.parametrize("width", [200, 80, 40])
def test_plain_text_fits_the_width(book: CostBook, width: int) -> None:
    for model in ("gpt-5", "an-unknown-model-with-a-long-name-" * 3):
        record(book, model)
    report = book.detail(CostDetailParams(charts=True, width=width))
    table = report.overview.split("\n\n")[0].split("\n")
    assert max(map(len, table)) <= width
    assert table[0].endswith("Cost")
    assert ("Cache read" in table[0]) == (width > 40)
    assert ("…" in report.overview) == (width < 200)


def test_plain_text_has_each_row_once_and_escapes_names(book: CostBook) -> None:
    record(book)
    record(book, "evil\x1b[2J\u202e")
    report = book.detail(CostDetailParams(charts=True))
    lines = report.overview.split("\n")
    assert all(line.isprintable() for line in lines)
    for title in ("By day", "By model", "By agent"):
        assert title in lines
    assert report.table is not None
    assert all(cell.isprintable() for row in report.table.rows for cell in row)
