"""Creates cost reports (`cost/detail`) that group calls by any keys.

Costs are computed when a report is created, so corrected prices also apply to past calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, get_args

import msgspec

from sidecar.cost.blocks import Block, blocks_with_calls, scope_of_block
from sidecar.cost.days import day_name, every_day, week_name
from sidecar.cost.events import PROTOCOL, REPORTED, THRESHOLDS, Buckets, typical_prompt
from sidecar.cost.ledger import BUCKETS, QUARTER_MS, usd
from sidecar.cost.prices import Cost, Prices, add_costs, cost_of
from sidecar.cost.protocol import (
    KEYS,
    TEAM_KEYS,
    CostBar,
    CostChart,
    CostKey,
    CostReport,
    CostRow,
    CostTable,
    CostTotals,
)
from sidecar.cost.sums import (
    SLOTS_A_DAY,
    Grouping,
    Owner,
    PriceKey,
    Scope,
    Sum,
    agents_in_scope,
    kinds_in,
    price_keys,
    rank_sessions,
    read_sums,
)
from sidecar.errors import BadParamsError
from sidecar.known_agents import CREDIT_AGENTS, LOWER_BOUND_AGENTS
from sidecar.text.printable import AT_LEAST, cost_text, counted, printable, usd_text
from sidecar.text.tables import align_columns, draw_bar

if TYPE_CHECKING:
    import sqlite3

    from sidecar.models.tariffs import Tariff, UnitPrices


class Priced(msgspec.Struct, frozen=True):
    """A sum of calls of the same kind, with its cost."""

    kind: tuple[str, str, str, str]
    """The calls' provider, model, category and tier."""
    sum: Sum
    cost: Cost
    model: str
    """The model's name in reports, see `Prices.priced_name`."""
    listed: Decimal | None = None
    """The list price in USD of calls with a reported cost, or None if unknown."""
    note: str = ""
    """A note on the price list that was used."""


def report(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    by: Sequence[CostKey],
) -> CostReport:
    """Return a report with one row per group of calls, and with totals.

    Raises:
        BadParamsError: A key is unknown.
    """
    keys = ordered_keys(by)
    notes = set[str]()
    tallies = tally_calls(connection, prices, scope, keys, notes)
    return build_report(keys, tallies, describe_basis(connection, scope, notes))


def tally_calls(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    keys: Sequence[CostKey],
    notes: set[str] | None = None,
) -> Tallies:
    """Return the tally of each group, keyed by the values of the grouping keys.

    Notes on the price lists that were used are added to `notes`.
    """
    owner = _owner_for(keys)
    partial = lower_bound_agents(connection)
    if partial:  # each sum must be limited to one agent
        owner = "agent" if owner in (None, "agent") else "session"
    sessions = _read_sessions(connection) if owner == "session" else {}
    tallies: Tallies = {}
    blocks: Sequence[Block | None] = (
        blocks_with_calls(connection, scope) if "block" in keys else [None]
    )
    for block in blocks:
        part = scope if block is None else scope_of_block(scope, block)
        found = priced_sums(connection, prices, part, owner=owner, days=bool(SPANS.keys() & keys))
        for priced in found:
            if notes is not None and priced.note:
                notes.add(priced.note)
            values = tuple(_value_of_key(key, priced, sessions, block) for key in keys)
            agent = sessions[priced.sum.owner][2] if sessions else priced.sum.owner
            known, tally = tallies.get(values), _tally_of(priced, omits_calls=agent in partial)
            tallies[values] = tally if known is None else known + tally
    return tallies


def build_report(keys: Sequence[CostKey], tallies: Tallies, basis: str) -> CostReport:
    """Build a report. Its rows are sorted by time, then by cost with the highest first."""
    everything = sum(tallies.values(), Tally())
    basis = " ".join(filter(None, (basis, derived_note(everything))))
    rows = [row(tally, dict(zip(keys, values, strict=True))) for values, tally in tallies.items()]
    rows.sort(key=_sort_key)
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


