"""Tests that the cost page is self-contained and escaped, and shows the report's numbers."""

from __future__ import annotations

import csv
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote

import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.cache_losses import CacheLoss, LossCause
from sidecar.cost.cost_page import Choice, LedgerSource, SessionPrompts, panel, whole_page
from sidecar.cost.cost_protocol import CostDetailParams, FileCost
from sidecar.cost.sums import Scope
from sidecar.text.pages import Series, axis_maximum
from sidecar.text.printable import usd_text
from tests.unit.cost_calls import call_of, report_call

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


def fill(book: CostBook, model: str = "gpt-5", session: str = "s", workspace: str = "") -> None:
    for number in range(5):
        fields = {"model": model, "session": session, "workspace": workspace}
        estimate, at = 900 * (number + 1), START + timedelta(days=number)
        report_call(book, 1000 * (number + 1), 10, estimated_tokens=estimate, at=at, **fields)


class Outline(HTMLParser):
    """Collects tags, and checks that they are closed in the right order."""

    VOID = frozenset({"meta", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    assert found.open == []
    return found


def made(book: CostBook, scope: Scope | None = None, **labels: str) -> str:
    """Return the HTML of the cost page."""
    with book.ledger.reader() as connection:
        return whole_page(source(book, connection, scope, **labels), {})


def panel_of(book: CostBook, choice: Choice, scope: Scope | None = None, **labels: str) -> str:
    """Return a panel's contents."""
    with book.ledger.reader() as connection:
        return panel(source(book, connection, scope, **labels), choice).html


def source(
    book: CostBook, connection: sqlite3.Connection, scope: Scope | None, **labels: str
) -> LedgerSource:
    now = START + timedelta(days=4)
    return LedgerSource(
        connection=connection,
        prices=book.prices,
        scope=scope or Scope(),
        now=now,
        zone=UTC,
        label_of=labels.get,
    )


def cells(html: str) -> list[list[str]]:
    """Return the last table's cells, by row."""
    table = html.rsplit("<table", 1)[1]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table)
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.split("</t[hd]>", row)[:-1]] for row in rows
    ]


def csv_rows(html: str) -> list[dict[str, str]]:
    """Return the last table as CSV."""
    data = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', html)[-1]
    return list(csv.DictReader(StringIO(unquote(data))))


def test_page_is_self_contained(book: CostBook) -> None:
    fill(book)
    html = made(book)
    found = outline(html)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(found.tags)
    assert not {"src", "srcset", "data", "style"} & {name for name, _value in found.attributes}
    links = [value or "" for name, value in found.attributes if name == "href"]
    assert links
    assert all(link.startswith("data:text/csv") for link in links)
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme:dark" in html


def test_a_file_has_every_period_and_grouping(book: CostBook) -> None:
    fill(book)
    html = made(book)
    for period in ("today", "week", "month", "all"):
        assert html.count(f'class="choice period-{period}"') == 1
    for key in ("model", "agent", "session", "day", "week", "month"):
        assert html.count(f'class="choice by-{key}"') == 4
    assert "by-file" not in html.split("</style>")[1]


def test_a_range_is_the_only_period(book: CostBook) -> None:
    fill(book)
    with book.ledger.reader() as connection:
        found = source(book, connection, None)
        html = whole_page(found, {}, since="2026-11-02", until="2026-11-03")
    assert "From 2026-11-02 to 2026-11-03." in html
    assert "period-week" not in html.split("</style>")[1]
    assert cells(html)[-1][:2] == ["Total", "2"]


def test_an_age_is_shown_as_its_date(book: CostBook) -> None:
    fill(book)
    with book.ledger.reader() as connection:
        html = whole_page(source(book, connection, None), {}, since="3d")
    assert "From 2026-11-02 to now." in html
    assert cells(html)[-1][:2] == ["Total", "4"]


def test_the_parts_of_the_tokens_add_up(book: CostBook) -> None:
    usage = {
        "input_tokens": 1000,
        "cache_read_input_tokens": 20_000,
        "cache_creation_input_tokens": 3000,
        "output_tokens": 400,
    }
    report_call(book, model="claude-sonnet-4-5", usage=usage, at=START)
    html = panel_of(book, Choice("all"))
    assert "<dt>Tokens</dt><dd>24,400</dd>" in html
    parts = re.findall(r"<span>([\w ]+)</span><b>([\d,]+) \((\d+) %\)", html)
    assert parts == [
        ("Input", "1,000", "4"),
        ("Cache writes", "3,000", "12"),
        ("Cache reads", "20,000", "82"),
        ("Output", "400", "2"),
    ]


