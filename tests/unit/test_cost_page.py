"""The page of costs: complete in itself, escaped, and true to the report."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from sidecar.cost.book import CostBook
from sidecar.cost.page import _axis_maximum, _thin_out, page
from sidecar.cost.protocol import CostRecordParams
from sidecar.cost.sums import Scope
from sidecar.text.printable import usd_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[CostBook]:
    book = CostBook(tmp_path / "state", zone=UTC)
    yield book
    book.close()


def fill(book: CostBook, model: str = "gpt-5", session: str = "s", workspace: str = "") -> None:
    for number in range(5):
        usage = {"prompt_tokens": 1000 * (number + 1), "completion_tokens": 10}
        book.record(
            CostRecordParams(
                model=model,
                usage=usage,
                session=session,
                workspace=workspace,
                estimated_tokens=900 * (number + 1),
                at=START + timedelta(days=number),
            )
        )


class Outline(HTMLParser):
    """Collects tags and checks that they are closed in their order."""

    VOID = frozenset({"meta"})

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


def made(book: CostBook, scope: Scope | None = None) -> str:
    with book.ledger.reader() as connection:
        return page(connection, book.prices, scope or Scope(), zone=UTC, now=START)


def test_the_page_needs_nothing_else(book: CostBook) -> None:
    fill(book)
    html = made(book)
    found = outline(html)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(found.tags)
    assert not {"src", "href", "srcset", "data"} & {name for name, _value in found.attributes}
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert "prefers-color-scheme:dark" in html


def test_the_charts_show_the_report(book: CostBook) -> None:
    fill(book)
    html = made(book)
    assert html.count("<svg") == 2
    for number in range(5):
        cost = (1000 * (number + 1) * 1.25 + 10 * 10) / 10**6
        assert f"<title>2026-11-0{number + 1}: gpt-5 {usd_text(cost)}</title>" in html
    assert "s (protocol): 5,000 tokens in the last call" in html
    (points,) = re.findall(r'<polyline points="([^"]+)"', html)
    heights = [float(pair.split(",")[1]) for pair in points.split()]
    assert heights == sorted(heights, reverse=True), "a context that grows is drawn rising"
    assert len(heights) == 5


def test_days_without_spend_are_shown_empty(book: CostBook) -> None:
    for day in (0, 9):
        usage = {"prompt_tokens": 1000, "completion_tokens": 1}
        at = START + timedelta(days=day)
        book.record(CostRecordParams(model="gpt-5", usage=usage, at=at))
    assert all(f">2026-11-{day:02}</text>" in made(book) for day in range(1, 11))


def test_an_empty_ledger_makes_a_page(book: CostBook) -> None:
    html = made(book)
    outline(html)
    assert html.count("No calls recorded.") == 3


def test_unpriced_calls_are_said(book: CostBook) -> None:
    fill(book, "nobody-knows-me")
    html = made(book)
    assert "unpriced tokens (not in the cost)" in html
    assert "<td>unpriced</td>" in html


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '" onload="x', "a&b<svg/onload=x>"])
def test_names_are_escaped(book: CostBook, name: str) -> None:
    fill(book, name, name, name)
    scope = Scope(workspace=name)
    found = outline(made(book, scope))
    assert "script" not in found.tags
    assert "onload" not in {attribute for attribute, _value in found.attributes}


def test_many_models_share_the_last_colour(book: CostBook) -> None:
    for number in range(12):
        usage = {"prompt_tokens": 1000 + number, "completion_tokens": 1, "cost": 1.0}
        book.record(CostRecordParams(model=f"model-{number:02}", usage=usage, at=START))
    html = made(book)
    assert "other models $5.00" in html


def test_a_long_session_is_thinned_to_its_peaks() -> None:
    values = [float(number) for number in range(1000)]
    thinned = _thin_out(values)
    assert len(thinned) <= 300
    assert thinned[-1] == 999
    assert _thin_out(values[:300]) == values[:300]


@pytest.mark.parametrize(
    ("highest", "scale"), [(0, 1), (0.00031, 0.0004), (1, 1), (2.65, 3), (116_000, 120_000)]
)
def test_scales_are_round_and_high_enough(highest: float, scale: float) -> None:
    assert _axis_maximum(highest) == pytest.approx(scale)
