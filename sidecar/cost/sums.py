"""Sums over the ledger's rollups, cut so finely that each can still be priced.

A range is read from as few rows as can be: whole UTC days from `daily`, whole quarter-hours from
`quarter`, and what is left at its two ends from the events themselves.
"""

from __future__ import annotations

from datetime import tzinfo
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.cost.days import END_MS, SLOTS_A_DAY, slot_offsets
from sidecar.cost.events import Buckets
from sidecar.cost.migrations import BUCKETS, DAY_MS, QUARTER_MS, SUMS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which events: a range of time (ms since 1970, half open), and whose. None: all."""

    start_ms: int = 0
    end_ms: int = END_MS
    workspace: str | None = None
    """Its key: calls made in folders below it are its own too."""
    folders: tuple[str, ...] = ()
    """Keys that the same workspace goes by besides: other working trees, links resolved."""
    session: str | None = None
    agent: str | None = None


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept apart besides kinds and bands."""

    changes: tuple[int, ...] = ()
    """UTC days on which some price begins: sums never run across one."""
    by_clock: frozenset[int] = frozenset()
    """Kinds whose price depends on the time of day."""
    by_prompt: frozenset[int] = frozenset()
    """Kinds with a price threshold that bands do not know: read call by call."""
    sessions: bool = False
    days: bool = False
    """Local days, in `zone` (None: this machine's)."""
    zone: tzinfo | None = None


class Sum(msgspec.Struct, frozen=True):
    """Calls that have one price in common."""

    kind: int
    band: int
    epoch: int
    """How many of `Cut.changes` had come."""
    clock: int
    """Quarter-hour of the UTC day, for kinds priced by the clock; else 0."""
    session: int
    """0 where sessions are not kept apart."""
    day: int
    """Local day since 1970; 0 where days are not kept apart."""
    calls: int
    buckets: Buckets
    estimated_calls: int
    estimated: int
    estimated_prompt: int
    reported: int
    """USD * 10**12 that vendors reported."""


class _Part(msgspec.Struct, frozen=True):
    """A piece of a range, and the table that it is read from."""

    source: str
    start: int
    end: int
    after: int | None = None
    """Only events with a greater id."""


def kinds_in(connection: sqlite3.Connection) -> dict[int, tuple[str, str, str, str]]:
    """Every kind of call: id -> (provider, model, category, tier)."""
    rows = connection.execute(
        "SELECT kind.id, provider.name, model, category, tier "
        "FROM kind JOIN provider ON provider.id = kind.provider"
    )
    return {row[0]: tuple(row[1:]) for row in rows}


def read_sums(connection: sqlite3.Connection, scope: Scope, cut: Cut) -> Iterator[Sum]:
    """Sums of the events in scope, one for each key: pricing one costs more than adding two."""
    added: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in _rows(connection, scope, cut):
        key, values = row[:_KEYS], row[_KEYS:]
        known = added.get(key)
        added[key] = values if known is None else tuple(map(add, known, values))
    for key, (calls, *sums) in added.items():
        if calls:
            buckets = Buckets(**dict(zip(BUCKETS, sums, strict=False)))
            yield Sum(*(*key, calls, buckets, *sums[len(BUCKETS) :]))


def _rows(connection: sqlite3.Connection, scope: Scope, cut: Cut) -> Iterator[tuple[Any, ...]]:
    """Keys and sums of each part of the range; one key may come more than once."""
    start, end = _bounded(connection, scope)
    if start >= end:
        return
    day = _local_day(start, end, cut) if cut.days else "0"
    usual = _not_in(cut.by_clock | cut.by_prompt)
    for part in _parts(start, end, whole_days=day in ("0", _UTC)):
        yield from _select(connection, part, scope, cut, usual, day)
        if part.source == "daily":
            late = _not_folded(connection, part)
            yield from _select(connection, late, scope, cut, usual, day)
    clocked = cut.by_clock - cut.by_prompt
    if clocked:
        for part in _parts(start, end, whole_days=False):
            yield from _select(connection, part, scope, cut, _in(clocked), day, clocked=True)
    if cut.by_prompt:
        everything = _Part("event_sums", start, end)
        yield from _select(
            connection, everything, scope, cut, _in(cut.by_prompt), day, clocked=True, exact=True
        )