def priced_sums(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    *,
    owner: Owner | None = None,
    days: bool = False,
) -> Iterator[Priced]:
    """Yield sums of the calls in scope, with their costs.

    Args:
        connection: The ledger.
        prices: The prices.
        scope: The calls to sum.
        owner: If set, each sum is limited to one session, agent or workspace.
        days: Whether each sum is limited to one local day.
    """
    kinds = kinds_in(connection)
    tariffs = {number: prices.tariff(kind[1], kind[0]) for number, kind in kinds.items()}
    names = {number: prices.priced_name(kind[1], kind[0]) for number, kind in kinds.items()}
    grouping = _grouping_for(tariffs, owner=owner, days=days)
    unit_prices: dict[PriceKey, UnitPrices | None] = {}
    for found in read_sums(connection, scope, grouping):
        if found.band == REPORTED:
            listed = _cost_by_list(tariffs[found.kind], kinds[found.kind][3], found, grouping)
            cost = Cost(usd(found.reported), basis="reported")
            yield Priced(kinds[found.kind], found, cost, names[found.kind], listed)
            continue
        key, tariff = found.price_key, tariffs[found.kind]
        if key not in unit_prices:
            unit_prices[key] = _unit_prices(tariff, kinds[found.kind][3], key, grouping)
        cost = cost_of(unit_prices[key], found.buckets, found.calls)
        note = "" if tariff is None or cost.usd is None else tariff.note
        if cost.usd is None and found.reported:  # use the cost computed by the agents
            cost = Cost(usd(found.reported), basis="agent")
        yield Priced(kinds[found.kind], found, cost, names[found.kind], note=note)


def costliest_sessions(
    connection: sqlite3.Connection, prices: Prices, scope: Scope, most: int
) -> tuple[Tallies, int]:
    """Return the tallies of the costliest sessions, keyed by session and agent, highest cost first.

    Also returns the number of other sessions.
    """
    ranked = sessions_by_cost(connection, prices, scope, most)
    names = tuple({name for name, _agent, _count in ranked})
    chosen = msgspec.structs.replace(scope, sessions=names)
    tallies = tally_calls(connection, prices, chosen, ("session", "agent"))
    keys = [(name or None, agent or None) for name, agent, _count in ranked]
    return {key: tallies[key] for key in keys}, ranked[0][2] - len(ranked) if ranked else 0


def sessions_by_cost(
    connection: sqlite3.Connection, prices: Prices, scope: Scope, most: int = -1
) -> list[tuple[str, str, int]]:
    """Return the costliest sessions, highest cost first.

    Each row contains a session's name, its agent, and the total number of sessions.
    """
    kinds = kinds_in(connection)
    tariffs = {number: prices.tariff(kind[1], kind[0]) for number, kind in kinds.items()}
    grouping = _grouping_for(tariffs)
    units = {
        key: _price_of_each_sum(
            _unit_prices(tariffs[key[0]], kinds[key[0]][3], key, grouping)
            if key[1] != REPORTED
            else None
        )
        for key in price_keys(connection, scope, grouping)
    }
    return rank_sessions(connection, scope, grouping, units, most)


def _price_of_each_sum(unit: UnitPrices | None) -> dict[str, float]:
    """Return the price in USD of one unit of each column of a sum, keyed by column name."""
    buckets = {name: cost_of(unit, Buckets(**{name: 1}), 0).usd or 0 for name in BUCKETS}
    if unit is None or not any(buckets.values()):
        return {"reported": float(usd(1))}
    return {name: float(price) for name, price in (("calls", unit.call), *buckets.items())}


def cost_by_session(
    connection: sqlite3.Connection, prices: Prices, scope: Scope
) -> dict[str, Cost]:
    """Return the cost of each session, keyed by session name."""
    names = {number: name for number, (_, name, _) in _read_sessions(connection).items()}
    found: dict[str, list[Cost]] = {}
    for priced in priced_sums(connection, prices, scope, owner="session"):
        found.setdefault(names[priced.sum.owner], []).append(priced.cost)
    return {name: add_costs(costs) for name, costs in found.items() if name}


