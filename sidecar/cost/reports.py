"""Creates cost reports (`cost/detail`) that group calls by any keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec

from sidecar.cost.cache_losses import LossCause
from sidecar.cost.cost_protocol import (
    KEYS,
    TEAM_KEYS,
    CostBar,
    CostChart,
    CostKey,
    CostReport,
    CostRow,
    CostTable,
    CostTotals,
    row_field,
)
from sidecar.cost.days import SPANS, day_name, every_day
from sidecar.cost.ledger_events import PROTOCOL
from sidecar.cost.prices import Prices
from sidecar.cost.repricing import pending_note
from sidecar.cost.sums import (
    Scope,
    Tallies,
    Tally,
    kinds_in,
    read_tallies,
    scopes_by_block,
)
from sidecar.cost.worktrees import nested_repositories, repository_inside
from sidecar.errors import BadParamsError
from sidecar.known_agents import credit_agents, lower_bound_agents
from sidecar.text.printable import AT_LEAST, cost_text, counted, printable
from sidecar.text.tables import align_columns, draw_bar


def report(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    by: Sequence[CostKey],
    block_ends: Mapping[str, datetime] = MappingProxyType({}),
) -> CostReport:
    """Return a report with one row per group of calls, and with totals.

    Args:
        connection: The ledger.
        prices: The prices.
        scope: The calls to report.
        by: The keys to group by.
        block_ends: For some agents, when a five-hour block ends.

    Raises:
        BadParamsError: A key is unknown.
    """
    keys = ordered_keys(by)
    tallies = tally_calls(connection, prices, scope, keys, block_ends)
    found = build_report(keys, tallies, describe_basis(connection, prices, scope))
    return msgspec.structs.replace(found, note=pending_note(connection))


def tally_calls(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    keys: Sequence[CostKey],
    block_ends: Mapping[str, datetime] = MappingProxyType({}),
) -> Tallies:
    """Return the tally of each group, keyed by the values of the grouping keys.

    For `block_ends`, see `report`.
    """
    parts: Iterable[tuple[str, Scope]] = [("", scope)]
    if "block" in keys:
        parts = scopes_by_block(connection, scope, block_ends)
    kinds = kinds_in(connection) if {"model", "category"} & set(keys) else {}
    models = {number: prices.priced_name(kind[1], kind[0]) for number, kind in kinds.items()}
    apart = ("block", "cache-loss")
    columns = list(dict.fromkeys(_COLUMNS.get(key, key) for key in keys if key not in apart))
    columns = columns or ["agent"]
    nested = nested_repositories(connection, scope.all_folders) if "branch" in keys else {}
    columns += ["workspace"] if nested and "workspace" not in columns else []
    tallies: Tallies = {}

    def value(key: CostKey, row: Mapping[str, Any], block: str) -> str | None:
        if key == "block":
            return block
        if key == "model":
            return models[row["kind"]]
        if key == "category":
            return kinds[row["kind"]][2]
        if key == "cache-loss":
            return LossCause(row["loss"]).text if "loss" in row else None
        if key == "branch" and row[key]:
            return _branch_name(row, nested)
        return SPANS[key](row["day"]) if key in SPANS else row[key] or None

    for block, part in parts:
        for row, tally in _read_rows(connection, part, columns, apart="cache-loss" in keys):
            name = tuple(value(key, row, block) for key in keys)
            tallies[name] = tallies.get(name, Tally()) + tally
    return tallies


def _branch_name(row: Mapping[str, Any], nested: Mapping[str, str]) -> str:
    """Return a branch's name, with the repository's if it is nested in the workspace."""
    branch = str(row["branch"])
    name = repository_inside(nested, row["workspace"]) if nested else None
    return f"{branch} ({name})" if name else branch


def _read_rows(
    connection: sqlite3.Connection, scope: Scope, columns: list[str], *, apart: bool
) -> Iterator[tuple[dict[str, Any], Tally]]:
    """Yield the values of the columns, with the tally of their calls.

    If `apart` is true, what lost caches cost is in rows of its own, which also have a `loss`.
    """
    for values, tally in read_tallies(connection, scope, columns).items():
        yield dict(zip(columns, values, strict=True)), tally
    for values, tally in (
        read_tallies(connection, scope, [*columns, "loss"]).items() if apart else ()
    ):
        row = dict(zip((*columns, "loss"), values, strict=True))
        yield row, tally
        del row["loss"]
        yield row, Tally() - tally


_COLUMNS: Mapping[CostKey, str] = {
    "model": "kind", "category": "kind", "week": "day", "month": "day"
}  # fmt: skip
"""The column to group by for each key, if it has another name."""


def report_rows(keys: Sequence[CostKey], tallies: Tallies) -> list[CostRow]:
    """Return a row for each group, sorted by time, then by cost with the highest first."""
    rows = [row(tally, dict(zip(keys, values, strict=True))) for values, tally in tallies.items()]
    return sorted(rows, key=_sort_key)


def build_report(keys: Sequence[CostKey], tallies: Tallies, basis: str) -> CostReport:
    """Build a report from the tally of each group."""
    everything = sum(tallies.values(), Tally())
    basis = " ".join(filter(None, (basis, derived_note(everything))))
    rows = report_rows(keys, tallies)
    lines = [line.text for line in rows]
    if len(rows) > 1:
        lines.append(total_text(everything))
    return CostReport(rows=rows, totals=totals(everything), basis=basis, text="\n".join(lines))


def ordered_keys(by: Sequence[str], *, team: bool = False) -> list[CostKey]:
    """Return the keys in the requested order, without duplicates.

    Team reports accept `TEAM_KEYS`, all others `KEYS`.

    Raises:
        BadParamsError: A key is unknown. The message lists the valid keys.
    """
    known = TEAM_KEYS if team else KEYS
    wanted = sorted([key for key in known if key in by], key=by.index)
    if not wanted or set(by) - set(known):
        given = ", ".join(by) or "nothing"
        raise BadParamsError(f"cannot group by {given}; choose from {', '.join(known)}")
    return wanted


def describe_basis(connection: sqlite3.Connection, prices: Prices, scope: Scope) -> str:
    """Return a text on how each agent's costs were determined, with notes on the price lists."""
    groups: dict[str, list[str]] = {}
    notes, kinds = set[str](), kinds_in(connection)
    found = read_tallies(connection, scope, ("agent", "kind"))
    for agent in sorted({agent for agent, _kind in found} - {PROTOCOL}):
        groups.setdefault(_basis_of(agent), []).append(agent)
    for (_agent, kind), tally in found.items():
        provider, model, *_ = kinds[kind]
        is_priced = tally.priced_calls > tally.reported_calls
        tariff = prices.tariff(model, provider) if is_priced else None
        if tariff is not None:
            notes.add(tariff.note)
    texts = [f"{', '.join(names)}: {text}." for text, names in groups.items()]
    return printable(" ".join([*texts, *sorted(filter(None, notes))]))


