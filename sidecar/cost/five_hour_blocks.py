"""The five-hour blocks of subscriptions: when they begin, and which calls are in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from sidecar.cost.days import END_MS, TimeRange
from sidecar.cost.ledger import DAY_MS
from sidecar.cost.sums import Scope, calls_condition, read_tallies

_HOUR_MS = 3_600_000
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
