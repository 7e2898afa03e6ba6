"""Reads sums of recorded calls. The same prices apply to all calls in a sum.

Whole days are read from the stored daily sums. The rest of a time range is computed from
individual calls.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from sidecar.cost.days import END_MS, LAST_DAY, TimeRange
from sidecar.cost.events import Buckets
from sidecar.cost.ledger import BUCKETS, DAY_MS, QUARTER_MS, SUMS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping

_HOUR_MS = 3_600_000
_EARLIEST_MS, _LATEST_MS = 14 * _HOUR_MS, 12 * _HOUR_MS
"""How long before or after midnight UTC a local day can start, in milliseconds."""
SLOTS_A_DAY = DAY_MS // QUARTER_MS


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Selects calls by time range, workspace, session and agent. None means all."""

    times: TimeRange = TimeRange()
    workspace: str | None = None
    """The workspace's URI. Calls in subfolders are included."""
    folders: tuple[str, ...] = ()
    """URIs of additional folders, such as other git worktrees."""
    without: tuple[str, ...] = ()
    """URIs of nested workspaces to exclude."""
    session: str | None = None
    sessions: tuple[str, ...] | None = None
    """If set, only sessions with these names are included."""
    agent: str | None = None


Owner = Literal["session", "agent", "workspace"]


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """Selects how calls are grouped. Calls of different kinds are never grouped together."""

    changes: tuple[int, ...] = ()
    """The UTC days on which prices change. Calls before and after a change are summed separately.
    """
    by_clock: frozenset[int] = frozenset()
    """Call kinds whose prices depend on the time of day."""
    by_prompt: frozenset[int] = frozenset()
    """The call kinds with a price threshold that is missing from `THRESHOLDS`."""
    by_band: frozenset[int] = frozenset()
    """The call kinds whose price thresholds are all in `THRESHOLDS`. Kinds without thresholds have
    a single band.
    """
    owner: Owner | None = None
    """If set, calls are also grouped by session, by agent or by workspace."""
    days: bool = False


class Sum(msgspec.Struct, frozen=True):
    """A sum of calls to which the same prices apply."""

    kind: int
    band: int
    epoch: int
    """The number of price changes before the calls were made."""
    clock: int
    """The quarter-hour of the UTC day, or 0 if the price does not depend on the time of day."""
    owner: int | str
    """The session's id, the agent or the workspace, depending on `Grouping.owner`, or 0 if that is
    None.
    """
    day: int
    """The local day, counted from 1970-01-01, or 0 if the sums are not grouped by day."""
    calls: int
    buckets: Buckets
    estimated_calls: int
    estimated: int
    estimated_prompt: int
    reported: int
    """The reported cost in USD, multiplied by 10**12."""

    @property
    def price_key(self) -> PriceKey:
        return self.kind, self.band, self.epoch, self.clock


class _Part(NamedTuple):
    source: str
    where: str
    values: tuple[int, ...]


def kinds_in(connection: sqlite3.Connection) -> dict[int, tuple[str, str, str, str]]:
    """Return the provider, model, category and tier of each call kind, keyed by kind id."""
    rows = connection.execute(
        "SELECT kind.id, provider.name, model, category, tier "
        "FROM kind JOIN provider ON provider.id = kind.provider"
    )
    return {row[0]: tuple(row[1:]) for row in rows}


def read_sums(connection: sqlite3.Connection, scope: Scope, grouping: Grouping) -> Iterator[Sum]:
    """Yield one sum for each group of calls in scope."""
    added: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    rows = (
        row
        for query in _queries(connection, scope, grouping)
        for row in connection.execute(_sums_sql(query), query.values)
    )
    for row in rows:
        key, values = row[:_KEYS], row[_KEYS:]
        known = added.get(key)
        added[key] = values if known is None else tuple(map(add, known, values))
    for key, (calls, *sums) in added.items():
        if calls:
            buckets = Buckets.of(sums[: len(BUCKETS)])
            yield Sum(*(*key, calls, buckets, *sums[len(BUCKETS) :]))


_KEYS = Sum.__struct_fields__.index("calls")
"""The number of key columns at the start of a row."""
_PRICE_KEYS = Sum.__struct_fields__.index("owner")
"""The number of key columns that determine the price."""


def _sums_sql(query: _Query) -> str:
    # Do not group by constant columns, because SQLite would also sort by them.
    kept = [str(number) for number, key in enumerate(query.keys, 1) if not key.isdigit()]
    sums = ", ".join(f"sum({name})" for name in SUMS)
    return f"SELECT {', '.join(query.keys)}, {sums} {query.rows} GROUP BY {', '.join(kept)}"


PriceKey = tuple[int, int, int, int]
"""The kind, band, epoch and clock of a `Sum`, which determine the price."""


