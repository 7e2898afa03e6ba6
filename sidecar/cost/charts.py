"""Charts as inline SVG, drawn by hand: no script, no network, colours from the page's style.

Every text that comes from the ledger is escaped here.
"""

from __future__ import annotations

import html
from typing import NamedTuple

from sidecar.text.printable import printable

COLOURS = 8
"""Colours that the page's style names `--c0` to `--c7`."""

WIDTH = 960
_COLUMNS_HIGH, _LINES_HIGH = 260, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 10, 26
_MOST_TICKS = 10


class Series(NamedTuple):
    """Values of one colour, by column."""

    name: str
    values: list[float]


def escape(text: str) -> str:
    """A text from the ledger, as HTML that shows it."""
    return html.escape(printable(text))


def stacked_columns(labels: list[str], series: list[Series]) -> str:
    """A column for each label, with the series one on another; amounts in USD."""
    highest = max(
        (sum(values) for values in zip(*(s.values for s in series), strict=True)), default=0
    )
    scale = _scale(highest)
    height, plot = _COLUMNS_HIGH, _COLUMNS_HIGH - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    parts = [_grid(scale, height, "$")]
    for column, label in enumerate(labels):
        bottom = float(height - _BOTTOM)
        for colour, one in enumerate(series):
            tall = plot * one.values[column] / scale
            if tall <= 0:
                continue
            bottom -= tall
            hover = escape(f"{label}: {one.name} ${one.values[column]:.4f}")
            parts.append(
                f'<rect x="{_LEFT + column * step + step * 0.1:.1f}" y="{bottom:.1f}" '
                f'width="{step * 0.8:.1f}" height="{tall:.1f}" fill="var(--c{colour % COLOURS})">'
                f"<title>{hover}</title></rect>"
            )
    parts.append(_column_labels(labels, step, height))
    return _svg(parts, height, "Spend in USD for each day, by model")


def lines(series: list[Series]) -> str:
    """A line for each series, from its first value to its last; values are tokens."""
    highest = max((max(one.values, default=0) for one in series), default=0)
    longest = max((len(one.values) for one in series), default=1)
    scale = _scale(highest)
    height, plot = _LINES_HIGH, _LINES_HIGH - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(longest - 1, 1)
    parts = [_grid(scale, height, "")]
    for colour, one in enumerate(series):
        points = [
            (_LEFT + index * step, height - _BOTTOM - plot * value / scale)
            for index, value in enumerate(one.values)
        ]
        style = f"var(--c{colour % COLOURS})"
        last = f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3" fill="{style}"/>'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f"<g><title>{escape(one.name)}: {one.values[-1]:,.0f} tokens at last</title>"
            f'<polyline points="{path}" fill="none" stroke="{style}" stroke-width="2"/>{last}</g>'
        )
    parts.append(_text(WIDTH - _RIGHT, height - 8, "calls, from a session's first on", "end"))
    return _svg(parts, height, "Prompt tokens of each call, by session")


def legend(names: list[str]) -> str:
    """The colours of the series, in their order."""
    items = "".join(
        f'<li><i style="background:var(--c{index % COLOURS})"></i>{escape(name)}</li>'
        for index, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _scale(highest: float) -> float:
    """A round number at or over the highest value, so that a quarter of it reads well."""
    if highest <= 0:
        return 1.0
    power = 1.0
    while power > highest:
        power /= 10
    while power * 10 <= highest:
        power *= 10
    return next(
        power * step for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 6, 8, 10) if power * step >= highest
    )


def _grid(scale: float, height: int, unit: str) -> str:
    plot = height - _TOP - _BOTTOM
    parts = []
    for quarter in range(5):
        y = height - _BOTTOM - plot * quarter / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, unit + _number(scale * quarter / 4), "end"))
    return "".join(parts)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def _column_labels(labels: list[str], step: float, height: int) -> str:
    every = max(1, -(-len(labels) // _MOST_TICKS))
    return "".join(
        _text(_LEFT + (column + 0.5) * step, height - 8, labels[column], "middle")
        for column in range(0, len(labels), every)
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: list[str], height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
