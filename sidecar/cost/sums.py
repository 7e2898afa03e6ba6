"""Selects calls, and adds them up by day, by key and by the five-hour blocks of subscriptions.

Whole days are read from the stored daily sums. The rest of a time range is computed from
individual calls.
"""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from sidecar.cost.days import DAY_MS, END_MS, LAST_DAY, TimeRange
from sidecar.cost.ledger import (
    BUCKETS,
    SUMS,
    Ledger,
    read_calls,
    usd,
)
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.known_agents import lower_bound_agents

_HOUR_MS = 3_600_000
_EARLIEST_MS, _LATEST_MS = 14 * _HOUR_MS, 12 * _HOUR_MS
"""How long before or after midnight UTC a local day can start, in milliseconds."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Selects calls by time range, workspace, session, agent and branch. None means all."""

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
    branch: str | None = None
    """A git branch, or an empty string for calls whose branch is unknown."""

    @property
    def all_folders(self) -> tuple[str, ...]:
        """The URIs of the workspace and the additional folders."""
        return () if self.workspace is None else (self.workspace, *self.folders)


class Tally(msgspec.Struct, frozen=True):
    """The sums of a group of calls. Tallies are combined with `+`. Amounts are in USD."""

    calls: int = 0
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
    agent_cost: Decimal = Decimal(0)
    """The cost that agents computed from their price lists."""
    listed: Decimal = Decimal(0)
    """The total list price of the calls with both a reported cost and a list price."""
    unpriced_tokens: int = 0
    priced_calls: int = 0
    """The number of calls that are at least partly priced."""
    partly_priced_calls: int = 0
    derived_calls: int = 0
    """The number of calls in a service tier with a price derived from the standard price."""
    reported_calls: int = 0
    """The number of calls with a reported cost."""
    listed_calls: int = 0
    omitting_calls: int = 0
    """The number of calls of agents whose files omit other calls."""

    @classmethod
    def of_row(cls, numbers: Sequence[int]) -> Tally:
        """Return the tally with the values of the columns `SUMS` and `omitting_calls`."""
        sums: dict[str, Any] = dict(zip((*SUMS, "omitting_calls"), numbers, strict=True))
        buckets = Buckets.of([sums.pop(name) for name in BUCKETS])
        amounts: dict[str, Any] = {name: usd(sums.pop(name)) for name in _AMOUNTS}
        return cls(**sums, **amounts, buckets=buckets)

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
    def total(self) -> Cost:
        """The cost of all calls."""
        has_price = self.priced_calls > 0 or not self.calls
        usd = self.cost if has_price else None
        return Cost(usd, self.unpriced_tokens, whole=not self.unpriced)

    @property
    def cost_usd(self) -> float | None:
        """The cost of everything with a price, or None if nothing has a price."""
        return float(self.cost) if self.priced_calls or self.cost else None

    @property
    def listed_usd(self) -> float | None:
        """The total list price of the calls with a reported cost.

        None if no call has a reported cost, or if the list price of one of these calls is unknown.
        """
        is_known = self.listed_calls == self.reported_calls > 0
        return float(self.listed) if is_known else None


_AMOUNTS = ("cost", "reported", "agent_cost", "listed")
Tallies = dict[tuple[Any, ...], Tally]
"""The tally of each group, keyed by the values of the grouping keys."""

_KEY_SQL = {
    "kind": "part.kind",
    "day": "part.day",
    "session": "owner.name",
    "agent": "owner.agent",
    "workspace": "owner.workspace",
    "branch": "owner.branch",
    "loss": "part.loss",
}


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


