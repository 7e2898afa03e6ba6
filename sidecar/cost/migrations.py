"""The ledger's schema, as an ordered list of small steps and a table of those applied.

Rollups are kept by triggers: whatever adds or removes an event changes both of them in the same
transaction, so that sums and events cannot drift apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

QUARTER_MS = 900_000
DAY_MS = 86_400_000

BUCKETS = (
    "input",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write",
    "output",
    "reasoning",
    "web_searches",
)
"""Columns of an event that are summed as they are: the fields of `Buckets`, in their order."""

SUMS = (*("calls", *BUCKETS), "estimated_calls", "estimated", "estimated_prompt", "reported")
"""Columns of a rollup. `estimated_prompt`: the prompts of the calls that carry an estimate.
`reported`: what vendors said that calls cost, in USD * 10**12."""

_PROMPT = "{0}input + {0}cache_read + {0}cache_write_5m + {0}cache_write_1h + {0}cache_write"


class NewerLedgerError(Exception):
    """The ledger holds migrations that this version does not know."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date; several processes may do so at once.

    Raises NewerLedgerError where a later version of token-sidecar made the ledger.
    """
    if _pending(connection) == ():
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in _pending(connection):
            step(connection)
            connection.execute(
                "INSERT INTO migration (name, applied_at) VALUES (?, ?)",
                (step.__name__, int(time.time())),
            )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _pending(connection: sqlite3.Connection) -> tuple[Step, ...]:
    has_table = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'"
    ).fetchone()
    if not has_table:
        return MIGRATIONS
    applied = {name for (name,) in connection.execute("SELECT name FROM migration")}
    if applied - {step.__name__ for step in MIGRATIONS}:
        raise NewerLedgerError("a newer version of token-sidecar made this ledger: update this one")
    return tuple(step for step in MIGRATIONS if step.__name__ not in applied)


def m001_names(connection: sqlite3.Connection) -> None:
    """What repeats from call to call, once each: sessions, and kinds of call."""
    connection.execute("CREATE TABLE migration (name TEXT PRIMARY KEY, applied_at INTEGER)")
    connection.execute(
        "CREATE TABLE session (id INTEGER PRIMARY KEY, workspace TEXT NOT NULL, "
        "name TEXT NOT NULL, agent TEXT NOT NULL, UNIQUE (name, workspace, agent))"
    )
    connection.execute("CREATE TABLE provider (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
    connection.execute(
        "CREATE TABLE kind (id INTEGER PRIMARY KEY, provider INTEGER NOT NULL, "
        "model TEXT NOT NULL, category TEXT NOT NULL, tier TEXT NOT NULL, "
        "UNIQUE (model, category, provider, tier))"
    )


def m002_events(connection: sqlite3.Connection) -> None:
    """An event for each call. `at` is in ms since 1970; `reported` in USD * 10**12.

    There is no index on the time: a quarter-hour's rollup knows between which ids its events are.
    """
    columns = ", ".join(f"{name} INTEGER NOT NULL" for name in BUCKETS)
    connection.execute(
        "CREATE TABLE event (id INTEGER PRIMARY KEY, request TEXT, provider INTEGER NOT NULL, "
        "at INTEGER NOT NULL, session INTEGER NOT NULL, kind INTEGER NOT NULL, "
        f"band INTEGER NOT NULL, {columns}, estimated INTEGER, reported INTEGER)"
    )
    connection.execute(
        "CREATE UNIQUE INDEX event_request ON event (request, provider) WHERE request IS NOT NULL"
    )
    connection.execute(
        f"CREATE VIEW event_sums AS SELECT id, at, at / {QUARTER_MS} AS slot, "  # noqa: S608
        f"at / {DAY_MS} AS day, session, kind, band, {_PROMPT.format('')} AS prompt, "
        f"1 AS calls, {', '.join(BUCKETS)}, "
        "estimated IS NOT NULL AS estimated_calls, coalesce(estimated, 0) AS estimated, "
        f"iif(estimated IS NULL, 0, {_PROMPT.format('')}) AS estimated_prompt, "
        "coalesce(reported, 0) AS reported FROM event"
    )


def m003_rollups(connection: sqlite3.Connection) -> None:
    """Sums by UTC quarter-hour (days of any time zone, prices by the clock) and by UTC day."""
    sums = ", ".join(f"{name} INTEGER NOT NULL" for name in SUMS)
    for table, unit, extra in (
        ("quarter", "slot", ", first_event INTEGER NOT NULL, last_event INTEGER NOT NULL"),
        ("daily", "day", ""),
    ):
        connection.execute(
            f"CREATE TABLE {table} ({unit} INTEGER NOT NULL, session INTEGER NOT NULL, "
            f"kind INTEGER NOT NULL, band INTEGER NOT NULL, {sums}{extra}, "
            f"PRIMARY KEY ({unit}, session, kind, band)) WITHOUT ROWID"
        )
    _create_triggers(connection)


def _create_triggers(connection: sqlite3.Connection) -> None:
    for event, row, sign in (("INSERT", "NEW", "+"), ("DELETE", "OLD", "-")):
        quarter = _rollup("quarter", "slot", QUARTER_MS, row, sign)
        daily = _rollup("daily", "day", DAY_MS, row, sign)
        connection.execute(
            f"CREATE TRIGGER event_{event.lower()} AFTER {event} ON event "
            f"BEGIN {quarter}; {daily}; END"
        )


def _rollup(table: str, unit: str, milliseconds: int, row: str, sign: str) -> str:
    """The statement that adds an event to a rollup, or takes it away again."""
    r = f"{row}."
    values = [
        "1",
        *(r + name for name in BUCKETS),
        f"{r}estimated IS NOT NULL",
        f"coalesce({r}estimated, 0)",
        f"iif({r}estimated IS NULL, 0, {_PROMPT.format(r)})",
        f"coalesce({r}reported, 0)",
    ]
    columns = [*SUMS]
    changes = [f"{name} = {name} {sign} excluded.{name}" for name in SUMS]
    if table == "quarter":
        columns += ["first_event", "last_event"]
        values += [f"{r}id", f"{r}id"]
        changes += [
            "first_event = min(first_event, excluded.first_event)",
            "last_event = max(last_event, excluded.last_event)",
        ]
    return (
        f"INSERT INTO {table} ({unit}, session, kind, band, {', '.join(columns)}) "  # noqa: S608
        f"VALUES ({r}at / {milliseconds}, {r}session, {r}kind, {r}band, {', '.join(values)}) "
        f"ON CONFLICT DO UPDATE SET {', '.join(changes)}"
    )


Step = Callable[["sqlite3.Connection"], None]
MIGRATIONS: tuple[Step, ...] = (m001_names, m002_events, m003_rollups)
