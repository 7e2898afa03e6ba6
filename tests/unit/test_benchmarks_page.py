"""The benchmarks' HTML page: well-formed, with every point drawn and larger numbers further out."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks import following, ledger, page
from benchmarks.__main__ import PARTS

if TYPE_CHECKING:
    import pytest

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


def test_labels_do_not_overlap_and_stay_inside_the_chart() -> None:
    """This holds even if all series end at the same point and outnumber the colours."""
    made = page.Figure("close", "files", page.MEGABYTES)
    names = [f"a peer with a rather long name, {number}" for number in range(8)]
    for name in names:
        made.add(name, 10, 5.0)
        made.add(name, 1_000, 1.0)
    root = ElementTree.fromstring(page.svg(made))  # noqa: S314 - our own
    texts = root.findall(f"{NAMESPACE}text")
    named = [one for one in texts if one.get("class") == "name"]
    assert [one.text for one in named] == names
    assert len(root.findall(f"{NAMESPACE}polyline")) == len(names)
    heights = sorted(float(one.attrib["y"]) for one in named)
    assert all(low + page.LINE <= high for low, high in pairwise(heights))
    ends = [float(one.attrib["x"]) + page.LETTER * len(one.text or "") for one in named]
    assert max(ends) <= page.WIDTH
    assert all(0 < float(one.attrib["y"]) < page.HEIGHT for one in texts)
    assert {"files", "MB"} <= {one.text for one in texts}


def test_times_are_shown_in_milliseconds_and_zero_is_not_drawn() -> None:
    made = page.Figure("one point")
    made.add("ours", 100, 0.02)
    made.add("none", 100, 0.0)
    root = ElementTree.fromstring(page.svg(made))  # noqa: S314 - our own
    texts = [one.text for one in root.findall(f"{NAMESPACE}text")]
    assert {"ms", "10", "100", "ours"} <= set(texts)
    assert "none" not in texts


def test_each_figure_of_the_run_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "FIGURES", [])
    page.figure("nothing was measured")
    for title in ("first & last", "second"):
        page.figure(title).add("ours", 10, 0.5)
    page.write(tmp_path / "page.html", {"estimates": "12 %", "second": ""})
    text = (tmp_path / "page.html").read_text("utf-8")
    drawn = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert [len(ElementTree.fromstring(one)) > 0 for one in drawn] == [True, True]  # noqa: S314
    assert "first &amp; last" in text
    assert "nothing was measured" not in text
    assert text.count("Not drawn:") == 1


def test_a_peer_from_npm_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PEERS", {})
    (tmp_path / "package.json").write_text('{"name": "a-peer", "version": "1.2.3"}', "utf-8")
    page.installed(tmp_path)
    assert "a-peer 1.2.3" in page.machine()


def test_each_part_draws_a_figure_or_the_page_explains_why_not() -> None:
    for part in PARTS:
        source = Path(ledger.__file__).with_name(f"{part.replace('-', '_')}.py").read_text("utf-8")
        assert ("figure(" in source) != (part in page.NOT_DRAWN), part


def test_the_page_contains_the_printed_results_and_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    page.write(file, {"startup": "1.2x of <bare>\n"})
    text = file.read_text("utf-8")
    assert "1.2x of &lt;bare&gt;" in text
    assert "Python" in text


def _points(line: ElementTree.Element) -> list[str]:
    return line.attrib["points"].split()


def test_the_ledgers_peer_stores_every_column() -> None:
    """Otherwise the benchmark fails, which no other test would notice."""
    (event,) = ledger.events(1)
    assert len(ledger.bare_row(event)) == len(ledger.COLUMNS)


def test_a_part_restores_the_environment(tmp_path: Path) -> None:
    """The following parts run in the same process: without its home, Neovim started no server."""
    before, home, state = dict(os.environ), tmp_path / "another-home", tmp_path / "its-state"
    state.mkdir()
    (home / "work" / "0").mkdir(parents=True)
    server = following.Server(home, state)
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    server.close()
    assert f"HOME={home}\0".encode() in environment
    assert dict(os.environ) == before