def _cost_by_list(
    tariff: Tariff | None, tier: str, found: Sum, grouping: Grouping
) -> Decimal | None:
    if tariff is None or tariff.thresholds:
        return None
    key = (found.kind, 0, found.epoch, found.clock)
    cost = cost_of(_unit_prices(tariff, tier, key, grouping), found.buckets, found.calls)
    return cost.usd if cost.whole else None


def _grouping_for(
    tariffs: dict[int, Tariff | None], *, owner: Owner | None = None, days: bool = False
) -> Grouping:
    known = {kind: tariff for kind, tariff in tariffs.items() if tariff is not None}
    by_prompt = {kind for kind, tariff in known.items() if tariff.thresholds - set(THRESHOLDS)}
    by_band = {kind for kind, tariff in known.items() if tariff.thresholds} - by_prompt
    return Grouping(
        changes=tuple(sorted({day for tariff in known.values() for day in tariff.changes})),
        by_clock=frozenset(kind for kind, tariff in known.items() if tariff.by_clock),
        by_prompt=frozenset(by_prompt),
        by_band=frozenset(by_band),
        owner=owner,
        days=days,
    )


def _unit_prices(
    tariff: Tariff | None, tier: str, key: PriceKey, grouping: Grouping
) -> UnitPrices | None:
    if tariff is None:
        return None
    _kind, band, epoch, clock = key
    # Prices are constant between two price changes, so any day between them can be used.
    day = grouping.changes[epoch - 1] if epoch else min(grouping.changes, default=1) - 1
    slot = day * SLOTS_A_DAY + clock
    at = datetime.fromtimestamp(slot * QUARTER_MS // 1000, UTC)
    return tariff.prices(at, tier, typical_prompt(band))


def describe_basis(connection: sqlite3.Connection, scope: Scope, notes: Iterable[str]) -> str:
    """Return a text on how each agent's costs were determined, with notes on the price lists."""
    groups: dict[str, list[str]] = {}
    for agent in agents_in_scope(connection, scope):
        if agent != PROTOCOL:
            groups.setdefault(_basis_of(agent), []).append(agent)
    texts = [f"{', '.join(names)}: {text}." for text, names in groups.items()]
    return printable(" ".join([*texts, *sorted(notes)]))


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
    if agent in CREDIT_AGENTS:
        return "AI credits as reported, $0.01 each"
    if agent in LOWER_BOUND_AGENTS:
        return (
            "at least this much at API prices; some calls are not in any session file, and "
            "subscription charges are not known"
        )
    return "at API prices; subscription charges are not known"


def _owner_for(keys: Sequence[CostKey]) -> Owner | None:
    """Return the owner that each sum must be limited to if calls are grouped by these keys.

    Returns None if the keys contain no owner.
    """
    owners: list[Owner] = [key for key in get_args(Owner) if key in keys]
    return (owners[0] if len(owners) == 1 else "session") if owners else None


def lower_bound_agents(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the agents in the ledger whose files omit calls."""
    agents = connection.execute("SELECT DISTINCT agent FROM session")
    return LOWER_BOUND_AGENTS.intersection(agent for (agent,) in agents)


def _read_sessions(connection: sqlite3.Connection) -> Mapping[int | str, tuple[str, str, str]]:
    """Return the workspace, name and agent of each session, keyed by session id."""
    rows = connection.execute("SELECT id, workspace, name, agent FROM session")
    return {row[0]: row[1:] for row in rows} or {0: ("", "", "")}


SPANS: dict[str, Callable[[int], str]] = {
    "day": day_name,
    "week": week_name,
    "month": lambda day: day_name(day)[:7],
}
"""Maps each time key to a function that returns the name of the period that contains a day."""


def _value_of_key(
    key: CostKey,
    priced: Priced,
    sessions: Mapping[int | str, tuple[str, str, str]],
    block: Block | None,
) -> str | None:
    if key == "block":
        return None if block is None else block.name
    if key == "model":
        return priced.model
    if key == "category":
        return priced.kind[2]
    if key in SPANS:
        return SPANS[key](priced.sum.day)
    if not sessions:  # each sum belongs to an agent or a workspace
        return str(priced.sum.owner) or None
    workspace, name, agent = sessions[priced.sum.owner]
    return (workspace if key == "workspace" else name if key == "session" else agent) or None


def _tally_of(priced: Priced, *, omits_calls: bool) -> Tally:
    found, cost = priced.sum, priced.cost
    reported_calls = found.calls if found.band == REPORTED else 0
    amount = usd(found.reported)
    return Tally(
        calls=found.calls,
        priced_calls=found.calls if cost.usd is not None else 0,
        partly_priced_calls=found.calls if cost.usd is not None and not cost.whole else 0,
        derived_calls=found.calls if cost.is_derived else 0,
        unpriced_tokens=cost.unpriced_tokens,
        buckets=found.buckets,
        estimated_calls=found.estimated_calls,
        estimated=found.estimated,
        estimated_prompt=found.estimated_prompt,
        cost=cost.usd or Decimal(0),
        reported=amount if reported_calls else Decimal(0),
        agent=Decimal(0) if reported_calls else amount,
        reported_calls=reported_calls,
        listed=priced.listed or Decimal(0),
        listed_calls=0 if priced.listed is None else found.calls,
        omitting_calls=found.calls if omits_calls else 0,
    )


def _sort_key(line: CostRow) -> tuple[str, float, str]:
    times = (line.day, line.week, line.month, line.block)
    time = next((one for one in times if isinstance(one, str)), "")
    return time, -(line.cost_usd or 0.0), line.text


class Tally(msgspec.Struct, frozen=True):
    """The sums of a group of calls. Tallies are combined with `+`. Amounts are in USD."""

    calls: int = 0
    priced_calls: int = 0
    """The number of calls that are at least partly priced."""
    partly_priced_calls: int = 0
    derived_calls: int = 0
    """The number of calls in a service tier with a price derived from the standard price."""
    unpriced_tokens: int = 0
    buckets: Buckets = Buckets()
    estimated_calls: int = 0
    """The number of calls whose prompt was estimated before sending."""
    estimated: int = 0
    """The estimated prompt tokens of the calls with an estimate."""
    estimated_prompt: int = 0
    """The reported prompt tokens of the calls with an estimate."""
    cost: Decimal = Decimal(0)
    reported: Decimal = Decimal(0)
    """The part of `cost` that vendors reported."""
    agent: Decimal = Decimal(0)
    """The cost that agents computed from their price lists."""
    reported_calls: int = 0
    """The number of calls with a reported cost."""
    listed: Decimal = Decimal(0)
    """The total list price of the calls with both a reported cost and a list price."""
    listed_calls: int = 0
    omitting_calls: int = 0
    """The number of calls of agents whose files omit other calls."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other))
        )

    def __sub__(self, other: Tally) -> Tally:
        return Tally(
            *map(operator.sub, msgspec.structs.astuple(self), msgspec.structs.astuple(other))
        )

    @property
    def unpriced(self) -> bool:
        """Whether any call, or any part of a call, has no price."""
        return bool(self.partly_priced_calls) or self.priced_calls < self.calls

    @property
    def is_partial(self) -> bool:
        """Whether the cost is a lower bound: calls have no price, or agents omit calls."""
        return self.unpriced or self.omitting_calls > 0

    @property
    def cost_usd(self) -> float | None:
        """The cost of everything with a price, or None if nothing has a price."""
        return float(self.cost) if self.priced_calls else None

    @property
    def listed_usd(self) -> float | None:
        """The total list price of the calls with a reported cost.

        None if no call has a reported cost, or if the list price of one of these calls is unknown.
        """
        is_known = self.listed_calls == self.reported_calls > 0
        return float(self.listed) if is_known else None


Tallies = dict[tuple[str | None, ...], Tally]
"""The tally of each group, keyed by the values of the grouping keys."""


def row(tally: Tally, keys: dict[CostKey, str | None]) -> CostRow:
    buckets, note = tally.buckets, estimate_note(tally.estimated, tally.estimated_prompt)
    return CostRow(
        **keys,
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
        agent_cost_usd=float(tally.agent) if tally.agent else None,
        unpriced=tally.unpriced,
        partial=tally.is_partial,
        note=note,
        text=_row_text(tally, keys, note),
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


def _row_text(tally: Tally, keys: dict[CostKey, str | None], note: str) -> str:
    return _row_line(printable(" ".join(value or "(none)" for value in keys.values())), tally, note)


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
) -> CostReport:
    """Return a report with a table, charts and a plain text version of both."""
    return add_charts(lambda keys: report(connection, prices, scope, keys), ordered_keys(by))


def add_charts(report_by: Callable[[list[CostKey]], CostReport], keys: list[CostKey]) -> CostReport:
    """Create a report grouped by `keys`, and add a table, charts and a plain text version."""
    found = report_by(keys)
    charts = []
    for key, title in _CHARTS if found.rows else ():
        rows = report_by([key]).rows
        charts.append(CostChart(by=key, title=title, bars=_cost_bars(key, rows)))
    made = msgspec.structs.replace(found, table=_cost_table(found, keys), charts=charts)
    return msgspec.structs.replace(made, overview=_render_text(made))


def _cost_bars(key: CostKey, rows: list[CostRow]) -> list[CostBar]:
    costs = {_row_name(row, key): row.cost_usd for row in rows}
    if key == "day":
        days = every_day(set(costs), _MOST_DAYS) if costs else []
        costs = {day: costs.get(day, 0.0) for day in days}
    elif len(costs) > _MOST_BARS:
        names = list(costs)  # sorted by cost, highest first
        rest = [costs.pop(name) or 0.0 for name in names[_MOST_BARS - 1 :]]
        costs[f"{len(rest)} others"] = sum(rest)
    most = max((cost or 0.0 for cost in costs.values()), default=0.0) or 1.0
    return [
        CostBar(
            label=name,
            share=(cost or 0.0) / most,
            text="unpriced" if cost is None else usd_text(cost),
        )
        for name, cost in costs.items()
    ]


def _cost_table(found: CostReport, keys: list[CostKey]) -> CostTable:
    rows = [[*(_row_name(row, key) for key in keys), *_number_cells(row)] for row in found.rows]
    totals = found.totals
    numbers = (
        totals.calls, totals.prompt_tokens, totals.cache_read_tokens, totals.output_tokens,
        totals.cache_write_tokens,
    )  # fmt: skip
    is_priced = any(row.cost_usd is not None for row in found.rows)
    cost = cost_text(
        totals.cost_usd if is_priced else None, is_partial=any(row.partial for row in found.rows)
    )
    total = ["Total", *[""] * (len(keys) - 1), *(f"{number:,}" for number in numbers), cost]
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
    return printable(getattr(row, key) or "(none)")


def _number_cells(row: CostRow) -> list[str]:
    numbers = (
        row.calls, row.prompt_tokens, row.cache_read_tokens, row.completion_tokens,
        row.cache_write_tokens,
    )  # fmt: skip
    calls, prompt, *rest = (f"{number:,}" for number in numbers)
    cost = cost_text(row.cost_usd, is_partial=row.partial)
    return [calls, f"{prompt} {row.note}" if row.note else prompt, *rest, cost]


def _render_text(found: CostReport) -> str:
    table, parts = found.table, []
    if table is None or not found.rows:
        return ""
    rows = [table.heads, *table.rows, *([table.total] if table.total else [])]
    parts.append(align_columns([[*row, ""] for row in rows], left=table.names))
    for chart in found.charts:
        bars = [(one.label, one.text, draw_bar(one.share, _BAR_CELLS)) for one in chart.bars]
        parts.append([chart.title, *align_columns(bars)])
    if found.basis:
        parts.append([found.basis])
    return "\n\n".join("\n".join(lines) for lines in parts)
