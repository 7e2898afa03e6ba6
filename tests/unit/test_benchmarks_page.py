"""Tests the page with benchmark results, and its charts and tables."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import following, ledger, page

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_a_figure_has_a_line_for_each_series() -> None:
    figure = page.Figure("sizes")
    for size in (10_000, 1_000_000, 10_000_000):
        figure.add("this <one>", size, 0.001)
        figure.add("peer", size, size / 1e6)
    root = ElementTree.fromstring(page.svg(figure))  # noqa: S314 - our own
    lines = root.findall(f"{NAMESPACE}polyline")
    flat, rising = ([tuple(map(float, at.split(","))) for at in _points(line)] for line in lines)
    assert len(flat) == len(rising) == 3
    assert len({y for _, y in flat}) == 1
    assert [x for x, _ in rising] == sorted({x for x, _ in rising})
    assert [y for _, y in rising] == sorted({y for _, y in rising}, reverse=True)
    assert all(0 <= x <= page.WIDTH and 0 <= y <= page.HEIGHT for x, y in flat + rising)


def test_labels_do_not_overlap_and_stay_inside_the_chart() -> None:
    figure = page.Figure("close", "files", page.MEGABYTES)
    names = [f"a peer with a rather long name, {number}" for number in range(8)]
    for name in names:
        figure.add(name, 10, 5.0)
        figure.add(name, 1_000, 1.0)
    root = ElementTree.fromstring(page.svg(figure))  # noqa: S314 - our own
    texts = root.findall(f"{NAMESPACE}text")
    named = [text for text in texts if text.get("class") == "name"]
    assert [one.text for one in named] == names
    assert len(root.findall(f"{NAMESPACE}polyline")) == len(names)
    heights = sorted(float(one.attrib["y"]) for one in named)
    assert all(low + page.LINE <= high for low, high in pairwise(heights))
    ends = [float(one.attrib["x"]) + page.LETTER * len(one.text or "") for one in named]
    assert max(ends) <= page.WIDTH
    assert all(0 < float(one.attrib["y"]) < page.HEIGHT for one in texts)
    assert {"files", "MB"} <= {one.text for one in texts}


def test_times_are_shown_in_milliseconds_and_zero_is_not_drawn() -> None:
    figure = page.Figure("one point")
    figure.add("ours", 100, 0.02)
    figure.add("none", 100, 0.0)
    root = ElementTree.fromstring(page.svg(figure))  # noqa: S314 - our own
    texts = [one.text for one in root.findall(f"{NAMESPACE}text")]
    assert {"ms", "10", "100", "ours"} <= set(texts)
    assert "none" not in texts


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "explanation").mkdir()
    text = "# Performance\n\nWritten by hand.\n\n## Results\n\n### `startup`\n\nolder\n"
    (tmp_path / page.PAGE).write_text(text, "utf-8")
    return tmp_path


def test_a_part_has_its_text_plots_and_tables_on_the_page(docs: Path) -> None:
    drawn = page.Figure("`edit` & count", "characters")
    for size, ours, theirs in ((10_000, 0.001, 0.002), (1_000_000, 0.001, 0.5)):
        drawn.add("token-sidecar", size, ours)
        drawn.add("tiktoken", size, theirs)
    page.write("editing", "\n1.2x of the peer\n", [drawn, page.Figure("not measured")], docs)
    text = (docs / page.PAGE).read_text("utf-8")
    assert text.startswith("# Performance\n\nWritten by hand.\n\n## Results\n\n### `editing`\n")
    assert "```text\n1.2x of the peer\n```" in text
    assert "| 1,000,000 | 1 | 500 | 500.00x |" in text
    assert "not measured" not in text
    images = re.findall(r"!\[edit & count\]\(\.\./(.*?)\)", text)
    assert [len(ElementTree.parse(docs / image).getroot()) > 0 for image in images] == [True]  # noqa: S314
    assert re.search(r"Measured on \d{4}-\d\d-\d\d, .*Python", text)


def test_a_part_that_is_measured_again_replaces_only_its_results(docs: Path) -> None:
    page.write("editing", "first", [], docs)
    page.write("editing", "second", [], docs)
    text = (docs / page.PAGE).read_text("utf-8")
    assert "first" not in text
    assert re.findall(r"^(?:older|second)$", text, re.MULTILINE) == ["second", "older"]


def test_the_results_name_no_folder_of_this_machine(docs: Path) -> None:
    assert "/" not in page.machine().replace("/proc", "")


def test_a_peer_from_npm_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PEERS", {})
    (tmp_path / "package.json").write_text('{"name": "a-peer", "version": "1.2.3"}', "utf-8")
    page.installed(tmp_path)
    assert "a-peer 1.2.3" in page.machine()


def _points(line: ElementTree.Element) -> list[str]:
    return line.attrib["points"].split()


def test_the_ledgers_peer_stores_every_column() -> None:
    (event,) = ledger.events(1)
    assert len(ledger.bare_row(event)) == len(ledger.COLUMNS)


def test_a_part_restores_the_environment(tmp_path: Path) -> None:
    """All benchmarks run in one process, so a changed HOME would affect the next benchmark."""
    before, home, state = dict(os.environ), tmp_path / "another-home", tmp_path / "its-state"
    state.mkdir()
    (home / "work" / "0").mkdir(parents=True)
    server = following.Server(home, state)
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    server.close()
    assert f"HOME={home}\0".encode() in environment
    assert dict(os.environ) == before
