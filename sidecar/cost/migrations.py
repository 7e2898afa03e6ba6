"""The ledger's schema, as an ordered list of small steps and a table of those applied.

Rollups are kept by triggers: whatever adds or changes an event changes them in the same
transaction, so that sums and events cannot drift apart. Events are never removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

QUARTER_MS = 900_000
DAY_MS = 86_400_000
FOLD_EVERY = 4096

_FIRST_BUCKETS = (
    "input",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write",
    "output",
    "reasoning",
    "web_searches",
)
_MEDIA_BUCKETS = (
    "file_searches",
    "audio_input",
    "audio_cache_read",
    "audio_output",
    "image_input",
    "image_cache_read",
    "image_output",
    "video_input",
)
_TOOL_BUCKETS = ("other_tools",)
BUCKETS = (*_FIRST_BUCKETS, *_MEDIA_BUCKETS, *_TOOL_BUCKETS)
"""Columns of an event that are summed as they are: the fields of `Buckets`, in their order."""

_Names = tuple[str, ...]


def _sums(buckets: _Names) -> _Names:
    return ("calls", *buckets, "estimated_calls", "estimated", "estimated_prompt", "reported")


_FIRST_SUMS = _sums(_FIRST_BUCKETS)
SUMS = _sums(BUCKETS)
"""Columns of a rollup. `estimated_prompt`: the prompts of the calls that carry an estimate.
`reported`: what calls cost by their vendors' reports, in USD * 10**12."""

