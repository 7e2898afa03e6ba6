"""Draws one page for a run: each figure by size beside its peer's, and the text of every part.

The charts are SVG with two logarithmic axes and one line per series.
"""

from __future__ import annotations

import html
import json
import math
import os
import platform
import sqlite3
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 380, 80, 34, 60
LETTER, LINE = 7.2, 16
"""Width of a character and height of a line of text."""
COLOURS = ("#096", "#c33", "#36c", "#a60", "#639", "#555")
LIBRARIES = ("token-sidecar", "pygls", "tiktoken", "rs-bpe", "toktok-rs", "msgspec")
STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto}pre{overflow:auto}"
NOT_DRAWN = {
    "estimates": "the error of an estimate goes by the kind of text, not by a size.",
    "fit-estimates": "the error of an estimate goes by the kind of text, not by a size.",
    "idle": "a server at rest has no size.",
    "neovim-chats": "one chat of one length, held against a limit and not against a peer.",
    "neovim-startup": "our share of one start, which has no size.",
}
"""The reasons why a part has only text."""


class Unit(NamedTuple):
    """A unit of values: its name, and how many of it are in one value."""

    name: str
    scale: float = 1


TIME = Unit("ms", 1e3)
"""The unit of values in seconds."""
MEGABYTES = Unit("MB")
PERCENT = Unit("%", 100)
"""The unit of values that are shares."""


@dataclass
class Figure:
    """Named series of sizes and values. `across` describes the sizes."""

    title: str
    across: str = "characters"
    unit: Unit = TIME
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, size: float, value: float) -> None:
        """Add a point. Values that are not positive are left out, because the axis is
        logarithmic.
        """
        if size > 0 and value > 0:
            self.series.setdefault(name, []).append((size, value))


FIGURES: list[Figure] = []
"""The figures of this run. Each part appends its own."""
PEERS = {"SQLite": sqlite3.sqlite_version}
"""The versions of peers that are not Python distributions."""


def figure(title: str, across: str = "characters", unit: Unit = TIME) -> Figure:
    """Add a figure to the page and return it."""
    FIGURES.append(made := Figure(title, across, unit))
    return made


def installed(package: Path) -> None:
    """Register an npm package in this folder as a peer of this run."""
    said = json.loads((package / "package.json").read_text("utf-8"))
    PEERS[said["name"]] = said["version"]


def write(path: Path, printed: dict[str, str]) -> None:
    """Write the page of a run.

    Args:
        file: The page.
        printed: The text of each part, by its name.
    """
    drawn = [one for one in FIGURES if one.series]
    parts = [f"<h2>{html.escape(one.title)}</h2>\n{svg(one)}" for one in drawn]
    parts += [_said(name, text) for name, text in printed.items()]
    head = f'<!doctype html><meta charset="utf-8"><title>Benchmarks</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    path.write_text(f"{head}\n<h1>Benchmarks</h1>\n<p>{machine()}</p>\n{body}\n", "utf-8")


def _said(name: str, text: str) -> str:
    """Return the text of a part, and the reason why it has no figure."""
    why = f"<p>Not drawn: {NOT_DRAWN[name]}</p>\n" if name in NOT_DRAWN else ""
    return f"<h2>{name}</h2>\n{why}<pre>{html.escape(text)}</pre>"


def machine() -> str:
    """Return a description of the machine and the versions of the peers."""
    known = []
    for name in LIBRARIES:
        try:
            known.append(f"{name} {version(name)}")
        except ImportError:  # no such distribution here
            continue
    known += [f"{name} {number}" for name, number in PEERS.items()]
    system = f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} cores"
    return html.escape(f"{system}; Python {platform.python_version()}, {', '.join(known)}")


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
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-size="12"'
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
    """Return the powers of ten from below the smallest value to above the largest."""
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
    for colour, (name, at) in zip(cycle(COLOURS), lines.items(), strict=False):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at]
        drawn.append(_text(right + 8, heights[name] + 4, name, f'class="name" fill="{colour}"'))
    return drawn


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Return heights near the wanted ones that are a line of text apart, above the lower axis."""
    placed: dict[str, float] = {}
    lowest = float(HEIGHT - BOTTOM)
    for name in sorted(wanted, key=lambda name: -wanted[name]):
        placed[name] = min(wanted[name], lowest)
        lowest = placed[name] - LINE
    return placed


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