def derived_note(tally: Tally) -> str:
    """Return a note on calls with a price derived from the standard price, or ""."""
    if not tally.derived_calls:
        return ""
    calls = counted(tally.derived_calls, "call")
    return (
        f"{calls} in a service tier without a listed price that day: priced by the tier's nearest "
        "known ratio to the standard price, or at the standard price if the model has no price in "
        "that tier."
    )


def _basis_of(agent: str) -> str:
    if agent in credit_agents():
        return "AI credits as reported, $0.01 each"
    if agent in lower_bound_agents():
        return (
            "at least this much at API prices; some calls are not in any session file, and "
            "subscription charges are not known"
        )
    return "at API prices; subscription charges are not known"


def _sort_key(line: CostRow) -> tuple[str, float, str]:
    times = (line.day, line.week, line.month, line.block)
    time = next((one for one in times if isinstance(one, str)), "")
    return time, -(line.cost_usd or 0.0), line.text


def row(tally: Tally, keys: dict[CostKey, str | None]) -> CostRow:
    buckets, note = tally.buckets, estimate_note(tally.estimated, tally.estimated_prompt)
    name = " ".join(value or "(none)" for value in keys.values())
    return CostRow(
        **{row_field(key): value for key, value in keys.items()},
        calls=tally.calls,
        prompt_tokens=buckets.prompt,
        estimated_tokens=tally.estimated if tally.estimated_calls else None,
        estimated_prompt_tokens=tally.estimated_prompt if tally.estimated_calls else None,
        completion_tokens=buckets.completion,
        cache_read_tokens=buckets.cache_read,
        cache_write_tokens=buckets.cache_writes,
        cost_usd=tally.cost_usd,
        reported_cost_usd=float(tally.reported),
        listed_cost_usd=tally.listed_usd,
        agent_cost_usd=float(tally.agent_cost) if tally.agent_cost else None,
        unpriced=tally.unpriced,
        partial=tally.is_partial,
        note=note,
        text=_row_line(printable(name), tally, note),
        cost_text=_exact_cost_text(tally),
    )


