"""`cost/detail`: rows by any keys, priced as they are read, so that better prices mend history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from sidecar.cost.bands import REPORTED, THRESHOLDS, typical_prompt
from sidecar.cost.days import day_name
from sidecar.cost.events import PROTOCOL
from sidecar.cost.ledger import usd
from sidecar.cost.prices import Cost, Prices, cost_of
from sidecar.cost.rows import (
    DEFAULT_KEYS,
    KEYS,
    CostKey,
    CostReport,
    CostRow,
    Tally,
    row,
    total_text,
    totals,
)
from sidecar.cost.schema import QUARTER_MS
from sidecar.cost.sums import SLOTS_A_DAY, Cut, Scope, Sum, kinds_in, owner_condition, read_sums
from sidecar.errors import BadParamsError
from sidecar.text.printable import printable

if TYPE_CHECKING:
    import sqlite3

    from sidecar.models.tariffs import Tariff, UnitPrices

CREDIT_AGENTS = frozenset({"copilot-chat", "copilot-cli"})
"""Billed by credits: their tokens are never multiplied by a vendor's price."""
PARTLY_TOLD_AGENTS = frozenset({"amp", "claude-code", "gemini-cli", "kilo-code", "opencode", "pi"})
"""Agents some of whose calls are in no file, such as those that make titles or summaries."""
_OWNER_KEYS = frozenset({"session", "agent", "workspace"})


class Priced(msgspec.Struct, frozen=True):
    """Some calls, what they are known by, and what they cost."""

    kind: tuple[str, str, str, str]
    """Provider, model, category, tier."""
    sum: Sum
    cost: Cost
    listed: Decimal | None = None
    """Of calls whose cost was reported: USD by the price list, where it has one price for all."""


def report(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    by: Sequence[CostKey],
) -> CostReport:
    """Rows and totals of the events in scope, grouped by the keys.

    Raises BadParamsError for a key that there is not.
    """
    keys = ordered_keys(by)
    sessions = _sessions(connection) if _OWNER_KEYS.intersection(keys) else {}
    tallies: dict[tuple[str | None, ...], Tally] = {}
    everything = Tally()
    found = priced_sums(connection, prices, scope, sessions=bool(sessions), days="day" in keys)
    for priced in found:
        values = tuple(_value(key, priced, sessions) for key in keys)
        for tally in (tallies.setdefault(values, Tally()), everything):
            _add(tally, priced)
    basis = _basis(connection, scope)
    rows = [row(tally, dict(zip(keys, values, strict=True))) for values, tally in tallies.items()]
    rows.sort(key=_order)
    lines = [line.text for line in rows]
    if len(rows) > 1:
        lines.append(total_text(everything))
    return CostReport(rows=rows, totals=totals(everything), basis=basis, text="\n".join(lines))


def ordered_keys(by: Sequence[str]) -> list[CostKey]:
    """The keys as rows show them: model and category first, then as asked, each once.

    Raises BadParamsError, naming the keys that there are.
    """
    wanted = [key for key in KEYS if key in by]
    if not wanted or set(by) - set(KEYS):
        raise BadParamsError(f"by takes {', '.join(KEYS)}")
    return sorted(wanted, key=lambda key: (key not in DEFAULT_KEYS, _place(key, by)))


def _place(key: CostKey, by: Sequence[str]) -> int:
    return DEFAULT_KEYS.index(key) if key in DEFAULT_KEYS else by.index(key)


def priced_sums(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    *,
    sessions: bool = False,
    days: bool = False,
) -> Iterator[Priced]:
    """Everything in scope with its cost, grouped by kind, and by session and day if asked."""
    kinds = kinds_in(connection)
    tariffs = {number: prices.tariff(kind[1], kind[0]) for number, kind in kinds.items()}
    cut = _cut(tariffs, sessions=sessions, days=days)
    unit_prices: dict[tuple[int, int, int, int], UnitPrices | None] = {}
    for found in read_sums(connection, scope, cut):
        if found.band == REPORTED:
            listed = _listed(tariffs[found.kind], kinds[found.kind][3], found, cut)
            yield Priced(kinds[found.kind], found, Cost(usd(found.reported)), listed)
            continue
        key = (found.kind, found.band, found.epoch, found.clock)
        if key not in unit_prices:
            tariff, tier = tariffs[found.kind], kinds[found.kind][3]
            unit_prices[key] = _unit_prices(tariff, tier, found, cut)
        cost = cost_of(unit_prices[key], found.buckets, found.calls)
        if cost.usd is None and found.reported:  # the agents' own figure
            cost = Cost(usd(found.reported))
        yield Priced(kinds[found.kind], found, cost)


