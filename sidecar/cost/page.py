"""The cost report as an HTML page: spend over time, growing contexts, and a table by model.

Charts are inline SVG, without scripts or network. Every text from the ledger is escaped.
"""

from __future__ import annotations

import html
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.days import every_day
from sidecar.cost.ledger import folder_name
from sidecar.cost.reports import report
from sidecar.cost.sums import Scope, owner_condition, time_condition
from sidecar.text.printable import printable, usd_text

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from sidecar.cost.prices import Prices
    from sidecar.cost.protocol import CostReport, CostRow

_MOST_POINTS = 300
_MOST_DAYS = 400

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6470;--line:#d9dee4;--card:#f6f8fa;
--c0:#2f6fde;--c1:#d9730d;--c2:#2a9d63;--c3:#a44ad0;--c4:#c9374b;--c5:#0f8b9d;--c6:#8a6d1b;--c7:#6b7785}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--dim:#9aa4b0;--line:#333a43;
--card:#1d2127;--c0:#6ea8ff;--c1:#ffa657;--c2:#56d39b;--c3:#d2a8ff;--c4:#ff7b86;--c5:#56cfe1;
--c6:#e3c567;--c7:#a3adb8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1020px;padding:24px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:36px 0 8px}p{color:var(--dim);margin:2px 0 8px}
.cards{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 16px}
.cards b{display:block;font-size:20px}.cards span{color:var(--dim);font-size:13px}
svg{width:100%;height:auto}svg text{fill:var(--fg);font-size:12px}.grid{stroke:var(--line)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:6px 0;
font-size:13px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
td,th{border-bottom:1px solid var(--line);padding:5px 8px;text-align:right}
td:first-child,th:first-child{text-align:left}th{color:var(--dim);font-weight:500}
""".strip()


def page(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    *,
    zone: tzinfo | None = None,
    now: datetime | None = None,
) -> str:
    """Return the page. It names models, sessions and workspaces, but has no text of messages."""
    by_model = report(connection, prices, scope, ["model"])
    by_day = report(connection, prices, scope, ["model", "day"])
    created = (now or datetime.now(UTC)).astimezone(zone).strftime("%Y-%m-%d %H:%M")
    whose = folder_name(scope.workspace) if scope.workspace else "all workspaces"
    sections = [
        _section_html("Spend over time", "USD per day, by model.", _spend_chart(by_day)),
        _section_html(
            "Context growth",
            "Prompt tokens of each call, for the latest sessions.",
            _growth_chart(connection, scope),
        ),
        _section_html("All models", "", _table_html(by_model)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Token costs</title><style>{STYLE}</style></head><body>"
        f"<h1>Token costs</h1><p>{escape(whose)}, created {created}</p>{_cards_html(by_model)}"
        f"{''.join(sections)}</body></html>\n"
    )


def _section_html(title: str, about: str, body: str) -> str:
    main = body or "<p>No calls recorded.</p>"
    return f"<section><h2>{title}</h2>{f'<p>{about}</p>' if about else ''}{main}</section>"


def _cards_html(found: CostReport) -> str:
    totals = found.totals
    cards = [
        (usd_text(totals.cost_usd), "cost"),
        (f"{totals.calls:,}", "calls"),
        (f"{totals.prompt_tokens:,}", "prompt tokens"),
        (f"{totals.cache_read_tokens:,}", "read from cache"),
        (f"{totals.output_tokens:,}", "completion tokens"),
    ]
    if totals.unpriced_tokens:
        cards.append((f"{totals.unpriced_tokens:,}", "unpriced tokens (not in the cost)"))
    body = "".join(f"<div><b>{number}</b><span>{what}</span></div>" for number, what in cards)
    return f'<div class="cards">{body}</div>'


def _spend_chart(found: CostReport) -> str:
    spent: dict[str, dict[str, float]] = {}
    for row in found.rows:
        if row.cost_usd and isinstance(row.day, str):
            spent.setdefault(row.model or "", {})[row.day] = row.cost_usd
    if not spent:
        return ""
    days = every_day({day for of_model in spent.values() for day in of_model}, _MOST_DAYS)
    dearest = sorted(spent, key=lambda model: -sum(spent[model].values()))
    main, others = dearest[: COLOURS - 1], dearest[COLOURS - 1 :]
    series = [Series(model, [spent[model].get(day, 0.0) for day in days]) for model in main]
    if others:
        rest = [sum(spent[model].get(day, 0.0) for model in others) for day in days]
        series.append(Series("other models", rest))
    return stacked_columns(days, series) + legend([each.name for each in series])


def _growth_chart(connection: sqlite3.Connection, scope: Scope) -> str:
    names = _recent_sessions(connection, scope)
    prompts = _prompt_sizes(connection, scope, names)
    series = [Series(name, _thin_out(prompts[session])) for session, name in names.items()]
    drawn = [each for each in series if each.values]
    return lines(drawn) + legend([each.name for each in drawn]) if drawn else ""


def _recent_sessions(connection: sqlite3.Connection, scope: Scope) -> dict[int, str]:
    times, moments = time_condition(scope.times)
    owner, values = owner_condition(scope, "event.session")
    rows = connection.execute(
        "SELECT session.id, name, agent FROM event JOIN session ON session.id = event.session "  # noqa: S608
        f"WHERE {times} {owner} ORDER BY at DESC",
        (*moments, *values),
    )
    names: dict[int, str] = {}
    for session, name, agent in rows:
        names.setdefault(session, f"{name or '(no session)'} ({agent})")
        if len(names) == COLOURS:
            break
    return names


def _prompt_sizes(
    connection: sqlite3.Connection, scope: Scope, sessions: Iterable[int]
) -> dict[int, list[float]]:
    prompts: dict[int, list[float]] = {session: [] for session in sessions}
    times, moments = time_condition(scope.times)
    rows = connection.execute(
        f"SELECT session, prompt FROM event_sums JOIN kind ON kind.id = kind WHERE {times} "  # noqa: S608
        f"AND session IN ({', '.join('?' * len(prompts))}) AND category = 'main' ORDER BY at",
        (*moments, *prompts),
    )
    for session, prompt in rows:
        prompts[session].append(float(prompt))
    return prompts


def _thin_out(values: list[float]) -> list[float]:
    every = -(-len(values) // _MOST_POINTS)
    if every <= 1:
        return values
    return [max(values[start : start + every]) for start in range(0, len(values), every)]


def _table_html(found: CostReport) -> str:
    if not found.rows:
        return ""
    heads = ("Model", "Calls", "Prompt", "Estimated", "Cache read", "Completion", "Cost")
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{_cells_html(row)}</tr>" for row in found.rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells_html(row: CostRow) -> str:
    estimated = "" if row.estimated_tokens is None else f"{row.estimated_tokens:,}"
    cost = "unpriced" if row.cost_usd is None else usd_text(row.cost_usd)
    if row.reported_cost_usd:
        cost += " (reported)"
    cells = (
        escape(row.model or ""),
        f"{row.calls:,}",
        f"{row.prompt_tokens:,}",
        estimated,
        f"{row.cache_read_tokens:,}",
        f"{row.completion_tokens:,}",
        cost,
    )
    return "".join(f"<td>{cell}</td>" for cell in cells)


COLOURS = 8
"""Number of colours in the page's style, `--c0` to `--c7`."""

WIDTH = 960
_COLUMNS_HIGH, _LINES_HIGH = 260, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 10, 26
_MOST_TICKS = 10


class Series(NamedTuple):
    """The values of each colour, by column."""

    name: str
    values: list[float]


def escape(text: str) -> str:
    return html.escape(printable(text))


def stacked_columns(labels: list[str], series: list[Series]) -> str:
    """Draw a stacked column for each label. Amounts are in USD."""
    highest = max(
        (sum(values) for values in zip(*(s.values for s in series), strict=True)), default=0
    )
    scale = _axis_maximum(highest)
    height, plot = _COLUMNS_HIGH, _COLUMNS_HIGH - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    parts = [_grid_svg(scale, height, "$")]
    for column, label in enumerate(labels):
        bottom = float(height - _BOTTOM)
        for colour, each in enumerate(series):
            tall = plot * each.values[column] / scale
            if tall <= 0:
                continue
            bottom -= tall
            hover = escape(f"{label}: {each.name} {usd_text(each.values[column])}")
            parts.append(
                f'<rect x="{_LEFT + column * step + step * 0.1:.1f}" y="{bottom:.1f}" '
                f'width="{step * 0.8:.1f}" height="{tall:.1f}" fill="var(--c{colour % COLOURS})">'
                f"<title>{hover}</title></rect>"
            )
    parts.append(_column_labels(labels, step, height))
    return _wrap_svg(parts, height, "Spend in USD for each day, by model")


def lines(series: list[Series]) -> str:
    """Draw a line for each series. Values are tokens."""
    highest = max((max(each.values, default=0) for each in series), default=0)
    longest = max((len(each.values) for each in series), default=1)
    scale = _axis_maximum(highest)
    height, plot = _LINES_HIGH, _LINES_HIGH - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(longest - 1, 1)
    parts = [_grid_svg(scale, height, "")]
    for colour, each in enumerate(series):
        points = [
            (_LEFT + index * step, height - _BOTTOM - plot * value / scale)
            for index, value in enumerate(each.values)
        ]
        style = f"var(--c{colour % COLOURS})"
        last = f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3" fill="{style}"/>'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f"<g><title>{escape(each.name)}: {each.values[-1]:,.0f} tokens in the last call</title>"
            f'<polyline points="{path}" fill="none" stroke="{style}" stroke-width="2"/>{last}</g>'
        )
    parts.append(_text_svg(WIDTH - _RIGHT, height - 8, "calls since the session started", "end"))
    return _wrap_svg(parts, height, "Prompt tokens of each call, by session")


def legend(names: list[str]) -> str:
    items = "".join(
        f'<li><i style="background:var(--c{index % COLOURS})"></i>{escape(name)}</li>'
        for index, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _axis_maximum(highest: float) -> float:
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


def _grid_svg(scale: float, height: int, unit: str) -> str:
    plot = height - _TOP - _BOTTOM
    parts = []
    for quarter in range(5):
        y = height - _BOTTOM - plot * quarter / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        )
        parts.append(_text_svg(_LEFT - 8, y + 4, unit + _short_number(scale * quarter / 4), "end"))
    return "".join(parts)


def _short_number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def _column_labels(labels: list[str], step: float, height: int) -> str:
    every = max(1, -(-len(labels) // _MOST_TICKS))
    return "".join(
        _text_svg(_LEFT + (column + 0.5) * step, height - 8, labels[column], "middle")
        for column in range(0, len(labels), every)
    )


def _text_svg(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _wrap_svg(parts: list[str], height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
