"""HTML for reports: one stylesheet, tables, and charts as inline SVG.

Pages need neither scripts nor the network. They use the editor's colors if the editor defines
them, and otherwise those of the browser's light or dark theme. The functions escape names.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from sidecar import typed
from sidecar.text.printable import (
    compact_number,
    cost_text,
    percent_text,
    printable,
    whole_percents,
)

COLORS = 8
"""Number of colors in the stylesheet (`c0` to `c7`)."""
_GRID_LINES = 4

STYLE = typed.read_text("sidecar.text", "pages.css").strip()


class Page(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A page for an editor's panel. It contains no scripts, and names in it are escaped."""

    title: str
    html: str
    """The content of the page's `main` element."""
    style: str = STYLE
    """The stylesheet. It uses VS Code's colors if they are defined."""


class Series(NamedTuple):
    """The values that a chart shows in one color.

    In a column chart, the values are amounts in USD, one per column. In a line chart, they are
    token counts, one per call.
    """

    name: str
    values: list[float]
    partial: set[int]
    """The positions of the amounts that are lower bounds."""
    marks: Mapping[int, str] = MappingProxyType({})
    """Texts about values in a line chart, by position. Each is marked with a vertical line."""


def page_html(title: str, body: str, style: str = STYLE) -> str:
    """Return a complete page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def escape(text: str) -> str:
    """Escape text for HTML. Control characters are replaced by visible escapes."""
    return html.escape(printable(text))


def table_html(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    total: Sequence[str] = (),
    *,
    kind: str = "",
    shares: Sequence[float] = (),
) -> str:
    """Return a table. The first column contains row names, and the other columns contain numbers.

    Args:
        caption: What the table shows, for screen readers.
        heads: The column names.
        rows: Each row's cells.
        total: The last row's cells.
        kind: A class in the stylesheet. On narrow screens, each row of a `wide` table takes two
            lines.
        shares: The length of each row's bar, from 0 to 1.
    """
    # Without explicit roles, the layout for narrow screens would remove the table's semantics.
    head = "".join(f'<th role="columnheader" scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(
        _row_html(row, shares[index] if shares else None) for index, row in enumerate(rows)
    )
    foot = f'<tfoot role="rowgroup">{_row_html(total, None)}</tfoot>' if total else ""
    return (
        f'<table role="table" aria-label="{escape(caption)}" class="{kind}">'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody>{foot}</table>'
    )


def _row_html(cells: Sequence[str], share: float | None) -> str:
    name, *rest = cells
    bar = ""
    if share is not None:
        bar = (
            f'<svg class="bar" aria-hidden="true"><rect class="c0" height="100%" '
            f'width="{100 * share:.1f}%"/></svg>'
        )
    numbers = "".join(f'<td role="cell">{escape(cell)}</td>' for cell in rest)
    return f'<tr role="row"><th role="rowheader" scope="row">{escape(name)}{bar}</th>{numbers}</tr>'


def details_html(key: str, table: str) -> str:
    """Return a chart's table, which is initially hidden. `key` identifies it when the page is
    updated.
    """
    return f'<details id="{key}"><summary>Show as a table</summary>{table}</details>'


def parts_bar(
    parts: Sequence[tuple[str, int]],
    label: str,
    free: int | None = None,
    reserved: int = 0,
    marks: tuple[str, str] = ("", ""),
) -> str:
    """Return a stacked bar of token counts, with a legend that lists the percentage of each part.

    The percentages are relative to the sum of the used and free tokens. The percentages of the
    parts add up to the percentage of used tokens, which is rounded down.

    Args:
        parts: Each part's name and token count.
        label: What the bar shows, for screen readers.
        free: The number of free tokens, or None if there is no limit.
        reserved: The number of tokens that are neither used nor free.
        marks: The signs in front of the parts' numbers and of `free`, such as `~`.
    """
    used = sum(tokens for _, tokens in parts)
    room = (used + max(0, free or 0)) or 1
    percent_used = 100 * used // room
    shares: list[int | None] = [*whole_percents([tokens for _, tokens in parts], percent_used)]
    every = [*parts]
    if free is not None:
        every += [("Reserved for the reply", reserved), ("Free", max(0, free))]
        shares += [None, 100 - percent_used]
    whole = sum(tokens for _, tokens in every) or 1
    left, shapes, items, colors = 0.0, [], [], []
    for index, ((name, tokens), percent) in enumerate(zip(every, shares, strict=True)):
        unused = index - len(parts)
        again = " again" * (index >= COLORS)
        color = f"c{index % COLORS}{again}" if unused < 0 else f"r{unused % 2}"
        width = 100 * tokens / whole
        colors.append(color)
        mark = marks[0] if unused < 0 else "" if unused == 0 else marks[1]
        number = f"{mark}{tokens:,}"
        text = f"{name}: {number} tokens"
        shapes.append(
            f'<rect class="{color}" x="{left:.3f}%" width="{width:.3f}%" height="100%">'
            f"<title>{escape(text)}</title></rect>"
        )
        share = "" if percent is None else f" ({_share_text(tokens, room, percent)})"
        items.append((name, f"{number}{share}"))
        left += width
    return (
        f'<svg class="parts" role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'
        f"{legend(items, colors)}"
    )


def _share_text(tokens: int, room: int, percent: int) -> str:
    if tokens and not percent:
        return "<1 %"
    return ">99 %" if percent == 100 and tokens < room else percent_text(percent)


def legend(items: Sequence[tuple[str, str]], colors: Sequence[str] = ()) -> str:
    """Return a legend that lists each color with its name and a label, such as a number."""
    entries = "".join(
        f'<li><svg aria-hidden="true"><rect class="{color}" width="10" height="10"/></svg>'
        f"<span>{escape(name)}</span><b>{escape(text)}</b></li>"
        for color, (name, text) in zip(colors or _cycle(len(items)), items, strict=True)
    )
    return f'<ul class="legend">{entries}</ul>'


def _cycle(number: int) -> list[str]:
    return [f"c{index % COLORS}" for index in range(number)]


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return a description list with names and values."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows
    )
    return f'<dl class="facts">{items}</dl>'


def stacked_columns(labels: Sequence[str], series: Sequence[Series], label: str) -> str:
    """Return a chart with one stacked column per label. Amounts are in USD."""
    highest = max((sum(s.values[at] for s in series) for at in range(len(labels))), default=0.0)
    scale, step = axis_maximum(highest), 100 / max(len(labels), 1)
    shapes = []
    for column, name in enumerate(labels):
        top = 100.0
        for color, each in enumerate(series):
            tall = 100 * each.values[column] / scale
            if tall <= 0:
                continue
            top -= tall
            usd = cost_text(each.values[column], is_partial=column in each.partial)
            hover = escape(f"{name}: {each.name} {usd}")
            shapes.append(
                f'<rect class="c{color % COLORS}" x="{(column + 0.1) * step:.2f}" y="{top:.2f}" '
                f'width="{step * 0.8:.2f}" height="{tall:.2f}"><title>{hover}</title></rect>'
            )
    ends = [labels[0], labels[-1]] if len(labels) > 1 else list(labels)
    plot = _plot_html(
        shapes, [f"${_axis_text(scale)}", f"${_axis_text(scale / 2)}", "$0"], ends, label
    )
    return plot + legend(
        [(each.name, cost_text(sum(each.values), is_partial=bool(each.partial))) for each in series]
    )


def lines(series: Sequence[Series], ends: Sequence[str], label: str) -> str:
    """Return a line chart with one line per series. Values are in tokens."""
    highest = max((max(each.values, default=0) for each in series), default=0)
    longest = max((len(each.values) for each in series), default=1)
    scale, step = axis_maximum(highest), 100 / max(longest - 1, 1)
    shapes = []
    for color, each in enumerate(series):
        values = each.values if len(each.values) > 1 else each.values * 2
        path = " ".join(
            f"{index * step:.2f},{100 - 100 * value / scale:.2f}"
            for index, value in enumerate(values)
        )
        text = f"{each.name}: {each.values[-1]:,.0f} tokens in the last call"
        shapes.append(
            f'<polyline class="c{color % COLORS}" points="{path}"><title>{escape(text)}</title>'
            "</polyline>"
        )
        shapes += [
            f'<polyline class="c{color % COLORS} mark" points="{at * step:.2f},100 {at * step:.2f},'
            f'{100 - 100 * each.values[at] / scale:.2f}"><title>{escape(mark)}</title></polyline>'
            for at, mark in each.marks.items()
        ]
    axis = [compact_number(round(scale)), compact_number(round(scale / 2)), "0"]
    plot = _plot_html(shapes, axis, ends, label)
    return plot + legend([(each.name, compact_number(round(each.values[-1]))) for each in series])


def _plot_html(shapes: Sequence[str], axis: Sequence[str], ends: Sequence[str], label: str) -> str:
    grid = "".join(
        f'<line x1="0" x2="100" y1="{100 * at / _GRID_LINES:g}" y2="{100 * at / _GRID_LINES:g}"/>'
        for at in range(_GRID_LINES)
    )
    marks = "".join(f"<span>{escape(each)}</span>" for each in axis)
    below = "".join(f"<span>{escape(each)}</span>" for each in ends)
    return (
        f'<div class="chart"><div class="axis">{marks}</div><svg class="plot" role="img" '
        f'aria-label="{escape(label)}" viewBox="0 0 100 100" preserveAspectRatio="none">{grid}'
        f'{"".join(shapes)}</svg><div class="ends">{below}</div></div>'
    )


def axis_maximum(highest: float) -> float:
    """Return a round number that is at least `highest`, for the end of an axis."""
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


def _axis_text(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
