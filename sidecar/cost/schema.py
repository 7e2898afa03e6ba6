"""The ledger's schema: every call once, and sums of them by day.

Triggers keep the sums: whatever adds or changes a call changes them in the same transaction, so
that the two cannot disagree. Calls are never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sidecar.cost.storage import LedgerError, roll_back

if TYPE_CHECKING:
    import sqlite3

VERSION = 1
"""`PRAGMA user_version` of a ledger with this schema."""
QUARTER_MS = 900_000
DAY_MS = 86_400_000
FOLD_EVERY = 4096
"""Sums by day are brought up to date with each call whose id is a multiple of this."""

BUCKETS = (
    "input",
    "cache_read",
    "cache_write_5m",
    "cache_write_1h",
    "cache_write",
    "output",
    "reasoning",
    "web_searches",
    "file_searches",
    "audio_input",
    "audio_cache_read",
    "audio_output",
    "image_input",
    "image_cache_read",
    "image_output",
    "video_input",
    "other_tools",
)
"""Columns of a call that are summed as they are: the fields of `Buckets`, in their order."""
SUMS = ("calls", *BUCKETS, "estimated_calls", "estimated", "estimated_prompt", "reported")
"""Columns of sums. `estimated_prompt`: the prompts of the calls that carry an estimate.
`reported`: what calls cost by their vendors' reports, in USD * 10**12."""
PROMPT_SQL = "input + cache_read + cache_write_5m + cache_write_1h + cache_write"

_LAST_MIGRATIONS = frozenset(
    (
        "m001_names",
        "m002_events",
        "m003_quarters",
        "m004_days",
        "m005_media",
        "m006_sources",
        "m007_tools",
    )
)
"""What the ledgers of the last development version had applied: these are imported."""


class ForeignLedgerError(LedgerError):
    """The file is a database of another form, which cannot be imported."""


