"""Finds five-hour blocks. Subscriptions for coding agents limit the usage in each block."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.cost.days import TimeRange
from sidecar.cost.sums import Scope, calls_condition

if TYPE_CHECKING:
    import sqlite3

_HOUR_MS = 3_600_000
_HOURS = 5
_SEARCHED_MS = 3 * 24 * _HOUR_MS
"""How far back to look for the start of the first block."""


class Block(NamedTuple):
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


def blocks_with_calls(connection: sqlite3.Connection, scope: Scope) -> list[Block]:
    """Return the five-hour blocks that contain calls in scope, oldest first.

    A block starts at the top of the hour in which its first call was made. The first call after its
    end starts a new block. Calls in other workspaces also start blocks, because a subscription's
    limit covers all of them.
    """
    since = max(0, scope.times.start_ms - _SEARCHED_MS)
    every = Scope(agent=scope.agent, times=scope.times._replace(start_ms=since))
    where, values = calls_condition(every)
    hours = connection.execute(
        f"SELECT DISTINCT at / {_HOUR_MS} AS hour FROM event WHERE {where} ORDER BY hour",  # noqa: S608
        values,
    )
    blocks: list[Block] = []
    for (hour,) in hours:
        if not blocks or hour * _HOUR_MS >= blocks[-1].end_ms:
            blocks.append(Block(hour * _HOUR_MS, (hour + _HOURS) * _HOUR_MS))
    return [block for block in blocks if block.end_ms > scope.times.start_ms]


def current_block(
    connection: sqlite3.Connection,
    agent: str,
    ends_at: datetime | None = None,
    now: datetime | None = None,
) -> Block | None:
    """Return an agent's current five-hour block, or None if there is none.

    Args:
        connection: A connection to the ledger.
        agent: The agent.
        ends_at: When the block ends, if the agent reports it.
        now: The current time.
    """
    now = now or datetime.now(UTC)
    if ends_at is not None and now < ends_at <= now + timedelta(hours=_HOURS):
        end = int(ends_at.timestamp() * 1000)
        return Block(end - _HOURS * _HOUR_MS, end)
    scope = Scope(times=TimeRange(start_ms=int(now.timestamp() * 1000)), agent=agent)
    newest = next(reversed(blocks_with_calls(connection, scope)), None)
    is_current = newest is not None and now.timestamp() * 1000 < newest.end_ms
    return newest if is_current else None


def scope_of_block(scope: Scope, block: Block) -> Scope:
    """Return a scope restricted to the calls in a block."""
    return msgspec.structs.replace(scope, times=block.within(scope.times))