def test_no_part_of_the_tokens_is_shown_as_nothing_or_as_everything(book: CostBook) -> None:
    report_call(book, 1, 999, at=START)
    html = panel_of(book, Choice("all"))
    assert "<b>1 (&lt;1 %)</b>" in html
    assert "<b>999 (&gt;99 %)</b>" in html
    assert "<b>0 (0 %)</b>" in html


@pytest.mark.parametrize(
    ("choice", "first", "calls"),
    [
        (Choice("today", "day"), "2026-11-05", "1"),
        (Choice("week", "day"), "2026-11-05", "4"),
        (Choice("all", "week"), "2026-W45", "5"),
        (Choice("month", "month"), "2026-11", "5"),
        (Choice("all", "model"), "gpt-5", "5"),
        (Choice("all", "agent"), "protocol", "5"),
        (Choice("custom", "day", "2026-11-02", "2026-11-03"), "2026-11-03", "2"),
        (Choice("custom", "day", until="2026-11-01"), "2026-11-01", "1"),
    ],
)
def test_a_panel_shows_a_period_by_a_key(
    book: CostBook, choice: Choice, first: str, calls: str
) -> None:
    fill(book)
    table = cells(panel_of(book, choice))
    assert table[1][0] == first
    assert table[-1][:2] == ["Total", calls]


def test_rows_and_total_are_those_of_the_report(book: CostBook) -> None:
    fill(book)
    fill(book, "claude-sonnet-4-5", "0b8f4b52-7c1d-4c0e-8f6e-2f1c55a0c9aa")
    fill(book, "claude-haiku-4-5", "my chat")
    table = cells(panel_of(book, Choice("all", "session"), s="Fix the parser"))
    report = book.detail(CostDetailParams(by=("session",)))
    assert [row[-1] for row in table[1:-1]] == [usd_text(row.cost_usd or 0) for row in report.rows]
    assert table[-1][-1] == usd_text(report.totals.cost_usd)
    assert {row[0] for row in table[1:-1]} == {
        "Fix the parser · conversation",
        "2026-11-01 · conversation",
        "my chat · conversation",
    }


def test_an_agent_in_a_sessions_label_is_not_repeated(book: CostBook) -> None:
    for number, session in enumerate(("a", "b")):
        report_call(book, 1000 - number, session=session, at=START)
    choice = Choice("all", "session")
    html = panel_of(book, choice, a="conversation · 17:58", b="conversations are long")
    names = [row[0] for row in cells(html)[1:-1]]
    assert names == ["conversation · 17:58", "conversations are long · conversation"]


def test_csv_has_ids_and_full_precision(book: CostBook) -> None:
    fill(book)
    (row,) = csv_rows(panel_of(book, Choice("today", "session"), s="Fix the parser"))
    assert (row["session"], row["agent"], row["calls"]) == ("s", "protocol", "1")
    assert row["cost_usd"] == f"{(5000 * 1.25 + 100) / 10**6:.6f}".rstrip("0")


def test_basis_names_only_agents_with_calls_in_the_period(book: CostBook) -> None:
    for agent, days in (("codex", 0), ("opencode", 4)):
        book.ledger.record(call_of(agent, at=START + timedelta(days=days), tokens=9))
    assert "codex: at API prices" in panel_of(book, Choice("all"))
    assert "opencode: at least" in panel_of(book, Choice("today"))
    assert "<dt>Cost</dt><dd>≥" in panel_of(book, Choice("all"))
    assert panel_of(book, Choice("all", "agent")).count(">≥") >= 2
    assert "codex: " not in panel_of(book, Choice("today"))


def test_no_formula_reaches_a_spreadsheet(book: CostBook) -> None:
    fill(book, "=HYPERLINK(1)")
    (row,) = csv_rows(panel_of(book, Choice("all", "model")))
    assert row["model"] == "'=HYPERLINK(1)"


def test_the_charts_show_the_report(book: CostBook) -> None:
    fill(book)
    html = panel_of(book, Choice("all"), s="Fix the parser")
    for number in range(5):
        cost = (1000 * (number + 1) * 1.25 + 10 * 10) / 10**6
        assert f"<title>2026-11-0{number + 1}: gpt-5 {usd_text(cost)}</title>" in html
    assert "Fix the parser · conversation: 5,000 tokens in the last call" in html
    (points,) = re.findall(r'<polyline class="c0" points="([^"]+)"', html)
    heights = [float(pair.split(",")[1]) for pair in points.split()]
    assert heights == sorted(heights, reverse=True), "a context that grows is drawn rising"
    assert len(heights) == 5
    assert html.count("Show as a table") == 2


def test_days_without_spend_have_a_place(book: CostBook) -> None:
    for day in (0, 9):
        report_call(book, at=START + timedelta(days=day))
    html = panel_of(book, Choice("all"))
    columns = re.findall(r'<rect class="c0" x="([\d.]+)"[^>]*><title>2026', html)
    assert [float(x) for x in columns] == [1.0, 91.0]