def read_tallies(connection: sqlite3.Connection, scope: Scope, keys: Sequence[str]) -> Tallies:
    """Return the tallies of the calls in scope, highest cost first.

    Args:
        connection: The ledger.
        scope: The calls to add up.
        keys: What to group by: `kind`, `day`, `session`, `agent`, `workspace`, `branch` or `loss`.
            With `loss`, only what the calls that lost their cache sent again is added up, by
            the number of a `LossCause`.
    """
    names = ", ".join(_KEY_SQL[key] for key in keys)
    sums = ", ".join(f"sum({name})" for name in SUMS)
    partial = ", ".join(f"'{agent}'" for agent in sorted(lower_bound_agents()))
    owner, owners = owner_condition(scope, "session")
    if "loss" in keys:
        columns, parts = ("loss", *SUMS), [_Part("loss_sums", *time_condition(scope.times))]
    else:
        columns, parts = SUMS, [*_parts_of_range(connection, scope.times)]
    calls = " UNION ALL ".join(
        f"SELECT session, kind, day, {', '.join(columns)} FROM {part.source} "  # noqa: S608
        f"WHERE {part.where}{owner}"
        for part in parts
    )
    rows = connection.execute(
        f"SELECT {names}, {sums}, sum(iif(agent IN ({partial}), calls, 0)) "  # noqa: S608
        f"FROM ({calls}) AS part JOIN session AS owner ON owner.id = part.session "
        f"GROUP BY {names} HAVING sum(calls) > 0 ORDER BY sum(cost) DESC, {names}",
        [value for part in parts for value in (*part.values, *owners)],
    )
    count = len(keys)
    return {row[:count]: Tally.of_row(row[count:]) for row in rows}


def read_total(connection: sqlite3.Connection, scope: Scope) -> Tally:
    """Return the tally of all calls in scope."""
    return sum(read_tallies(connection, scope, ("agent",)).values(), Tally())


def read_events(ledger: Ledger, scope: Scope) -> Iterator[LedgerEvent]:
    """Yield the calls in scope, oldest first."""
    where, values = calls_condition(scope)
    with ledger.reader() as connection:
        for _, event in read_calls(connection, f"{where} ORDER BY at, event.id", values):
            yield event


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


def calls_condition(scope: Scope) -> tuple[str, tuple[object, ...]]:
    """Return an SQL condition for the calls in scope, and the condition's parameters."""
    times, moments = time_condition(scope.times)
    owner, names = owner_condition(scope, "event.session")
    return f"{times}{owner}", (*moments, *names)


def owner_condition(scope: Scope, column: str) -> tuple[str, tuple[object, ...]]:
    """Return an SQL condition for the sessions in scope, and the condition's parameters."""
    wanted = {"name": scope.session, "agent": scope.agent, "branch": scope.branch}
    given = {f"{name} = ?": value for name, value in wanted.items() if value is not None}
    terms: list[str] = list(given)
    values: list[object] = list(given.values())
    if scope.sessions is not None:
        terms.append(f"name IN ({', '.join('?' * len(scope.sessions))})")
        values += scope.sessions
    if scope.workspace is not None:
        places = dict.fromkeys(scope.all_folders)
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


_BLOCK_MS = 5 * _HOUR_MS
_SEARCHED_MS = 3 * 24 * _HOUR_MS
"""How far back to look for the start of the first block."""


class FiveHourBlock(NamedTuple):
    """A five-hour block. `begin_ms` and `end_ms` are in milliseconds since 1970."""

    begin_ms: int
    end_ms: int

    @property
    def name(self) -> str:
        """The local start time of the block, such as `2026-11-25 14:00`."""
        return f"{datetime.fromtimestamp(self.begin_ms / 1000).astimezone():%Y-%m-%d %H:%M}"

    def within(self, times: TimeRange) -> TimeRange:
        """Return the part of a time range that lies within the block."""
        begin, end = max(times.start_ms, self.begin_ms), min(times.end_ms, self.end_ms)
        return times._replace(start_ms=begin, end_ms=end)