def prepare(connection: sqlite3.Connection, local_day: Callable[[int], int]) -> None:
    """Create the tables in a new ledger; import one of the last development version.

    Several processes may do so at once. `local_day`: the local day (since 1970) of a time in
    milliseconds. Raises ForeignLedgerError; LedgerError where a later version
    of token-sidecar made the ledger.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version != VERSION:
            statements = _creation() if _is_empty(connection) else _import(connection, version)
            connection.create_function("local_day", 1, local_day, deterministic=True)
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _is_empty(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def _creation() -> Iterator[str]:
    # What repeats from call to call is stored once: sessions, providers, and kinds of call.
    yield (
        "CREATE TABLE session (id INTEGER PRIMARY KEY, workspace TEXT NOT NULL, "
        "name TEXT NOT NULL, agent TEXT NOT NULL, UNIQUE (name, workspace, agent))"
    )
    yield "CREATE TABLE provider (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
    yield (
        "CREATE TABLE kind (id INTEGER PRIMARY KEY, provider INTEGER NOT NULL, "
        "model TEXT NOT NULL, category TEXT NOT NULL, tier TEXT NOT NULL, "
        "UNIQUE (model, category, provider, tier))"
    )
    # `at` is in ms since 1970, `day` the local day where and when it was recorded, `reported` in
    # USD * 10**12. `key` stands for provider and request id: an index of numbers is a third of one
    # of texts.
    yield (
        "CREATE TABLE event (id INTEGER PRIMARY KEY, key INTEGER, request TEXT, "
        "at INTEGER NOT NULL, day INTEGER NOT NULL, session INTEGER NOT NULL, "
        "kind INTEGER NOT NULL, band INTEGER NOT NULL, "
        f"{', '.join(f'{name} INTEGER NOT NULL' for name in BUCKETS)}, "
        "estimated INTEGER, reported INTEGER)"
    )
    yield "CREATE UNIQUE INDEX event_key ON event (key) WHERE key IS NOT NULL"
    yield from _sums()


def _import(connection: sqlite3.Connection, version: int) -> list[str]:
    """What makes a ledger of the last development version one of this schema."""
    if version > VERSION:
        raise LedgerError("a newer version of token-sidecar made the ledger: update this one")
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    applied = set[str]()
    if ("migration",) in connection.execute(tables).fetchall():
        applied = {name for (name,) in connection.execute("SELECT name FROM migration")}
    if applied != _LAST_MIGRATIONS:
        raise ForeignLedgerError("it is no ledger of this version or the one before")
    triggers = ("event_added", "event_changed", "event_fold", "event_changed_day")
    return [
        *(f"DROP TRIGGER {name}" for name in triggers),
        "DROP VIEW event_sums",
        *(f"DROP TABLE {name}" for name in ("quarter", "daily", "folded", "source", "migration")),
        "ALTER TABLE event ADD COLUMN day INTEGER NOT NULL DEFAULT 0",
        "UPDATE event SET day = local_day(at)",
        *_sums(),
        _fold("(SELECT max(id) FROM event)"),
        "UPDATE folded SET upto = (SELECT coalesce(max(id), 0) FROM event)",
    ]


def _sums() -> Iterator[str]:
    """Sums by local day, of the calls up to `folded.upto`; readers add the few calls after it.

    A write of its own for each call would cost as much as the call does. `utc` is the UTC day, as
    prices change at midnight UTC.
    """
    yield "CREATE INDEX event_at ON event (at)"
    yield (
        f"CREATE VIEW event_sums AS SELECT id, at, at / {QUARTER_MS} AS slot, day, "  # noqa: S608
        f"at / {DAY_MS} AS utc, session, kind, band, {PROMPT_SQL} AS prompt, "
        f"1 AS calls, {', '.join(BUCKETS)}, "
        "estimated IS NOT NULL AS estimated_calls, coalesce(estimated, 0) AS estimated, "
        f"iif(estimated IS NULL, 0, {PROMPT_SQL}) AS estimated_prompt, "
        "coalesce(reported, 0) AS reported FROM event"
    )
    yield (
        f"CREATE TABLE daily ({', '.join(f'{name} INTEGER NOT NULL' for name in _KEYS)}, "
        f"{', '.join(f'{name} INTEGER NOT NULL' for name in SUMS)}, "
        f"PRIMARY KEY ({', '.join(_KEYS)})) WITHOUT ROWID"
    )
    yield "CREATE TABLE folded (upto INTEGER NOT NULL)"
    yield "INSERT INTO folded (upto) VALUES (0)"
    yield (
        f"CREATE TRIGGER event_fold AFTER INSERT ON event WHEN NEW.id % {FOLD_EVERY} = 0 "  # noqa: S608
        f"BEGIN {_fold('NEW.id')}; UPDATE folded SET upto = NEW.id; END"
    )
    # A changed call is taken out of its sums before, and added to those of after.
    for name, when, sign in (("before", "BEFORE", "-"), ("after", "AFTER", "+")):
        changes = ", ".join(f"{column} = {column} {sign} excluded.{column}" for column in SUMS)
        yield (
            f"CREATE TRIGGER event_changed_{name} {when} UPDATE ON event "  # noqa: S608
            "WHEN OLD.id <= (SELECT upto FROM folded) "
            f"BEGIN INSERT INTO daily ({_COLUMNS}) SELECT {_COLUMNS} FROM event_sums "
            f"WHERE id = OLD.id ON CONFLICT DO UPDATE SET {changes}; END"
        )


_KEYS = ("day", "utc", "session", "kind", "band")
_COLUMNS = ", ".join((*_KEYS, *SUMS))


def _fold(upto: str) -> str:
    """SQL: add the calls up to an id to the sums by day."""
    keys = ", ".join(_KEYS)
    sums = ", ".join(f"sum({name})" for name in SUMS)
    changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)
    return (
        f"INSERT INTO daily ({_COLUMNS}) SELECT {keys}, {sums} FROM event_sums "  # noqa: S608
        f"WHERE id > (SELECT upto FROM folded) AND id <= {upto} GROUP BY {keys} "
        f"ON CONFLICT DO UPDATE SET {changes}"
    )