def _bounded(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int]:
    """The scope's range without the emptiness before the first event and after the last."""
    # Two questions, because SQLite answers them by the index only when they come one by one.
    first, last = connection.execute(
        "SELECT (SELECT min(slot) FROM quarter), (SELECT max(slot) FROM quarter)"
    ).fetchone()
    if first is None:
        return 0, 0
    return (
        max(scope.start_ms, first // SLOTS_A_DAY * SLOTS_A_DAY * QUARTER_MS),
        min(scope.end_ms, (last // SLOTS_A_DAY + 1) * SLOTS_A_DAY * QUARTER_MS),
    )


def _parts(start: int, end: int, *, whole_days: bool) -> Iterator[_Part]:
    """Cut [start, end) ms into events, quarter-hours and days."""
    first, last = -(-start // QUARTER_MS), end // QUARTER_MS
    if first > last:
        yield _Part("event_sums", start, end)
        return
    yield from _filled(_Part("event_sums", start, first * QUARTER_MS))
    first_day, last_day = -(-first // SLOTS_A_DAY), last // SLOTS_A_DAY
    if whole_days and first_day < last_day:
        yield from _filled(_Part("quarter", first, first_day * SLOTS_A_DAY))
        yield _Part("daily", first_day, last_day)
        yield from _filled(_Part("quarter", last_day * SLOTS_A_DAY, last))
    else:
        yield from _filled(_Part("quarter", first, last))
    yield from _filled(_Part("event_sums", last * QUARTER_MS, end))


def _not_folded(connection: sqlite3.Connection, days: _Part) -> _Part:
    """The events of those days that `daily` does not hold yet: the newest few thousand at most."""
    (upto,) = connection.execute("SELECT upto FROM folded").fetchone()
    return _Part("event_sums", days.start * DAY_MS, days.end * DAY_MS, upto)


def _filled(part: _Part) -> Iterator[_Part]:
    if part.start < part.end:
        yield part


_UNITS = {"event_sums": "at", "quarter": "slot", "daily": "day"}
_UNIT_MS = {"event_sums": 1, "quarter": QUARTER_MS, "daily": DAY_MS}
_KEYS = Sum.__struct_fields__.index("calls")
"""What comes before the sums in a row."""
_UTC = "utc"
_UTC_DAYS = {"event_sums": "day", "quarter": f"slot / {SLOTS_A_DAY}", "daily": "day"}


def _select(
    connection: sqlite3.Connection,
    part: _Part,
    scope: Scope,
    cut: Cut,
    kinds: str,
    day: str,
    *,
    clocked: bool = False,
    exact: bool = False,
) -> sqlite3.Cursor:
    """One grouped query. All that is put into its text are names and numbers of ours."""
    keys = (
        "kind",
        "iif(band < 0, band, max(prompt - 1, 0))" if exact else "band",
        _epoch(part, cut),
        f"slot % {SLOTS_A_DAY}" if clocked else "0",
        "session" if cut.sessions else "0",
        _UTC_DAYS[part.source] if day == _UTC else day,
    )
    unit = _UNITS[part.source]
    # SQLite would sort by what is the same in every row, too.
    kept = [str(number) for number, key in enumerate(keys, 1) if not key.isdigit()]
    where, values = _conditions(connection, part, scope)
    return connection.execute(
        f"SELECT {', '.join(keys)}, {', '.join(f'sum({name})' for name in SUMS)} "  # noqa: S608
        f"FROM {part.source} WHERE {unit} >= ? AND {unit} < ? {where} {kinds} "
        f"GROUP BY {', '.join(kept)}",
        (part.start, part.end, *values),
    )


def _conditions(
    connection: sqlite3.Connection, part: _Part, scope: Scope
) -> tuple[str, tuple[object, ...]]:
    where, values = "", tuple[object, ...]()
    if part.after is not None:
        where, values = " AND id > ?", (part.after,)
    elif part.source == "event_sums":
        first, last = _events_between(connection, part)
        where, values = " AND id BETWEEN ? AND ?", (first, last)
    owner, names = owner_condition(scope, "session")
    return where + owner, (*values, *names)


def _events_between(connection: sqlite3.Connection, part: _Part) -> tuple[int, int]:
    """Between which ids the events of that time are: quarter-hours know it."""
    slots = (part.start // QUARTER_MS, -(-part.end // QUARTER_MS))
    first, last = connection.execute(
        "SELECT min(first_event), max(last_event) FROM quarter WHERE slot >= ? AND slot < ?", slots
    ).fetchone()
    return (1, 0) if first is None else (first, last)


def owner_condition(scope: Scope, column: str) -> tuple[str, tuple[object, ...]]:
    """SQL for workspace, session and agent, put to a column of session ids; and its values."""
    wanted = {"name": scope.session, "agent": scope.agent}
    given = {f"{name} = ?": value for name, value in wanted.items() if value is not None}
    terms: list[str] = list(given)
    values: list[object] = list(given.values())
    if scope.workspace is not None:
        places = dict.fromkeys((scope.workspace, *scope.folders))
        terms.append(f"({' OR '.join(_IN_FOLDER for _ in places)})")
        for place in places:
            below = place.rstrip("/") + "/"
            values += [place, len(below), below]
    if not terms:
        return "", ()
    sessions = f"SELECT id FROM session WHERE {' AND '.join(terms)}"  # noqa: S608
    return f" AND {column} IN ({sessions})", tuple(values)


_IN_FOLDER = "workspace = ? OR substr(workspace, 1, ?) = ?"


def _epoch(part: _Part, cut: Cut) -> str:
    """SQL: how many price changes had come. Those before the range are counted here."""
    unit, day = _UNIT_MS[part.source], _UTC_DAYS[part.source]
    first, last = part.start * unit // DAY_MS, (part.end * unit - 1) // DAY_MS
    past = sum(change <= first for change in cut.changes)
    ahead = (change for change in cut.changes if first < change <= last)
    return " + ".join([str(past), *(f"({day} >= {change:d})" for change in ahead)])


def _local_day(start: int, end: int, cut: Cut) -> str:
    """SQL: the local day of a slot, with the zone's changes of offset in this range.

    `_UTC` where local days are UTC's, which rollups of whole days can answer.
    """
    first, last = start // QUARTER_MS, end // QUARTER_MS
    (_slot, base), *later = slot_offsets(first, last, cut.zone)
    if base == 0 and not later:
        return _UTC
    terms, before = [f"slot + {base:d}"], base
    for slot, offset in later:
        terms.append(f"(slot >= {slot:d}) * {offset - before:d}")
        before = offset
    return f"({' + '.join(terms)}) / {SLOTS_A_DAY}"


def _in(kinds: Iterable[int]) -> str:
    return f"AND kind IN ({', '.join(str(int(kind)) for kind in sorted(kinds))})"


def _not_in(kinds: frozenset[int]) -> str:
    if not kinds:
        return ""
    return f"AND kind NOT IN ({', '.join(str(int(kind)) for kind in sorted(kinds))})"
