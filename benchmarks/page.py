"""Writes benchmark results to docs/explanation/performance.md: texts, charts and tables.

A chart is an SVG with two logarithmic axes and a labeled line for each series.
"""

from __future__ import annotations

import html
import json
import math
import os
import platform
import re
import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 80, 34, 60
LETTER, LINE = 7.2, 16
"""Width of a character and height of a line of text."""
COLORS = ("#096", "#c33", "#36c", "#a60", "#639", "#555")
LIBRARIES = ("token-sidecar", "pygls", "tiktoken", "splintr-rs", "msgspec")
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = "explanation/performance.md"
IMAGES = "images/benchmarks"
RESULTS = "## Results\n"
"""Heading of the results, which are the last part of the page."""


class Unit(NamedTuple):
    """A unit for display. Values are multiplied by `scale`."""

    name: str
    scale: float = 1


TIME = Unit("ms", 1e3)
"""Shows seconds as milliseconds."""
MEGABYTES = Unit("MB")
PERCENT = Unit("%", 100)
"""Shows fractions as percentages."""


@dataclass
class Figure:
    """A chart with named series of points. `across` is the title of the horizontal axis."""

    title: str
    across: str = "characters"
    unit: Unit = TIME
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, size: float, value: float) -> None:
        """Add a point. A logarithmic axis has no place for values of 0 or less."""
        if size > 0 and value > 0:
            self.series.setdefault(name, []).append((size, value))


FIGURES: list[Figure] = []
"""All figures of this run."""
PEERS = {"SQLite": sqlite3.sqlite_version}
"""Versions of peers that are not Python packages."""


def figure(title: str, across: str = "characters", unit: Unit = TIME) -> Figure:
    """Add a figure to the page and return it."""
    FIGURES.append(made := Figure(title, across, unit))
    return made


def installed(package: Path) -> None:
    """Register an npm package in this folder as a peer of this run."""
    said = json.loads((package / "package.json").read_text("utf-8"))
    PEERS[said["name"]] = said["version"]


def write(part: str, printed: str, figures: list[Figure], docs: Path = DOCS) -> None:
    """Replace the results of one part on the page, or add them.

    Args:
        part: The name of the part.
        printed: What the part printed.
        figures: The part's figures.
        docs: The folder of the documentation.
    """
    page = docs / PAGE
    head, _, results = page.read_text("utf-8").partition(RESULTS)
    sections = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^### `|\Z)", results, re.M | re.S))
    sections[part] = _section(part, printed, [one for one in figures if one.series], docs)
    ordered = (f"\n### `{name}`\n\n{sections[name].strip()}\n" for name in sorted(sections))
    page.write_text(f"{head}{RESULTS}{''.join(ordered)}", "utf-8")


def _section(part: str, printed: str, figures: list[Figure], docs: Path) -> str:
    blocks = [f"Measured on {machine()}.", f"```text\n{printed.strip()}\n```"]
    for number, one in enumerate(figures, 1):
        image = docs / IMAGES / f"{part}-{number}.svg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_text(svg(one) + "\n", "utf-8")
        title = one.title.replace("`", "")
        blocks += [f"**{one.title}**", f"![{title}](../{IMAGES}/{image.name})", table(one)]
    return "\n\n".join(blocks)


def table(one: Figure) -> str:
    """Return a figure as a Markdown table, with ratios to the first series."""
    first, *others = one.series
    points = {name: dict(series) for name, series in one.series.items()}
    heads = [one.across, *(f"{name}, {one.unit.name}" for name in one.series)]
    heads += [f"{name} / {first}" for name in others]
    rows = []
    for size in sorted({size for series in points.values() for size in series}):
        base, *rest = (points[name].get(size) for name in one.series)
        cells = [_cell(value and value * one.unit.scale, ".3g") for value in (base, *rest)]
        cells += [_cell(value and base and value / base, ".2f", "x") for value in rest]
        rows.append(f"| {_number(size)} | {' | '.join(cells)} |")
    return "\n".join((f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads), *rows))