def price_keys(connection: sqlite3.Connection, scope: Scope, grouping: Grouping) -> set[PriceKey]:
    """Return the distinct price keys of the calls in scope."""
    return {
        row
        for query in _queries(connection, scope, grouping)
        for row in connection.execute(
            f"SELECT DISTINCT {', '.join(query.keys[:_PRICE_KEYS])} {query.rows}", query.values
        )
    }


def agents_in_scope(connection: sqlite3.Connection, scope: Scope) -> list[str]:
    """Return the agents with calls in scope, in alphabetical order."""
    queries = _queries(connection, scope, Grouping())
    if not queries:
        return []
    sessions = " UNION ".join(f"SELECT session {query.rows}" for query in queries)
    rows = connection.execute(
        f"SELECT DISTINCT agent FROM session WHERE id IN ({sessions}) ORDER BY 1",  # noqa: S608
        [value for query in queries for value in query.values],
    )
    return [agent for (agent,) in rows]


def rank_sessions(
    connection: sqlite3.Connection,
    scope: Scope,
    grouping: Grouping,
    prices: Mapping[PriceKey, Mapping[str, float]],
    most: int,
) -> list[tuple[str, str, int]]:
    """Return the costliest sessions, highest cost first.

    Each row contains a session's name, its agent, and the total number of sessions.

    SQLite adds up approximate costs, because pricing each session exactly takes much longer.

    Args:
        connection: The ledger.
        scope: The calls to compare.
        grouping: The keys that separate calls with different prices.
        prices: For each price key, the price in USD of one unit of each of `SUMS`.
        most: The maximum number of sessions, or -1 for all sessions.
    """
    queries = _queries(connection, scope, grouping)
    if not queries:
        return []
    parts = " UNION ALL ".join(
        f"SELECT session, {_cost_sql(query, prices)} AS cost {query.rows}" for query in queries
    )
    return connection.execute(
        "SELECT name, agent, count(*) OVER () FROM session JOIN "  # noqa: S608
        f"(SELECT session, total(cost) AS cost FROM ({parts}) GROUP BY session) ON session = id "
        "GROUP BY name, agent ORDER BY total(cost) DESC, name, agent LIMIT ?",
        (*(value for query in queries for value in query.values), most),
    ).fetchall()


def _cost_sql(query: _Query, prices: Mapping[PriceKey, Mapping[str, float]]) -> str:
    """Return an SQL expression for a row's cost."""
    kind, *others = query.keys[:_PRICE_KEYS]
    by_kind: dict[int, list[str]] = {}
    for key, units in prices.items():
        same = " AND ".join(
            f"{name} = {value}" for name, value in zip(others, key[1:], strict=True)
        )
        cost = " + ".join(f"{name} * {price!r}" for name, price in units.items() if price)
        by_kind.setdefault(key[0], []).append(f"WHEN {same} THEN {cost or 0}")
    cases = (f"WHEN {number} THEN CASE {' '.join(each)} END" for number, each in by_kind.items())
    return f"CASE {kind} {' '.join(cases)} ELSE 0 END"


class _Query(NamedTuple):
    """An SQL query for some of the calls in scope."""

    keys: tuple[str, ...]
    """SQL expressions for the keys of a `Sum`."""
    rows: str
    """The FROM and WHERE clauses."""
    values: tuple[object, ...]


