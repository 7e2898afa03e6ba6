"""HTML for reports: one stylesheet, tables, and charts as inline SVG.

Pages need neither scripts nor the network. They use the editor's colors if the editor defines
them, and otherwise those of the browser's light or dark theme. The functions escape names.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

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

STYLE = """
:root{color-scheme:light dark;
--bg:var(--vscode-editor-background,#fff);--fg:var(--vscode-foreground,#1b1f24);
--dim:var(--vscode-descriptionForeground,#5b6470);--line:var(--vscode-panel-border,#d9dee4);
--card:var(--vscode-editorWidget-background,#f6f8fa);--edge:var(--vscode-contrastBorder,var(--line));
--link:var(--vscode-textLink-foreground,#0b5cad);
--warn:var(--vscode-list-warningForeground,var(--vscode-editorWarning-foreground,#8a5a00));
--bad:var(--vscode-list-errorForeground,var(--vscode-errorForeground,#b42318));
--focus:var(--vscode-focusBorder,#0b5cad);--mark:var(--vscode-button-background,#0b5cad);
--on-mark:var(--vscode-button-foreground,#fff);
--c0:#2f6fde;--c1:#d9730d;--c2:#2a9d63;--c3:#a44ad0;--c4:#c9374b;--c5:#0f8b9d;--c6:#8a6d1b;--c7:#6b7785}
@media (prefers-color-scheme:dark){:root{--bg:var(--vscode-editor-background,#14171b);
--fg:var(--vscode-foreground,#e6e9ed);--dim:var(--vscode-descriptionForeground,#9aa4b0);
--line:var(--vscode-panel-border,#333a43);--card:var(--vscode-editorWidget-background,#1d2127);
--link:var(--vscode-textLink-foreground,#6ea8ff);
--warn:var(--vscode-list-warningForeground,var(--vscode-editorWarning-foreground,#e3c567));
--bad:var(--vscode-list-errorForeground,var(--vscode-errorForeground,#ff7b86));
--focus:var(--vscode-focusBorder,#6ea8ff);--mark:var(--vscode-button-background,#6ea8ff);
--on-mark:var(--vscode-button-foreground,#0b1420)}
:root:not(:has(.vscode-light,.vscode-high-contrast-light)){--c0:#6ea8ff;--c1:#ffa657;--c2:#56d39b;
--c3:#d2a8ff;--c4:#ff7b86;--c5:#56cfe1;--c6:#e3c567;--c7:#a3adb8}}
:root:has(.vscode-dark,.vscode-high-contrast:not(.vscode-high-contrast-light)){--c0:#6ea8ff;
--c1:#ffa657;--c2:#56d39b;--c3:#d2a8ff;--c4:#ff7b86;--c5:#56cfe1;--c6:#e3c567;--c7:#a3adb8}
.vscode-high-contrast .plot line{stroke-opacity:.3}
.vscode-high-contrast{--dim:var(--fg);--mark:var(--fg);--on-mark:var(--bg)}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1020px;padding:16px 20px;background:var(--bg);color:var(--fg);
font:14px/1.5 var(--vscode-font-family,system-ui,sans-serif);overflow-wrap:anywhere}
h1{font-size:21px;margin:0;line-height:1.3}h2{font-size:15px;margin:24px 0 8px}
p{color:var(--dim);margin:2px 0 8px}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px}
a,summary{color:var(--link)}summary{cursor:pointer;width:fit-content}
fieldset{border:0;margin:12px 0 0;padding:0;min-width:0;
display:flex;flex-wrap:wrap;gap:6px;align-items:center}
legend{float:left;color:var(--dim);margin-right:6px;min-width:64px;padding:0}
fieldset label{position:relative}
fieldset input[type=radio]{position:absolute;opacity:0;inset:0;margin:0;
width:100%;height:100%;cursor:pointer}
fieldset span{display:block;border:1px solid var(--edge);border-radius:4px;padding:2px 10px}
fieldset input:checked+span{background:var(--mark);color:var(--on-mark);border-color:var(--mark)}
fieldset input:focus-visible+span{outline:2px solid var(--focus);outline-offset:2px}
fieldset input[type=date]{font:inherit;color:var(--fg);background:var(--bg);max-width:130px;
border:1px solid var(--edge);border-radius:4px;padding:1px 4px;margin-left:4px}
form{margin-bottom:12px}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0;padding:0}
.cards div{background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:8px 14px;
flex:1 1 auto;display:flex;flex-direction:column-reverse}
.cards dd{margin:0;font-size:20px;white-space:nowrap;line-height:1.3;
font-variant-numeric:tabular-nums}
.cards dt{color:var(--dim);font-size:13px}
svg{display:block}.parts{width:100%;height:14px;border-radius:3px;margin:4px 0}
.plot{width:100%;height:190px;border-bottom:1px solid var(--dim)}
.plot line{stroke:var(--line);vector-effect:non-scaling-stroke}
.plot polyline{fill:none;stroke-width:2px;vector-effect:non-scaling-stroke}
.chart{display:grid;grid-template-columns:auto minmax(0,1fr);gap:4px 8px;margin:0}
.axis{display:flex;flex-direction:column;justify-content:space-between;text-align:right;
margin:-9px 0}
.axis,.ends{color:var(--dim);font-size:12px;font-variant-numeric:tabular-nums}
.ends{grid-column:2;display:flex;justify-content:space-between;gap:8px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;padding:0;margin:6px 0;
font-size:13px}
.legend li{display:flex;gap:6px;align-items:baseline}.legend svg{width:10px;height:10px;flex:none}
.legend b{font-weight:500;white-space:nowrap;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--line);padding:4px 8px;text-align:right;font-weight:400}
.wide :is(td,th){white-space:nowrap}tr>:first-child{text-align:left;padding-left:0}
.wide tr>:first-child{white-space:normal}tr>:last-child{padding-right:0}
tr>:not(:first-child){overflow-wrap:break-word}
thead th{color:var(--dim)}tfoot :is(th,td){font-weight:600;border-bottom:0}
.bar{width:100%;max-width:240px;height:4px;margin-top:2px}
.note{border-left:3px solid var(--warn);padding-left:8px;color:var(--fg)}
.tools{display:flex;gap:16px;align-items:baseline;justify-content:space-between;flex-wrap:wrap}
.c0{fill:var(--c0);stroke:var(--c0)}.c1{fill:var(--c1);stroke:var(--c1)}
.c2{fill:var(--c2);stroke:var(--c2)}.c3{fill:var(--c3);stroke:var(--c3)}
.c4{fill:var(--c4);stroke:var(--c4)}.c5{fill:var(--c5);stroke:var(--c5)}
.c6{fill:var(--c6);stroke:var(--c6)}.c7{fill:var(--c7);stroke:var(--c7)}
.r0{fill:var(--fg);fill-opacity:.45}.r1{fill:var(--fg);fill-opacity:.12}
.facts{margin:8px 0}.facts div{display:flex;justify-content:space-between;gap:12px;padding:2px 0}
.facts dt{color:var(--dim);flex:none}.facts dd{margin:0;text-align:right;text-wrap:balance}
.size{font-size:22px;color:var(--fg);margin:8px 0 0;line-height:1.2}
.size b{font-weight:600}.size.warning b{color:var(--warn)}.size.error b{color:var(--bad)}
.list .legend{display:block}.list .legend li{padding:1px 0;flex-wrap:wrap;overflow-wrap:break-word}
.list .legend span{flex:1}.list .legend b{margin-left:auto}
rect{stroke:none!important}.parts rect,.plot rect{shape-rendering:crispEdges}
.again{fill-opacity:.5}
@media (forced-colors:active){fieldset input:checked+span{forced-color-adjust:none;
background:Highlight;color:HighlightText;border-color:Highlight}}
@media (max-width:600px){body{padding:12px}legend{width:100%}
.wide thead tr,.wide tbody tr,.wide tfoot tr{display:grid;padding:4px 0;column-gap:6px;
grid-template-columns:repeat(5,minmax(0,1fr));border-bottom:1px solid var(--line)}
.wide :is(td,th){border:0;padding:0;font-size:12px}.wide th{white-space:normal}
.wide tr>:first-child{grid-area:1/1/2/5}.wide tr>:last-child{grid-area:1/5/2/6}
.wide tr>:not(:first-child,:last-child){grid-row:2}}
""".strip()


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