def test_lower_bounds_in_a_chart_are_marked(book: CostBook) -> None:
    for day, agent in enumerate(("codex", "amp")):
        at = START + timedelta(days=day)
        book.ledger.record(call_of(agent, at=at, tokens=1_000_000))
    html = panel_of(book, Choice("all"))
    assert re.findall(r"<title>2026-11-\d\d: gpt-5 (\S+)</title>", html) == ["$1.25", "≥$1.25"]
    assert "<span>gpt-5</span><b>≥$2.50</b>" in html


def test_a_year_is_drawn_by_month(book: CostBook) -> None:
    for day in (-700, -100, 0):
        report_call(book, at=START + timedelta(days=day))
    assert "Spend by month" in panel_of(book, Choice("all"))
    assert "Spend by week" in panel_of(book, Choice("custom", since="2026-07-01"))


def test_an_empty_ledger_makes_a_page(book: CostBook) -> None:
    html = made(book)
    outline(html)
    assert "No calls recorded this week." in html
    assert "No calls recorded. Start a coding agent" in html


def test_page_reports_unpriced_calls(book: CostBook) -> None:
    fill(book, "nobody-knows-me")
    html = panel_of(book, Choice("all"))
    assert "tokens have no known price and are not in the cost." in html
    assert cells(html)[1][-1] == "unpriced"
    fill(book)
    assert cells(panel_of(book, Choice("all")))[-1][-1].startswith("≥$")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '" onload="x', "a&b<svg/onload=x>"])
def test_names_are_escaped(book: CostBook, name: str) -> None:
    fill(book, name, name, name)
    scope = Scope(workspace=name)
    found = outline(made(book, scope, **{name: name}))
    assert "script" not in found.tags
    assert "onload" not in {attribute for attribute, _value in found.attributes}


def test_many_models_share_the_last_color(book: CostBook) -> None:
    for number in range(24):
        usage = {"prompt_tokens": 1000 + number, "completion_tokens": 1, "cost": 1.0}
        at = START + timedelta(days=number % 2)
        report_call(book, model=f"model-{number // 2:02}", usage=usage, at=at)
    assert "other models $5.00" in panel_of(book, Choice("all"))


def test_the_rest_of_many_sessions_is_one_row(book: CostBook) -> None:
    for number in range(130):
        report_call(book, session=f"s{number}", at=START)
    table = cells(panel_of(book, Choice("all", "session")))
    assert table[-2][:2] == ["30 others", "30"]
    assert table[-1][:2] == ["Total", "130"]


def test_a_long_session_is_thinned_to_its_peaks() -> None:
    values = [float(number) for number in range(1000)]
    values[-1] = 5.0
    losses = {0: "expired", 998: "model switch", 999: "compaction"}
    thinned = SessionPrompts(values, losses).series("s")
    assert len(thinned.values) <= 300
    assert thinned.values[-2:] == [998, 5], "the last peak, then the size after a compaction"
    last = len(thinned.values) - 1
    assert thinned.marks == {0: "expired", last - 1: "model switch", last: "compaction"}
    assert SessionPrompts(values[:300], {7: "expired"}).series("s") == Series(
        "s", values[:300], set(), {7: "expired"}
    )


def test_lost_caches_are_marked(book: CostBook) -> None:
    fill(book)
    lost = CacheLoss(20_000, LossCause.EXPIRED)
    call = call_of(at=START + timedelta(days=5), tokens=40_000, session="s", loss=lost)
    book.ledger.record(call)
    page = panel_of(book, Choice("all"))
    assert '100.00,100 100.00,0.00"><title>expired</title>' in page
    assert "1 expired" in page


def test_prompt_files_of_the_same_name_are_told_apart(book: CostBook) -> None:
    fill(book, workspace="file:///ws/my%20project")
    places = ("file:///ws/my%20project", Path.home().as_uri() + "/.claude", "file:///srv/shared")
    files = [
        FileCost(
            uri=f"{place}/CLAUDE.md", tokens=9, requests=1, cost_usd=1, cached_percent=0, text=""
        )
        for place in places
    ]
    scope = Scope(workspace="file:///ws/my%20project")
    with book.ledger.reader() as connection:
        html = panel(source(book, connection, scope), Choice("all", "file"), files).html
    names = [row[0] for row in cells(html)[1:]]
    assert names == ["CLAUDE.md", "~/.claude/CLAUDE.md", "/srv/shared/CLAUDE.md"]


@pytest.mark.parametrize(
    ("highest", "scale"), [(0, 1), (0.00031, 0.0004), (1, 1), (2.65, 3), (116_000, 120_000)]
)
def test_scales_are_round_and_high_enough(highest: float, scale: float) -> None:
    assert axis_maximum(highest) == pytest.approx(scale)