def _listed(tariff: Tariff | None, tier: str, found: Sum, cut: Cut) -> Decimal | None:
    """What reported calls cost by the list; None where a price depends on each prompt's size."""
    if tariff is None or tariff.thresholds:
        return None
    base = msgspec.structs.replace(found, band=0)
    cost = cost_of(_unit_prices(tariff, tier, base, cut), found.buckets, found.calls)
    return cost.usd if cost.whole else None


def _cut(tariffs: dict[int, Tariff | None], *, sessions: bool, days: bool) -> Cut:
    known = {kind: tariff for kind, tariff in tariffs.items() if tariff is not None}
    grid = frozenset(THRESHOLDS)
    return Cut(
        changes=tuple(sorted({day for tariff in known.values() for day in tariff.changes})),
        by_clock=frozenset(kind for kind, tariff in known.items() if tariff.by_clock),
        by_prompt=frozenset(kind for kind, tariff in known.items() if tariff.thresholds - grid),
        sessions=sessions,
        days=days,
    )


def _unit_prices(tariff: Tariff | None, tier: str, found: Sum, cut: Cut) -> UnitPrices | None:
    if tariff is None:
        return None
    # Any moment of the epoch will do: no price changes in it.
    day = cut.changes[found.epoch - 1] if found.epoch else min(cut.changes, default=1) - 1
    slot = day * SLOTS_A_DAY + found.clock
    at = datetime.fromtimestamp(slot * QUARTER_MS // 1000, UTC)
    return tariff.prices(at, tier, typical_prompt(found.band))


def _basis(connection: sqlite3.Connection, scope: Scope) -> str:
    """What the costs of agents' calls are by, a sentence each kind; "" without any."""
    owner, values = owner_condition(scope, "id")
    rows = connection.execute(
        f"SELECT DISTINCT agent FROM session WHERE agent <> ? {owner} ORDER BY 1",  # noqa: S608
        (PROTOCOL, *values),
    )
    agents = [str(agent) for (agent,) in rows]
    credits = [agent for agent in agents if agent in CREDIT_AGENTS]
    others = [agent for agent in agents if agent not in CREDIT_AGENTS]
    notes = []
    if others:
        notes.append(
            f"{', '.join(others)}: at API prices; what a subscription bills is in no file."
        )
    if partly := [agent for agent in agents if agent in PARTLY_TOLD_AGENTS]:
        notes.append(f"{', '.join(partly)}: at least this much; some calls are in no file.")
    if credits:
        notes.append(f"{', '.join(credits)}: AI credits as reported, 0.01 USD each.")
    return printable(" ".join(notes))


def _sessions(connection: sqlite3.Connection) -> dict[int, tuple[str, str, str]]:
    """Every session: id -> (workspace, name, agent). Never empty, so that it can be asked."""
    rows = connection.execute("SELECT id, workspace, name, agent FROM session")
    return {row[0]: row[1:] for row in rows} or {0: ("", "", "")}


def _value(key: CostKey, priced: Priced, sessions: dict[int, tuple[str, str, str]]) -> str | None:
    if key == "model":
        return priced.kind[1]
    if key == "category":
        return priced.kind[2]
    if key == "day":
        return day_name(priced.sum.day)
    workspace, name, agent = sessions[priced.sum.session]
    return {"workspace": workspace, "session": name, "agent": agent}[key] or None


def _add(tally: Tally, priced: Priced) -> None:
    found = priced.sum
    tally.add(found.calls, found.buckets, priced.cost)
    tally.add_estimates(found.estimated_calls, found.estimated, found.estimated_prompt)
    said = usd(found.reported)
    if found.band == REPORTED:
        tally.reported += said
        tally.compare(priced.listed)
    else:
        tally.agent += said


def _order(line: CostRow) -> tuple[str, float, str]:
    """Days first to last; within them, or without them, the dearest first."""
    day = line.day if isinstance(line.day, str) else ""
    return day, -(line.cost_usd or 0.0), line.text
