"""One page of a run: each figure over size beside its peer's, log-log, and what every part printed.

Drawn as SVG by hand: two axes, a line a series, its name at its end.
"""

from __future__ import annotations

import html
import math
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEIGHT, MARGIN = 720, 360, 70
COLOURS = ("#0b6", "#c33", "#36c", "#a60")
LIBRARIES = ("token-sidecar", "pygls", "tiktoken", "rs-bpe", "toktok-rs", "msgspec")
STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto}pre{overflow:auto}"


@dataclass
class Figure:
    """Series of (size in characters, seconds), by name."""

    title: str
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, size: float, seconds: float) -> None:
        """One point, which is more than 0 both ways."""
        self.series.setdefault(name, []).append((size, seconds))


FIGURES: list[Figure] = []
"""Those of this run: a part appends its own."""


def figure(title: str) -> Figure:
    """A new figure on the page."""
    FIGURES.append(made := Figure(title))
    return made


def write(path: Path, printed: dict[str, str]) -> None:
    """The page of a run; `printed`: what each part said, by its name."""
    parts = [f"<h2>{html.escape(one.title)}</h2>\n{svg(one)}" for one in FIGURES]
    parts += [f"<h2>{name}</h2>\n<pre>{html.escape(text)}</pre>" for name, text in printed.items()]
    head = f'<!doctype html><meta charset="utf-8"><title>Benchmarks</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    path.write_text(f"{head}\n<h1>Benchmarks</h1>\n<p>{machine()}</p>\n{body}\n", "utf-8")


def machine() -> str:
    """What the run ran on, and with which versions."""
    known = []
    for name in LIBRARIES:
        try:
            known.append(f"{name} {version(name)}")
        except ImportError:  # no such distribution here
            continue
    system = f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} cores"
    return html.escape(f"{system}; Python {platform.python_version()}, {', '.join(known)}")


def svg(one: Figure) -> str:
    """A figure on two logarithmic axes."""
    points = [point for series in one.series.values() for point in series]
    across = _Axis([size for size, _ in points], MARGIN, WIDTH - 2 * MARGIN)
    up = _Axis([seconds for _, seconds in points], HEIGHT - MARGIN, MARGIN / 2)
    drawn = [_tick(across(tick), None, f"{tick:g}") for tick in _powers([x for x, _ in points])]
    drawn += [_tick(None, up(t), f"{t * 1e3:g} ms") for t in _powers([y for _, y in points])]
    for colour, (name, series) in zip(COLOURS, one.series.items(), strict=False):
        at = [(across(size), up(seconds)) for size, seconds in sorted(series)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(_text(at[-1][0] + 6, at[-1][1] + 4, name, f'fill="{colour}"'))
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n' + "\n".join(drawn) + "\n</svg>"


class _Axis:
    """From a value to its place between two edges."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        powers = _powers(values)
        self._low, self._high = math.log10(powers[0]), math.log10(powers[-1])
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / max(self._high - self._low, 1e-9)
        return self._start + share * (self._end - self._start)


def _powers(values: list[float]) -> list[float]:
    """The powers of ten from below the smallest to above the largest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _tick(x: float | None, y: float | None, label: str) -> str:
    """A line of the grid with its number: across where only `y` is given, else up."""
    right, bottom = WIDTH - 2 * MARGIN, HEIGHT - MARGIN
    if x is not None:
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{MARGIN / 2}" y2="{bottom}"'
        return f'<line {ends} stroke="#ddd"/>' + _text(x - 10, bottom + 18, label, "")
    ends = f'x1="{MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"'
    return f'<line {ends} stroke="#ddd"/>' + _text(4, (y or 0) + 4, label, "")


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'
