"""A report to look at: a table, a chart a key, and both in characters for who shows text only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sidecar.cost.days import every_day
from sidecar.cost.reports import ordered_keys, report
from sidecar.cost.rows import CostBar, CostChart, CostKey, CostReport, CostRow, CostTable
from sidecar.text.printable import printable
from sidecar.text.tables import aligned, bar

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from sidecar.cost.prices import Prices
    from sidecar.cost.sums import Scope

_CHARTS: tuple[tuple[CostKey, str], ...] = (
    ("day", "By day"),
    ("model", "By model"),
    ("agent", "By agent"),
)
_MOST_DAYS = 30
_MOST_BARS = 12
_BAR_CELLS = 32
_HEADS = ("Calls", "Prompt", "Cache read", "Completion", "Cost")


def overview(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    by: Sequence[CostKey],
) -> CostReport:
    """As `report`, with its table and charts."""
    found = report(connection, prices, scope, by)
    charts = []
    for key, title in _CHARTS if found.rows else ():
        rows = report(connection, prices, scope, [key]).rows
        charts.append(CostChart(by=key, title=title, bars=_bars(key, rows)))
    made = msgspec.structs.replace(found, table=_table(found, ordered_keys(by)), charts=charts)
    return msgspec.structs.replace(made, overview=_text(made))


def _bars(key: CostKey, rows: list[CostRow]) -> list[CostBar]:
    costs = {_name(row, key): row.cost_usd for row in rows}
    if key == "day":
        days = every_day(set(costs), _MOST_DAYS) if costs else []
        costs = {day: costs.get(day, 0.0) for day in days}
    elif len(costs) > _MOST_BARS:
        names = list(costs)  # the dearest first
        rest = [costs.pop(name) or 0.0 for name in names[_MOST_BARS - 1 :]]
        costs[f"{len(rest)} others"] = sum(rest)
    most = max((cost or 0.0 for cost in costs.values()), default=0.0) or 1.0
    return [
        CostBar(label=name, share=(cost or 0.0) / most, text=_usd(cost))
        for name, cost in costs.items()
    ]


def _table(found: CostReport, keys: list[CostKey]) -> CostTable:
    rows = [
        [*(_name(row, key) for key in keys), *_numbers(row), row.cost_text] for row in found.rows
    ]
    totals = found.totals
    numbers = (totals.calls, totals.prompt_tokens, totals.cache_read_tokens, totals.output_tokens)
    total = ["Total", *[""] * (len(keys) - 1), *(f"{number:,}" for number in numbers)]
    return CostTable(
        heads=[*(key.capitalize() for key in keys), *_HEADS],
        names=len(keys),
        rows=rows,
        total=[*total, totals.cost_text] if len(rows) > 1 else [],
    )


def _name(row: CostRow, key: CostKey) -> str:
    return printable(getattr(row, key) or "(none)")


def _numbers(row: CostRow) -> list[str]:
    numbers = (row.calls, row.prompt_tokens, row.cache_read_tokens, row.completion_tokens)
    calls, prompt, *rest = (f"{number:,}" for number in numbers)
    return [calls, f"{prompt} {row.note}" if row.note else prompt, *rest]


def _usd(cost: float | None) -> str:
    if cost is None:
        return "unpriced"
    return f"${cost:,.2f}" if cost >= 0.1 or not cost else f"${cost:,.4f}"


def _text(found: CostReport) -> str:
    table, parts = found.table, []
    if table is None or not found.rows:
        return ""
    rows = [table.heads, *table.rows, *([table.total] if table.total else [])]
    parts.append(_right(rows, table.names))
    for chart in found.charts:
        bars = [(one.label, one.text, bar(one.share, _BAR_CELLS)) for one in chart.bars]
        parts.append([chart.title, *aligned(bars)])
    if found.basis:
        parts.append([found.basis])
    parts.append(found.text.split("\n"))
    return "\n\n".join("\n".join(lines) for lines in parts)


def _right(rows: list[list[str]], names: int) -> list[str]:
    """All columns after the names to the right, the last one too."""
    return aligned([[*row, ""] for row in rows], left=names)
