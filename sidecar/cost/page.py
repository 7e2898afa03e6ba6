"""One self-contained page of costs: spend over time, contexts growing, and a table by model."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from sidecar.cost import charts
from sidecar.cost.charts import COLOURS, Series, escape
from sidecar.cost.days import every_day
from sidecar.cost.reports import report
from sidecar.cost.sums import Scope, owner_condition, time_condition
from sidecar.cost.workspaces import folder_name

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from sidecar.cost.prices import Prices
    from sidecar.cost.rows import CostReport, CostRow

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
    """The page as HTML. It names models, sessions and workspaces, and holds no text of anyone's."""
    by_model = report(connection, prices, scope, ["model"])
    by_day = report(connection, prices, scope, ["model", "day"])
    made = (now or datetime.now(UTC)).astimezone(zone).strftime("%Y-%m-%d %H:%M")
    whose = folder_name(scope.workspace) if scope.workspace else "all workspaces"
    sections = [
        _section("Spend over time", "USD a day, by model.", _spend(by_day)),
        _section(
            "Context growth",
            "Prompt tokens from call to call, for the sessions used last.",
            _growth(connection, scope),
        ),
        _section("All models", "", _table(by_model)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Token costs</title><style>{STYLE}</style></head><body>"
        f"<h1>Token costs</h1><p>{escape(whose)}, made {made}</p>{_cards(by_model)}"
        f"{''.join(sections)}</body></html>\n"
    )


def _section(title: str, about: str, body: str) -> str:
    main = body or "<p>Nothing was recorded.</p>"
    return f"<section><h2>{title}</h2>{f'<p>{about}</p>' if about else ''}{main}</section>"


def _cards(found: CostReport) -> str:
    totals = found.totals
    cards = [
        (f"${totals.cost_usd:,.4f}", "cost"),
        (f"{totals.calls:,}", "calls"),
        (f"{totals.prompt_tokens:,}", "prompt tokens"),
        (f"{totals.cache_read_tokens:,}", "of them read from a cache"),
        (f"{totals.output_tokens:,}", "completion tokens"),
    ]
    if totals.unpriced_tokens:
        cards.append((f"{totals.unpriced_tokens:,}", "unpriced tokens, not in the cost"))
    body = "".join(f"<div><b>{number}</b><span>{what}</span></div>" for number, what in cards)
    return f'<div class="cards">{body}</div>'


def _spend(found: CostReport) -> str:
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
    return charts.stacked_columns(days, series) + charts.legend([one.name for one in series])


def _growth(connection: sqlite3.Connection, scope: Scope) -> str:
    names = _recent_sessions(connection, scope)
    prompts = _prompts(connection, scope, names)
    series = [Series(name, _thinned(prompts[session])) for session, name in names.items()]
    drawn = [one for one in series if one.values]
    return charts.lines(drawn) + charts.legend([one.name for one in drawn]) if drawn else ""


def _recent_sessions(connection: sqlite3.Connection, scope: Scope) -> dict[int, str]:
    """The names of the sessions used last, by id."""
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


def _prompts(
    connection: sqlite3.Connection, scope: Scope, sessions: Iterable[int]
) -> dict[int, list[float]]:
    """Prompt tokens of the sessions' main calls, in the order of time."""
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


def _thinned(values: list[float]) -> list[float]:
    """At most a few hundred values: of neighbours the largest, and always the last."""
    every = -(-len(values) // _MOST_POINTS)
    if every <= 1:
        return values
    return [max(values[start : start + every]) for start in range(0, len(values), every)]


def _table(found: CostReport) -> str:
    if not found.rows:
        return ""
    heads = ("Model", "Calls", "Prompt", "Estimated", "Cache read", "Completion", "Cost")
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in found.rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: CostRow) -> str:
    estimated = "" if row.estimated_tokens is None else f"{row.estimated_tokens:,}"
    cost = "unpriced" if row.cost_usd is None else f"${row.cost_usd:,.6f}"
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