def totals(tally: Tally) -> CostTotals:
    buckets = tally.buckets
    return CostTotals(
        calls=tally.calls,
        input_tokens=buckets.input,
        output_tokens=buckets.completion,
        cache_read_tokens=buckets.cache_read,
        cache_write_tokens=buckets.cache_writes,
        reasoning_tokens=buckets.reasoning,
        cost_usd=float(tally.cost),
        unpriced_tokens=tally.unpriced_tokens,
        cost_text=_exact_cost_text(tally),
    )


def estimate_note(estimated: int, actual: int) -> str:
    """Return `~est=N` if the estimate differs from the actual prompt by more than 10 %."""
    return f"~est={estimated}" if abs(actual - estimated) * 10 > actual else ""


def amount(cost: Decimal) -> str:
    """Format an amount in USD with six decimal places, or two significant digits if smaller."""
    if 0 < cost < Decimal("0.0000005"):
        return f"${cost:.{1 - cost.adjusted()}f}"
    return f"${cost:.6f}"


def total_text(tally: Tally) -> str:
    """Return a report's last line, such as `total 3 calls, 1200 / 80 tokens, $0.004219`."""
    return _row_line("total", tally, "")


def _row_line(label: str, tally: Tally, note: str) -> str:
    buckets = tally.buckets
    prompt = f"{buckets.prompt} {note}" if note else str(buckets.prompt)
    tokens = f"{prompt} / {buckets.completion} tokens"
    return f"{label} {tally.calls} calls, {tokens}, {_exact_cost_text(tally)}"


def _exact_cost_text(tally: Tally) -> str:
    text = f"{AT_LEAST if tally.omitting_calls else ''}{amount(tally.cost)}"
    if not tally.unpriced:
        return text
    if not tally.priced_calls:
        return "unpriced"
    left = tally.calls - tally.priced_calls
    missing = [counted(left, "call")] * bool(left) + ["parts"] * bool(tally.partly_priced_calls)
    return f"{text} + {' and '.join(missing)} unpriced"


_CHARTS: tuple[tuple[CostKey, str], ...] = (
    ("day", "By day"),
    ("model", "By model"),
    ("agent", "By agent"),
)
_MOST_DAYS = 30
_MOST_BARS = 12
_BAR_CELLS = 32
_HEADS = ("Calls", "Prompt", "Cache read", "Completion", "Cache write", "Cost")
_CACHE_WRITE = _HEADS.index("Cache write")
"""The position of the column that is omitted if there are no cache writes."""


def overview(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    by: Sequence[CostKey],
    block_ends: Mapping[str, datetime] = MappingProxyType({}),
    width: int = 0,
) -> CostReport:
    """Return a report with a table, charts and a plain text version of both.

    If `width` is not 0, the text's table is fitted to it.
    """
    return add_charts(
        report(connection, prices, scope, by, block_ends),
        ordered_keys(by),
        lambda key: tally_calls(connection, prices, scope, [key], block_ends),
        width,
    )


