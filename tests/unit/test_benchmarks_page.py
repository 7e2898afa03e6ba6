"""The benchmarks' page: well-formed, every point on it, larger numbers further out; and a peer."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks import ledger, page

if TYPE_CHECKING:
    from pathlib import Path

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_figure_has_a_line_for_each_series() -> None:
    made = page.Figure("sizes")
    for size in (10_000, 1_000_000, 10_000_000):
        made.add("this <one>", size, 0.001)
        made.add("peer", size, size / 1e6)
    root = ElementTree.fromstring(page.svg(made))  # noqa: S314 - our own
    lines = root.findall(f"{NAMESPACE}polyline")
    flat, rising = ([tuple(map(float, at.split(","))) for at in _points(one)] for one in lines)
    assert len(flat) == len(rising) == 3
    assert len({y for _, y in flat}) == 1
    assert [x for x, _ in rising] == sorted({x for x, _ in rising})
    assert [y for _, y in rising] == sorted({y for _, y in rising}, reverse=True)
    assert all(0 <= x <= page.WIDTH and 0 <= y <= page.HEIGHT for x, y in flat + rising)


def test_the_page_says_what_was_printed_and_on_what(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    page.write(file, {"startup": "1.2x of <bare>\n"})
    text = file.read_text("utf-8")
    assert "1.2x of &lt;bare&gt;" in text
    assert "Python" in text


def _points(line: ElementTree.Element) -> list[str]:
    return line.attrib["points"].split()


def test_the_ledgers_peer_keeps_every_column() -> None:
    """Else the benchmark does not run at all, which no other test would notice."""
    (event,) = ledger.events(1)
    assert len(ledger.bare_row(event)) == len(ledger.COLUMNS)