def blocks_with_calls(
    connection: sqlite3.Connection, agent: str, times: TimeRange, ends_at: datetime | None = None
) -> list[FiveHourBlock]:
    """Return an agent's five-hour blocks that overlap a time range and have calls, oldest first.

    A block starts at the top of the hour in which its first call was made. The first call after its
    end starts a new block. Calls in all workspaces start blocks, because a subscription's limit
    covers all of them.

    Args:
        connection: A connection to the ledger.
        agent: The agent.
        times: The time range. Blocks may start earlier.
        ends_at: When a block ends, as last reported by the agent. It starts five hours before that.
    """
    since = max(0, times.start_ms, times.first_day * DAY_MS) - _SEARCHED_MS
    since = max(0, since - since % _HOUR_MS)
    if ends_at is None:
        blocks = _blocks_between(connection, agent, since, END_MS)
    else:
        end = int(ends_at.timestamp() * 1000)
        reported = FiveHourBlock(end - _BLOCK_MS, end)
        blocks = _blocks_between(connection, agent, since, reported.begin_ms)
        blocks += [reported] if _hours_with_calls(connection, agent, *reported) else []
        blocks += _blocks_between(connection, agent, max(since, end), END_MS)
    return [block for block in blocks if block.end_ms > times.start_ms]


def _blocks_between(
    connection: sqlite3.Connection, agent: str, start_ms: int, end_ms: int
) -> list[FiveHourBlock]:
    blocks: list[FiveHourBlock] = []
    for hour_ms in _hours_with_calls(connection, agent, start_ms, end_ms):
        begin = max(hour_ms, start_ms)
        if not blocks or begin >= blocks[-1].end_ms:
            blocks.append(FiveHourBlock(begin, min(begin + _BLOCK_MS, end_ms)))
    return blocks


def _hours_with_calls(
    connection: sqlite3.Connection, agent: str, start_ms: int, end_ms: int
) -> list[int]:
    """Return the start of each hour with calls, in milliseconds since 1970."""
    times = TimeRange(start_ms=start_ms, end_ms=end_ms)
    where, values = calls_condition(Scope(agent=agent, times=times))
    rows = connection.execute(
        f"SELECT DISTINCT at / {_HOUR_MS} FROM event WHERE {where} ORDER BY 1",  # noqa: S608
        values,
    )
    return [hour * _HOUR_MS for (hour,) in rows]


def current_block(
    connection: sqlite3.Connection,
    agent: str,
    ends_at: datetime | None = None,
    now: datetime | None = None,
) -> FiveHourBlock | None:
    """Return an agent's current five-hour block, or None if it has no calls.

    Args:
        connection: A connection to the ledger.
        agent: The agent.
        ends_at: See `blocks_with_calls`.
        now: The current time.
    """
    at = int((now or datetime.now(UTC)).timestamp() * 1000)
    blocks = blocks_with_calls(connection, agent, TimeRange(start_ms=at), ends_at)
    return next((block for block in blocks if block.begin_ms <= at), None)


def first_call_ms(connection: sqlite3.Connection, scope: Scope) -> int | None:
    """Return the time of the first call in scope, in milliseconds since 1970, if there is one."""
    where, values = calls_condition(scope)
    row = connection.execute(f"SELECT min(at) FROM event WHERE {where}", values)  # noqa: S608
    first: int | None = row.fetchone()[0]
    return first


def scope_of_block(scope: Scope, agent: str, block: FiveHourBlock) -> Scope:
    """Return a scope restricted to an agent's calls in a block."""
    return msgspec.structs.replace(scope, agent=agent, times=block.within(scope.times))


def scopes_by_block(
    connection: sqlite3.Connection, scope: Scope, ends_at: Mapping[str, datetime]
) -> Iterator[tuple[str, Scope]]:
    """Yield the name of each agent's blocks, with a scope that selects the calls in the block.

    Args:
        connection: A connection to the ledger.
        scope: The calls to select.
        ends_at: For some agents, when a block ends (see `blocks_with_calls`).
    """
    for (agent,) in read_tallies(connection, scope, ["agent"]):
        for block in blocks_with_calls(connection, agent, scope.times, ends_at.get(agent)):
            yield block.name, scope_of_block(scope, agent, block)