def _cell(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:,{form}}{unit}"


def machine() -> str:
    """Return the date, the machine and the versions, without anything that identifies the user."""
    known = []
    for name in LIBRARIES:
        try:
            known.append(f"{name} {version(name)}")
        except ImportError:  # no such distribution here
            continue
    known += [f"{name} {number}" for name, number in PEERS.items()]
    system = f"{platform.system()} on {_processor()} with {os.cpu_count()} cores"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {system}, Python {platform.python_version()}, "
        f"{', '.join(known)}"
    )


def _processor() -> str:
    """Return the processor's name on Linux, or its architecture on other systems."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def svg(one: Figure) -> str:
    """Return a figure with two logarithmic axes."""
    sizes, values = zip(*(point for series in one.series.values() for point in series), strict=True)
    scale, right = one.unit.scale, WIDTH - LETTER * max(map(len, one.series)) - LINE
    across = _Axis(sizes, LEFT, right)
    up = _Axis([value * scale for value in values], HEIGHT - BOTTOM, TOP)
    lines = {
        name: [(across(size), up(value * scale)) for size, value in sorted(series)]
        for name, series in one.series.items()
    }
    drawn = [*_grid(one, across, up), *_curves(lines, right)]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    drawn.insert(0, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n' + "\n".join(drawn) + "\n</svg>"


class _Axis:
    """Converts a value to its position between two edges."""

    def __init__(self, values: Iterable[float], start: float, end: float) -> None:
        self.ticks = _powers(values)
        self._low, self._high = math.log10(self.ticks[0]), math.log10(self.ticks[-1])
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self.start + share * (self.end - self.start)


def _powers(values: Iterable[float]) -> list[float]:
    """Return the powers of ten that enclose the values."""
    logarithms = [math.log10(value) for value in values]
    low, high = math.floor(min(logarithms)), math.ceil(max(logarithms))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _grid(one: Figure, across: _Axis, up: _Axis) -> list[str]:
    """Return the lines of both axes with their numbers and titles."""
    drawn = []
    for tick in across.ticks:
        ends = f'x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
        label = _text(
            across(tick), HEIGHT - BOTTOM + LINE + 4, _number(tick), 'text-anchor="middle"'
        )
        drawn += [f'<line {ends} stroke="#ddd"/>', label]
    for tick in up.ticks:
        ends = f'x1="{LEFT}" x2="{across.end:.1f}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"'
        label = _text(LEFT - 6, up(tick) + 4, _number(tick), 'text-anchor="end"')
        drawn += [f'<line {ends} stroke="#ddd"/>', label]
    middle = (across.start + across.end) / 2
    named = _text(middle, HEIGHT - LINE, one.across, 'text-anchor="middle" font-weight="bold"')
    return [
        *drawn,
        named,
        _text(LEFT - 6, LINE, one.unit.name, 'text-anchor="end" font-weight="bold"'),
    ]


def _number(value: float) -> str:
    """Format a number such as 10,000 or 0.001."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _curves(lines: dict[str, list[tuple[float, float]]], right: float) -> list[str]:
    """Return each series as a line, with its name to the right of the axes."""
    drawn = []
    heights = _apart({name: at[-1][1] for name, at in lines.items()})
    for color, (name, at) in zip(cycle(COLORS), lines.items(), strict=False):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in at]
        drawn.append(_text(right + 8, heights[name] + 4, name, f'class="name" fill="{color}"'))
    return drawn


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Move heights up so that labels at these heights do not overlap each other or the axis."""
    placed: dict[str, float] = {}
    lowest = float(HEIGHT - BOTTOM)
    for name in sorted(wanted, key=lambda name: -wanted[name]):
        placed[name] = min(wanted[name], lowest)
        lowest = placed[name] - LINE
    return placed


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