_PROMPT = "{0}input + {0}cache_read + {0}cache_write_5m + {0}cache_write_1h + {0}cache_write"
PROMPT_SQL = _PROMPT.format("")


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
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction, if it is still open: SQLite ends it by itself when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


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

    `key` stands for provider and request id: an index of numbers is a third of one of texts.
    There is no index on the time: a quarter-hour's rollup knows between which ids its events are.
    """
    columns = ", ".join(f"{name} INTEGER NOT NULL" for name in _FIRST_BUCKETS)
    connection.execute(
        "CREATE TABLE event (id INTEGER PRIMARY KEY, key INTEGER, request TEXT, "
        "at INTEGER NOT NULL, session INTEGER NOT NULL, kind INTEGER NOT NULL, "
        f"band INTEGER NOT NULL, {columns}, estimated INTEGER, reported INTEGER)"
    )
    connection.execute("CREATE UNIQUE INDEX event_key ON event (key) WHERE key IS NOT NULL")
    _create_view(connection, _FIRST_BUCKETS)


def _create_view(connection: sqlite3.Connection, buckets: _Names) -> None:
    connection.execute(
        f"CREATE VIEW event_sums AS SELECT id, at, at / {QUARTER_MS} AS slot, "  # noqa: S608
        f"at / {DAY_MS} AS day, session, kind, band, {PROMPT_SQL} AS prompt, "
        f"1 AS calls, {', '.join(buckets)}, "
        "estimated IS NOT NULL AS estimated_calls, coalesce(estimated, 0) AS estimated, "
        f"iif(estimated IS NULL, 0, {PROMPT_SQL}) AS estimated_prompt, "
        "coalesce(reported, 0) AS reported FROM event"
    )


def m003_quarters(connection: sqlite3.Connection) -> None:
    """Sums by UTC quarter-hour: the grain of every time zone, and of prices by the clock."""
    sums = ", ".join(f"{name} INTEGER NOT NULL" for name in _FIRST_SUMS)
    connection.execute(
        "CREATE TABLE quarter (slot INTEGER NOT NULL, session INTEGER NOT NULL, "
        f"kind INTEGER NOT NULL, band INTEGER NOT NULL, {sums}, "
        "first_event INTEGER NOT NULL, last_event INTEGER NOT NULL, "
        "PRIMARY KEY (slot, session, kind, band)) WITHOUT ROWID"
    )
    _create_quarter_triggers(connection)


def _create_quarter_triggers(connection: sqlite3.Connection, later: _Names = ()) -> None:
    add, take = (
        f"{_to_quarter(row, sign)}; {_later_of('quarter', 'slot', QUARTER_MS, row, sign, later)}"
        for row, sign in (("NEW", "+"), ("OLD", "-"))
    )
    connection.execute(f"CREATE TRIGGER event_added AFTER INSERT ON event BEGIN {add} END")
    connection.execute(f"CREATE TRIGGER event_changed AFTER UPDATE ON event BEGIN {take} {add} END")


def m004_days(connection: sqlite3.Connection) -> None:
    """Sums by UTC day, of the events up to `folded.upto`: each 4096th write brings it up to date.

    Readers add the few events after it. A write of its own for each event would cost as much as
    the event does.
    """
    sums = ", ".join(f"{name} INTEGER NOT NULL" for name in _FIRST_SUMS)
    connection.execute(
        "CREATE TABLE daily (day INTEGER NOT NULL, session INTEGER NOT NULL, "
        f"kind INTEGER NOT NULL, band INTEGER NOT NULL, {sums}, "
        "PRIMARY KEY (day, session, kind, band)) WITHOUT ROWID"
    )
    connection.execute("CREATE TABLE folded (upto INTEGER NOT NULL)")
    connection.execute("INSERT INTO folded (upto) VALUES (0)")
    _create_day_triggers(connection)


def _create_day_triggers(connection: sqlite3.Connection, later: _Names = ()) -> None:
    keys, sums = "day, session, kind, band", _sums((*_FIRST_BUCKETS, *later))
    changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in sums)
    connection.execute(
        f"CREATE TRIGGER event_fold AFTER INSERT ON event WHEN NEW.id % {FOLD_EVERY} = 0 BEGIN "  # noqa: S608
        f"INSERT INTO daily ({keys}, {', '.join(sums)}) "
        f"SELECT {keys}, {', '.join(f'sum({name})' for name in sums)} FROM event_sums "
        f"WHERE id > (SELECT upto FROM folded) AND id <= NEW.id GROUP BY {keys} "
        f"ON CONFLICT DO UPDATE SET {changes}; UPDATE folded SET upto = NEW.id; END"
    )
    add, take = (
        f"{_to_day(row, sign)}; {_later_of('daily', 'day', DAY_MS, row, sign, later)}"
        for row, sign in (("NEW", "+"), ("OLD", "-"))
    )
    connection.execute(
        "CREATE TRIGGER event_changed_day AFTER UPDATE ON event "  # noqa: S608
        f"WHEN OLD.id <= (SELECT upto FROM folded) BEGIN {take} {add} END"
    )


def m005_media(connection: sqlite3.Connection) -> None:
    """What is not text, and searches in files: priced apart. Calls recorded before have none."""
    _add_buckets(connection, (), _MEDIA_BUCKETS)


def _add_buckets(connection: sqlite3.Connection, before: _Names, new: _Names) -> None:
    """Columns for `new`, beside those that an earlier step added."""
    for table in ("event", "quarter", "daily"):
        for name in new:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0")
    connection.execute("DROP VIEW event_sums")
    for trigger in ("event_added", "event_changed", "event_fold", "event_changed_day"):
        connection.execute(f"DROP TRIGGER {trigger}")
    later = (*before, *new)
    _create_view(connection, (*_FIRST_BUCKETS, *later))
    _create_quarter_triggers(connection, later)
    _create_day_triggers(connection, later)


def _to_quarter(row: str, sign: str) -> str:
    """The statement that adds an event to its quarter-hour, or takes it away again."""
    extra = {"first_event": "min", "last_event": "max"}
    changes = [f"{name} = {name} {sign} excluded.{name}" for name in _FIRST_SUMS]
    changes += [f"{name} = {pick}({name}, excluded.{name})" for name, pick in extra.items()]
    columns = ("slot", "session", "kind", "band", *_FIRST_SUMS, *extra)
    values = (*_values(row, QUARTER_MS), f"{row}.id", f"{row}.id")
    return _upsert("quarter", columns, values, changes)


def _to_day(row: str, sign: str) -> str:
    """The statement that adds an event to its day, or takes it away again."""
    changes = [f"{name} = {name} {sign} excluded.{name}" for name in _FIRST_SUMS]
    columns = ("day", "session", "kind", "band", *_FIRST_SUMS)
    return _upsert("daily", columns, _values(row, DAY_MS), changes)


def _later_of(table: str, unit: str, unit_ms: int, row: str, sign: str, later: _Names) -> str:
    """The statement for the later buckets, which few events fill: the others pay a comparison."""
    if not later:
        return ""
    changes = ", ".join(f"{name} = {name} {sign} {row}.{name}" for name in later)
    return (
        f"UPDATE {table} SET {changes} WHERE {' + '.join(f'{row}.{name}' for name in later)} > 0 "  # noqa: S608
        f"AND {unit} = {row}.at / {unit_ms} AND session = {row}.session AND kind = {row}.kind "
        f"AND band = {row}.band;"
    )


def _upsert(table: str, columns: _Names, values: _Names, changes: list[str]) -> str:
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)}) "  # noqa: S608
        f"ON CONFLICT DO UPDATE SET {', '.join(changes)}"
    )


def _values(row: str, unit_ms: int) -> _Names:
    """SQL for what one event adds to a rollup."""
    r = f"{row}."
    return (
        f"{r}at / {unit_ms}",
        f"{r}session",
        f"{r}kind",
        f"{r}band",
        "1",
        *(r + name for name in _FIRST_BUCKETS),
        f"{r}estimated IS NOT NULL",
        f"coalesce({r}estimated, 0)",
        f"iif({r}estimated IS NULL, 0, {_PROMPT.format(r)})",
        f"coalesce({r}reported, 0)",
    )


def m006_sources(connection: sqlite3.Connection) -> None:
    """How far each file was read that calls come from: `mark` is its reader's own."""
    connection.execute(
        "CREATE TABLE source (path TEXT PRIMARY KEY, mark BLOB NOT NULL, "
        "refused INTEGER NOT NULL) WITHOUT ROWID"
    )


def m007_tools(connection: sqlite3.Connection) -> None:
    """Uses of tools that no list prices. Calls recorded before have none."""
    _add_buckets(connection, _MEDIA_BUCKETS, _TOOL_BUCKETS)


Step = Callable[["sqlite3.Connection"], None]
MIGRATIONS: tuple[Step, ...] = (
    m001_names,
    m002_events,
    m003_quarters,
    m004_days,
    m005_media,
    m006_sources,
    m007_tools,
)
