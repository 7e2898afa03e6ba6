"""`cost/detail`: rows by any keys, priced as they are read, so that better prices mend history."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from sidecar.cost.bands import REPORTED, THRESHOLDS, typical_prompt
from sidecar.cost.days import SLOTS_A_DAY, day_name
from sidecar.cost.ledger import usd
from sidecar.cost.migrations import QUARTER_MS
from sidecar.cost.rows import (
    DEFAULT_KEYS,
    KEYS,
    CostReport,
    CostRow,
    Key,
    Tally,
    row,
    total_text,
    totals,
)
from sidecar.cost.sums import Cut, Scope, Sum, kinds_in, read_sums

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence
    from datetime import tzinfo

    from sidecar.cost.ledger import Ledger
    from sidecar.cost.prices import Prices
    from sidecar.cost.tariffs import Tariff, UnitPrices

    Cancelled = Callable[[], bool]
    Progress = Callable[[str, float], None]
    """What is being done, and the share that is done (0 to 1)."""

_OWNER_KEYS = frozenset({"session", "agent", "workspace"})


class Priced(msgspec.Struct, frozen=True):
    """Some calls, what they are known by, and their cost in USD (None: unpriced)."""

    kind: tuple[str, str, str, str]
    """Provider, model, category, tier."""
    sum: Sum
    cost: Decimal | None


def report(
    ledger: Ledger,
    prices: Prices,
    scope: Scope | None = None,
    by: Sequence[Key] = DEFAULT_KEYS,
    *,
    zone: tzinfo | None = None,
    cancelled: Cancelled | None = None,
    progress: Progress | None = None,
) -> CostReport:
    """Rows and totals of the events in scope, grouped by the keys; days are of `zone`.

    Raises ValueError for a key that there is not, ReadCancelledError, LedgerError.
    """
    keys = ordered_keys(by)
    tell = progress or (lambda _what, _share: None)
    with ledger.reader(cancelled) as connection:
        tell("reading prices", 0.0)
        sessions = _sessions(connection) if _OWNER_KEYS.intersection(keys) else {}
        tallies: dict[tuple[str | None, ...], Tally] = {}
        everything = Tally()
        found = priced_sums(
            connection, prices, scope or Scope(), sessions=bool(sessions), days="day" in keys,
            zone=zone,
        )  # fmt: skip
        for priced in found:
            values = tuple(_value(key, priced, sessions) for key in keys)
            for tally in (tallies.setdefault(values, Tally()), everything):
                _add(tally, priced)
        tell("adding up", 0.9)
    rows = [row(tally, dict(zip(keys, values, strict=True))) for values, tally in tallies.items()]
    rows.sort(key=_order)
    lines = [line.text for line in rows]
    if len(rows) > 1:
        lines.append(total_text(everything))
    return CostReport(rows=rows, totals=totals(everything), text="\n".join(lines))


def ordered_keys(by: Sequence[str]) -> list[Key]:
    """The keys as rows show them: model and category first, then as asked, each once.

    Raises ValueError, naming the keys that there are.
    """
    wanted = [key for key in KEYS if key in by]
    if not wanted or set(by) - set(KEYS):
        raise ValueError(f"by takes {', '.join(KEYS)}")
    return sorted(wanted, key=lambda key: (key not in DEFAULT_KEYS, _place(key, by)))


def _place(key: Key, by: Sequence[str]) -> int:
    return DEFAULT_KEYS.index(key) if key in DEFAULT_KEYS else by.index(key)


def priced_sums(
    connection: sqlite3.Connection,
    prices: Prices,
    scope: Scope,
    *,
    sessions: bool = False,
    days: bool = False,
    zone: tzinfo | None = None,
) -> Iterator[Priced]:
    """Everything in scope with its cost, told apart by kind, and by session and day if asked."""
    kinds = kinds_in(connection)
    tariffs = {number: prices.tariff(kind[1], kind[0]) for number, kind in kinds.items()}
    cut = _cut(tariffs, sessions=sessions, days=days, zone=zone)
    unit_prices: dict[tuple[int, int, int, int], UnitPrices | None] = {}
    for found in read_sums(connection, scope, cut):
        if found.band == REPORTED:
            yield Priced(kinds[found.kind], found, usd(found.reported))
            continue
        key = (found.kind, found.band, found.epoch, found.clock)
        if key not in unit_prices:
            tariff, tier = tariffs[found.kind], kinds[found.kind][3]
            unit_prices[key] = _unit_prices(tariff, tier, found, cut)
        unit = unit_prices[key]
        cost = None if unit is None else unit.cost(found.buckets, found.calls)
        yield Priced(kinds[found.kind], found, cost)


def _cut(
    tariffs: dict[int, Tariff | None], *, sessions: bool, days: bool, zone: tzinfo | None
) -> Cut:
    known = {kind: tariff for kind, tariff in tariffs.items() if tariff is not None}
    grid = frozenset(THRESHOLDS)
    return Cut(
        changes=tuple(sorted({day for tariff in known.values() for day in tariff.changes})),
        by_clock=frozenset(kind for kind, tariff in known.items() if tariff.by_clock),
        by_prompt=frozenset(kind for kind, tariff in known.items() if tariff.thresholds - grid),
        sessions=sessions,
        days=days,
        zone=zone,
    )


def _unit_prices(tariff: Tariff | None, tier: str, found: Sum, cut: Cut) -> UnitPrices | None:
    if tariff is None:
        return None
    # Any moment of the epoch will do: no price changes in it.
    day = cut.changes[found.epoch - 1] if found.epoch else min(cut.changes, default=1) - 1
    slot = day * SLOTS_A_DAY + found.clock
    at = datetime.fromtimestamp(slot * QUARTER_MS // 1000, UTC)
    return tariff.prices(at, tier, typical_prompt(found.band))


def _sessions(connection: sqlite3.Connection) -> dict[int, tuple[str, str, str]]:
    """Every session: id -> (workspace, name, agent). Never empty, so that it can be asked."""
    rows = connection.execute("SELECT id, workspace, name, agent FROM session")
    return {row[0]: row[1:] for row in rows} or {0: ("", "", "")}


def _value(key: Key, priced: Priced, sessions: dict[int, tuple[str, str, str]]) -> str | None:
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
    tally.reported += usd(found.reported)


def _order(line: CostRow) -> tuple[str, float, str]:
    """Days first to last; within them, or without them, the dearest first."""
    day = line.day if isinstance(line.day, str) else ""
    return day, -(line.cost_usd or 0.0), line.text