def add_charts(
    found: CostReport,
    keys: list[CostKey],
    tallies_by: Callable[[CostKey], Tallies],
    width: int = 0,
) -> CostReport:
    """Add a table, charts and a plain text version to a report that is grouped by `keys`."""
    charts = []
    for key, title in _CHARTS if found.rows else ():
        rows = report_rows([key], tallies_by(key))
        charts.append(CostChart(by=key, title=title, bars=_cost_bars(key, rows)))
    made = msgspec.structs.replace(found, table=_cost_table(found, keys), charts=charts)
    return msgspec.structs.replace(made, overview=_render_text(made, width))


def _cost_bars(key: CostKey, rows: list[CostRow]) -> list[CostBar]:
    """Return a bar for each row's cost. Costs are marked as lower bounds as in the table."""
    costs = {_row_name(row, key): (row.cost_usd, row.partial) for row in rows}
    if key == "day":
        days = [*map(day_name, every_day(costs)[-_MOST_DAYS:])] if costs else []
        costs = {day: costs.get(day, (0.0, False)) for day in days}
    elif len(costs) > _MOST_BARS:
        names = list(costs)  # sorted by cost, highest first
        rest = [costs.pop(name) for name in names[_MOST_BARS - 1 :]]
        is_partial = any(partial for _, partial in rest)
        costs[f"{len(rest)} others"] = sum(cost or 0.0 for cost, _ in rest), is_partial
    most = max((cost or 0.0 for cost, _ in costs.values()), default=0.0) or 1.0
    return [
        CostBar(
            label=name,
            share=(cost or 0.0) / most,
            text=cost_text(cost, is_partial=is_partial),
        )
        for name, (cost, is_partial) in costs.items()
    ]


def _cost_table(found: CostReport, keys: list[CostKey]) -> CostTable:
    rows = [[*(_row_name(row, key) for key in keys), *_number_cells(row)] for row in found.rows]
    totals = found.totals
    numbers = map("{:,}".format, _numbers(totals))
    total = ["Total", *[""] * (len(keys) - 1), *numbers, total_cost(found)]
    heads = [*(key.capitalize() for key in keys), *_HEADS]
    if not totals.cache_write_tokens:
        for cells in (heads, total, *rows):
            del cells[len(keys) + _CACHE_WRITE]
    return CostTable(
        heads=heads,
        names=len(keys),
        rows=rows,
        total=total if len(rows) > 1 else [],
    )


def _row_name(row: CostRow, key: CostKey) -> str:
    return printable(getattr(row, row_field(key)) or "(none)")


def _numbers(counts: CostRow | CostTotals) -> tuple[int, ...]:
    return (
        counts.calls, counts.prompt_tokens, counts.cache_read_tokens, counts.completion_tokens,
        counts.cache_write_tokens,
    )  # fmt: skip


def total_cost(found: CostReport) -> str:
    """Return a report's total cost, such as `≥ $1.92`, or `unpriced`."""
    is_priced = any(row.cost_usd is not None for row in found.rows)
    is_partial = any(row.partial for row in found.rows)
    return cost_text(found.totals.cost_usd if is_priced else None, is_partial=is_partial)


def _number_cells(row: CostRow) -> list[str]:
    calls, prompt, *rest = map("{:,}".format, _numbers(row))
    cost = cost_text(row.cost_usd, is_partial=row.partial)
    return [calls, f"{prompt} {row.note}" if row.note else prompt, *rest, cost]


def _render_text(found: CostReport, width: int) -> str:
    table, parts = found.table, []
    if table is None or not found.rows:
        return ""
    rows = [table.heads, *table.rows, *([table.total] if table.total else [])]
    parts.append(align_columns([[*row, ""] for row in rows], left=table.names, width=width))
    for chart in found.charts:
        bars = [(one.label, one.text, draw_bar(one.share, _BAR_CELLS)) for one in chart.bars]
        parts.append([chart.title, *align_columns(bars)])
    if found.basis:
        parts.append([found.basis])
    return "\n\n".join("\n".join(lines) for lines in parts)