def _queries(connection: sqlite3.Connection, scope: Scope, grouping: Grouping) -> list[_Query]:
    """Return queries that together select all calls in scope.

    Two queries may return sums with the same key. The caller must add up such sums.
    """
    # Two subqueries are needed, because SQLite uses the index only for a query with a single min or
    # max.
    first, last = connection.execute(
        "SELECT (SELECT min(at) FROM event), (SELECT max(at) FROM event)"
    ).fetchone()
    if first is None:
        return []
    changes = tuple(day for day in grouping.changes if first // DAY_MS < day <= last // DAY_MS)
    past = sum(day <= first // DAY_MS for day in grouping.changes)
    epoch = " + ".join([str(past), *(f"(utc >= {day:d})" for day in changes)])
    one_by_one = grouping.by_clock | grouping.by_prompt
    others = _kind_condition("NOT IN", one_by_one)
    queries = [
        _query_of_part(part, scope, grouping, epoch, others)
        for part in _parts_of_range(connection, scope.times)
    ]
    part = _Part("event_sums", *time_condition(scope.times))
    clock = grouping.by_clock - grouping.by_prompt
    for kinds, exact in ((clock, False), (grouping.by_prompt, True)):
        if kinds:
            only = _kind_condition("IN", kinds)
            queries.append(
                _query_of_part(part, scope, grouping, epoch, only, clocked=True, exact=exact)
            )
    return queries


def _parts_of_range(connection: sqlite3.Connection, times: TimeRange) -> Iterator[_Part]:
    """Split a time range into whole days, which have stored sums, and the remaining hours."""
    first, last = _whole_days(times)
    if first > last:
        yield _Part("event_sums", *time_condition(times))
        return
    days = "day BETWEEN ? AND ?"
    yield _Part("daily", days, (first, last))
    (upto,) = connection.execute("SELECT upto FROM folded").fetchone()
    yield _Part("event_sums", f"id > ? AND {days}", (upto, first, last))
    if times.start_ms > 0:
        before = times._replace(end_ms=first * DAY_MS + _LATEST_MS)
        where, values = time_condition(before)
        yield _Part("event_sums", f"{where} AND day < ?", (*values, first))
    if times.end_ms < END_MS:
        after = times._replace(start_ms=(last + 1) * DAY_MS - _EARLIEST_MS)
        where, values = time_condition(after)
        yield _Part("event_sums", f"{where} AND day > ?", (*values, last))


def _whole_days(times: TimeRange) -> tuple[int, int]:
    first, last, start, end = times
    if start > 0:
        first = max(first, -(-(start + _EARLIEST_MS) // DAY_MS))
    if end < END_MS:
        last = min(last, (end - _LATEST_MS) // DAY_MS - 1)
    return first, last


def time_condition(times: TimeRange) -> tuple[str, tuple[int, ...]]:
    """Return an SQL condition for the calls in a time range, and the condition's parameters."""
    start, end = times.start_ms, times.end_ms
    # Also limit `at`, because it has an index and `day` has none. The limits include the local
    # days in all time zones.
    if times.first_day > 0:
        start = max(start, times.first_day * DAY_MS - _EARLIEST_MS)
    if times.last_day < LAST_DAY:
        end = min(end, (times.last_day + 1) * DAY_MS + _LATEST_MS)
    if (start, end) == (0, END_MS):
        return "1", ()
    days = times.first_day, times.last_day
    return "at >= ? AND at < ? AND day BETWEEN ? AND ?", (start, end, *days)


def _query_of_part(
    part: _Part,
    scope: Scope,
    grouping: Grouping,
    epoch: str,
    kinds: str,
    *,
    clocked: bool = False,
    exact: bool = False,
) -> _Query:
    band = f"iif({_kind_condition('IN', grouping.by_band)}, band, 0)"
    keys = (
        "kind",
        f"iif(band < 0, band, {'max(prompt - 1, 0)' if exact else band})",
        epoch,
        f"slot % {SLOTS_A_DAY}" if clocked else "0",
        _owner_key(grouping.owner, part.source),
        "day" if grouping.days else "0",
    )
    owner, names = owner_condition(scope, "session")
    rows = f"FROM {part.source} WHERE {part.where} AND {kinds}{owner}"
    return _Query(keys, rows, (*part.values, *names))


def _owner_key(owner: Owner | None, source: str) -> str:
    if owner in (None, "session"):
        return owner or "0"
    return f"(SELECT {owner} FROM session WHERE session.id = {source}.session)"  # noqa: S608


def calls_condition(scope: Scope) -> tuple[str, tuple[object, ...]]:
    """Return an SQL condition for the calls in scope, and the condition's parameters."""
    times, moments = time_condition(scope.times)
    owner, names = owner_condition(scope, "event.session")
    return f"{times}{owner}", (*moments, *names)


def owner_condition(scope: Scope, column: str) -> tuple[str, tuple[object, ...]]:
    """Return an SQL condition for the sessions in scope, and the condition's parameters."""
    wanted = {"name": scope.session, "agent": scope.agent}
    given = {f"{name} = ?": value for name, value in wanted.items() if value is not None}
    terms: list[str] = list(given)
    values: list[object] = list(given.values())
    if scope.sessions is not None:
        terms.append(f"name IN ({', '.join('?' * len(scope.sessions))})")
        values += scope.sessions
    if scope.workspace is not None:
        places = dict.fromkeys((scope.workspace, *scope.folders))
        terms.append(f"({' OR '.join(_IN_FOLDER for _ in places)})")
        terms += [f"NOT ({_IN_FOLDER})"] * len(scope.without)
        for place in (*places, *scope.without):
            below = place.rstrip("/") + "/"
            values += [place, len(below), below]
    if not terms:
        return "", ()
    sessions = f"SELECT id FROM session WHERE {' AND '.join(terms)}"  # noqa: S608
    return f" AND {column} IN ({sessions})", tuple(values)


_IN_FOLDER = "workspace = ? OR substr(workspace, 1, ?) = ?"


def _kind_condition(operator: str, kinds: Iterable[int]) -> str:
    numbers = ", ".join(str(int(kind)) for kind in sorted(kinds))
    return f"kind {operator} ({numbers})"
