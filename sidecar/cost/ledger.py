"""The ledger: an SQLite database that stores every model call once.

Several processes can write to it at the same time. A recorded call survives if the process is
killed, because it has been committed to the write-ahead log. With `synchronous=NORMAL`, a power
failure can lose the last few calls but never damages the file.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from decimal import ROUND_HALF_EVEN, Decimal
from hashlib import blake2b
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from sidecar.config.paths import LEDGER_FILES
from sidecar.config.safe_files import create, locked, make_folder, set_aside
from sidecar.cost.cache_losses import CacheLoss, LossCause
from sidecar.cost.days import local_day, milliseconds
from sidecar.cost.ledger_events import (
    LOST_FROM,
    PROTOCOL,
    Buckets,
    Cost,
    LedgerEvent,
    check_names,
    checked_numbers,
)
from sidecar.cost.prices import Prices
from sidecar.errors import BadParamsError, SidecarError
from sidecar.operating_system import IS_WINDOWS, windows_path

BUSY_SECONDS = 30.0
"""Maximum time to wait for other processes, in seconds."""

# Cache sizes in KB, which SQLite expects as negative numbers. After a commit that adds a page,
# SQLite walks its whole cache. With a cache of 16 MB, this takes 60 us per recorded call.
_CACHE = -500
_BULK_CACHE = -64_000
_READ_CACHE = -2_000
"""Cache size for readers. With a smaller cache, SQLite uses a temporary file to sort a year's sums.
"""

# For each call, SQLite writes whole pages of three B-trees to its log. Small pages therefore double
# the speed.
_PRAGMAS = (
    "PRAGMA page_size = 1024",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA wal_autocheckpoint = 16000",
    f"PRAGMA cache_size = {_CACHE}",
)


class LedgerError(SidecarError):
    """The ledger cannot be read or written. The message explains what to do."""

    kind = "storage"
    retryable = True


class ReadCancelledError(LedgerError):
    """The caller cancelled a report while the ledger was being read."""


@contextmanager
def nested(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in the open transaction. If none is open, start one."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the transaction if it is still open.

    SQLite may have already rolled it back, for example because the disk was full.
    """
    if connection.in_transaction:
        connection.execute("ROLLBACK")


@contextmanager
def large_cache(connection: sqlite3.Connection) -> Iterator[None]:
    """Enlarge the cache during a long transaction, so that each page is written only once."""
    connection.execute(f"PRAGMA cache_size = {_BULK_CACHE}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA cache_size = {_CACHE}")


def create_folder(ledger: Path) -> None:
    """Create the ledger's folder.

    Raises:
        LedgerError: The folder cannot be created.
    """
    with translated(ledger):
        make_folder(ledger.parent)


def inode_of(path: Path) -> int | None:
    """Return a file's inode number, or None if the file does not exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that waits for other processes.

    Statements outside of `nested` are committed immediately.
    """
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection."""
    connection = connect(path)
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = {_READ_CACHE}")
    return connection


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch the database to write-ahead logging.

    Waits for other processes, because SQLite's timeout does not apply to this statement.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def translated(path: Path, cancelled: Callable[[], bool] | None = None) -> Iterator[None]:
    """Convert errors from SQLite and the file system to LedgerError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if cancelled is not None and cancelled():
            raise ReadCancelledError("the report was cancelled") from error
        raise explained(error, path) from error


def explained(error: Exception, path: Path) -> LedgerError:
    """Return an error that explains why the ledger cannot be used and what to do."""
    if isinstance(error, OSError):
        return LedgerError(f"the ledger {path} cannot be opened: {error.strerror}")
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(f"the ledger {path} cannot be used: {error}")
    return LedgerError(f"the ledger {path} is damaged ({error}); move it away to start a new one")


VERSION = 6
"""The `PRAGMA user_version` of ledgers with this schema."""
FOLD_EVERY = 4096
"""Number of calls that are added to the daily sums at a time."""

BUCKETS = Buckets.__struct_fields__
"""A call's token count columns."""
PRICED = ("cost", "listed", "unpriced", "whole", "basis", "lost_cost")
"""A call's columns for its `Cost`. Amounts are in USD * 10**12.

`unpriced` is the number of tokens without a price. `basis` is `none` if nothing has a price, and
NULL if the call has not been priced yet.
"""
PROMPT_SQL = "input + cache_read + cache_write_5m + cache_write_1h + cache_write"
_SUM_SQL = {
    "calls": "1",
    **{name: name for name in BUCKETS},
    "estimated_calls": "estimated IS NOT NULL",
    "estimated": "coalesce(estimated, 0)",
    "estimated_prompt": f"iif(estimated IS NULL, 0, {PROMPT_SQL})",
    "cost": "coalesce(cost, 0)",
    "reported": "coalesce(reported, 0)",
    "agent_cost": "coalesce(agent_cost, 0)",
    "listed": "coalesce(listed, 0)",
    "unpriced_tokens": "unpriced",
    "priced_calls": "cost IS NOT NULL",
    "partly_priced_calls": "cost IS NOT NULL AND NOT whole",
    "derived_calls": "basis IS 'derived'",
    "reported_calls": "reported IS NOT NULL",
    "listed_calls": "listed IS NOT NULL",
}
"""What a call adds to each column of the daily sums."""
SUMS = tuple(_SUM_SQL)
"""A daily sum's columns. `estimated_prompt` is the prompt tokens of the calls with an estimate."""


class ForeignLedgerError(LedgerError):
    """The file is a database with a different schema, which cannot be imported."""


def prepare(connection: sqlite3.Connection) -> None:
    """Create a new ledger's tables, or update those of version 3, 4 or 5.

    Several processes can call this at the same time.

    Raises:
        ForeignLedgerError: The file has a different schema.
        LedgerError: The ledger was created by a newer version of token-sidecar.
    """
    if version_of(connection) == VERSION:
        return
    with nested(connection):
        version = version_of(connection)
        if version == VERSION:
            return
        if version > VERSION:
            raise LedgerError("the ledger was created by a newer version; update token-sidecar")
        for statement in _statements_to_prepare(connection, version):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a ledger's schema, or 0 for a new database."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _statements_to_prepare(connection: sqlite3.Connection, version: int) -> Iterable[str]:
    if version == 3:
        migration = [*_migration_statements(connection), *_sum_statements()]
        return [*migration, *_BRANCH_STATEMENTS, *_loss_statements()]
    if version in (4, 5):
        columns = (f"ALTER TABLE event ADD COLUMN {column}" for column in _LOSS_COLUMNS)
        return [*(_BRANCH_STATEMENTS if version == 4 else ()), *columns, *_loss_statements()]
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return [*_creation_statements(), *_sum_statements(), *_loss_statements()]
    raise ForeignLedgerError("it was not created by this version or by version 0.1.0")


def _creation_statements() -> Iterator[str]:
    # Many calls have the same session, provider and kind, so each of these is stored only once.
    yield _SESSION_TABLE
    yield "CREATE TABLE provider (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)"
    yield (
        "CREATE TABLE kind (id INTEGER PRIMARY KEY, provider INTEGER NOT NULL, "
        "model TEXT NOT NULL, category TEXT NOT NULL, tier TEXT NOT NULL, "
        "UNIQUE (model, category, provider, tier))"
    )
    yield from _event_statements()
    yield from _ADDED_TABLES


_SESSION_TABLE = (
    # One row for each workspace and git branch in which the session made calls.
    "CREATE TABLE session (id INTEGER PRIMARY KEY, workspace TEXT NOT NULL, "
    "name TEXT NOT NULL, agent TEXT NOT NULL, branch TEXT NOT NULL DEFAULT '', "
    "UNIQUE (name, workspace, agent, branch))"
)
_BRANCH_STATEMENTS = (
    # Not renamed, because SQLite would then also change the name in triggers.
    "CREATE TEMPORARY TABLE old_session AS SELECT id, workspace, name, agent FROM session",
    "DROP TABLE session",
    _SESSION_TABLE,
    "INSERT INTO session SELECT id, workspace, name, agent, '' FROM old_session",
    "DROP TABLE old_session",
)
"""Add the branch to the sessions of older ledgers. Sessions in agents' files are read again."""


_LOSS_COLUMNS = ("loss INTEGER", "lost INTEGER NOT NULL DEFAULT 0", "lost_cost INTEGER")


def _event_statements() -> Iterator[str]:
    # `at` is in ms since 1970. `day` is the call's date in the time zone of the machine that
    # recorded it. `key` is a hash of the request id. Indexing hashes instead of ids makes the index
    # two thirds smaller.
    yield (
        "CREATE TABLE event (id INTEGER PRIMARY KEY, key INTEGER, request TEXT, "
        "at INTEGER NOT NULL, day INTEGER NOT NULL, session INTEGER NOT NULL, "
        f"kind INTEGER NOT NULL, {', '.join(f'{name} INTEGER NOT NULL' for name in BUCKETS)}, "
        "estimated INTEGER, reported INTEGER, telemetry TEXT, rank INTEGER, agent_cost INTEGER, "
        "cost INTEGER, listed INTEGER, unpriced INTEGER NOT NULL DEFAULT 0, "
        f"whole INTEGER NOT NULL DEFAULT 0, basis TEXT, {', '.join(_LOSS_COLUMNS)})"
    )
    yield "CREATE UNIQUE INDEX event_key ON event (key) WHERE key IS NOT NULL"
    yield "CREATE INDEX event_at ON event (at)"


_ADDED_TABLES = (
    # A call that forks have copied belongs to several sessions. `event` names its owner, and this
    # table names the others.
    "CREATE TABLE copy (event INTEGER NOT NULL, session INTEGER NOT NULL, "
    "PRIMARY KEY (event, session)) WITHOUT ROWID",
    # `sidecar.cost.repricing` explains these columns.
    "CREATE TABLE pricing (fingerprint TEXT NOT NULL, first INTEGER NOT NULL, "
    "last INTEGER NOT NULL)",
    "INSERT INTO pricing VALUES ('', 0, 0)",
    "CREATE INDEX event_unpriced ON event (id) WHERE basis IS NULL",
)


def _migration_statements(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the statements that add columns for prices to a ledger of version 3.

    Its column `reported` is the agent's own cost if `band` is not -1. All calls are priced later,
    by `sidecar.cost.repricing`.
    """
    shipping = "SELECT 1 FROM sqlite_master WHERE name = 'event_amended'"
    ships = connection.execute(shipping).fetchone() is not None
    for trigger in ("event_fold", "event_changed_before", "event_changed_after"):
        yield f"DROP TRIGGER {trigger}"
    yield "DROP VIEW event_sums"
    yield "DROP TABLE daily"
    yield "DROP TABLE folded"
    yield "DROP TRIGGER IF EXISTS event_amended"
    # Copy the calls, because SQLite before 3.35 cannot drop the column `band`.
    yield "ALTER TABLE event RENAME TO old_event"
    yield "DROP INDEX event_key"
    yield "DROP INDEX event_at"
    yield from _event_statements()
    kept = "id, key, request, at, day, session, kind, estimated, telemetry, " + ", ".join(BUCKETS)
    yield (
        f"INSERT INTO event ({kept}, reported, agent_cost) SELECT {kept}, "  # noqa: S608
        "iif(band = -1, reported, NULL), iif(band = -1, NULL, reported) FROM old_event"
    )
    yield "DROP TABLE old_event"
    if ships:
        yield AMENDED_TRIGGER
        yield from SENT_AS
    yield from _ADDED_TABLES
    # The latest calls are priced first.
    yield (
        "UPDATE pricing SET (first, last) = (SELECT max(id) + 1, max(id) FROM event) "
        "WHERE EXISTS (SELECT 1 FROM event)"
    )


AMEND = (
    "INSERT INTO amended SELECT {id}, {change} WHERE 1 "
    "ON CONFLICT (event) DO UPDATE SET change = excluded.change"
)
"""Queues a call to be shipped again (`sidecar.cost.shipping`)."""
NEXT_CHANGE = "1 + (SELECT coalesce(max(change), 0) FROM amended)"
_SHIPPED = ("at", "session", "kind", *BUCKETS, "cost", "unpriced", "whole", "basis")
# A call's first price is not a change, because calls are shipped only after they have been priced.
AMENDED_TRIGGER = (
    "CREATE TRIGGER IF NOT EXISTS event_amended AFTER UPDATE ON event WHEN OLD.basis IS NOT NULL "
    f"AND ({', '.join(f'OLD.{name}' for name in _SHIPPED)}) IS NOT "
    f"({', '.join(f'NEW.{name}' for name in _SHIPPED)}) "
    f"BEGIN {AMEND.format(id='NEW.id', change=NEXT_CHANGE)}; END"
)
SENT_AS = (
    # The columns from which a call's id was derived (`sidecar.cost.records`) when it was first
    # sent, if another session has become its owner since.
    "CREATE TABLE IF NOT EXISTS sent_as (event INTEGER PRIMARY KEY, sent_session TEXT NOT NULL, "
    "sent_agent TEXT NOT NULL, sent_at INTEGER NOT NULL, sent_telemetry TEXT)",
    "CREATE TRIGGER IF NOT EXISTS event_owner AFTER UPDATE ON event "
    "WHEN OLD.id <= (SELECT max(event) FROM shipment) AND (OLD.session, OLD.at, OLD.telemetry) "
    "IS NOT (NEW.session, NEW.at, NEW.telemetry) BEGIN INSERT OR IGNORE INTO sent_as "
    "SELECT OLD.id, name, agent, OLD.at, OLD.telemetry FROM session WHERE id = OLD.session; END",
)


def _sum_statements() -> Iterator[str]:
    """Yield the statements that create the daily sums and their triggers.

    The sums contain the calls up to `folded.upto`. Readers add the few later calls, because
    updating a sum with each call would double the recording time. Calls are never deleted.
    """
    yield (
        "CREATE VIEW event_sums AS SELECT id, at, day, session, kind, "  # noqa: S608
        f"{', '.join(f'{sql} AS {name}' for name, sql in _SUM_SQL.items())} FROM event"
    )
    yield (
        f"CREATE TABLE daily ({', '.join(f'{name} INTEGER NOT NULL' for name in _DAILY_KEYS)}, "
        f"{', '.join(f'{name} INTEGER NOT NULL' for name in SUMS)}, "
        f"PRIMARY KEY ({', '.join(_DAILY_KEYS)})) WITHOUT ROWID"
    )
    yield "CREATE TABLE folded (upto INTEGER NOT NULL)"
    yield "INSERT INTO folded (upto) VALUES (0)"
    upto = f"(SELECT coalesce(max(id), 0) / {FOLD_EVERY} * {FOLD_EVERY} FROM event)"  # noqa: S608
    yield _fold_statement(upto)
    yield f"UPDATE folded SET upto = {upto}"  # noqa: S608
    yield (
        f"CREATE TRIGGER event_fold AFTER INSERT ON event WHEN NEW.id % {FOLD_EVERY} = 0 "  # noqa: S608
        f"BEGIN {_fold_statement('NEW.id')}; UPDATE folded SET upto = NEW.id; END"
    )
    # Subtract a changed call's old values from the daily sums, and add its new values.
    for name, when, sign in (("before", "BEFORE", "-"), ("after", "AFTER", "+")):
        changes = ", ".join(f"{column} = {column} {sign} excluded.{column}" for column in SUMS)
        yield (
            f"CREATE TRIGGER event_changed_{name} {when} UPDATE ON event "  # noqa: S608
            "WHEN OLD.id <= (SELECT upto FROM folded) "
            f"BEGIN INSERT INTO daily ({_DAILY_COLUMNS}) SELECT {_DAILY_COLUMNS} FROM event_sums "
            f"WHERE id = OLD.id ON CONFLICT DO UPDATE SET {changes}; END"
        )


def _loss_statements() -> Iterator[str]:
    """Yield the statements that create the view of the calls that lost their cache.

    The view has the columns of `event_sums`, but only for the tokens that were lost and for what
    they cost more than a cache read. Such calls are few, so they need no daily sums.
    """
    sums, left = dict.fromkeys(SUMS, "0"), "lost"
    for name in LOST_FROM:
        sums[name], left = f"min({name}, {left})", f"max(0, {left} - {name})"
    sums |= {
        "calls": "1",
        "cost": "coalesce(lost_cost, 0)",
        "priced_calls": "lost_cost IS NOT NULL",
    }
    yield "CREATE INDEX event_loss ON event (loss) WHERE loss > 0"
    yield (
        "CREATE VIEW loss_sums AS SELECT id, at, day, session, kind, loss, "  # noqa: S608
        f"{', '.join(f'{sql} AS {name}' for name, sql in sums.items())} FROM event WHERE loss > 0"
    )


_DAILY_KEYS = ("day", "session", "kind")
_DAILY_COLUMNS = ", ".join((*_DAILY_KEYS, *SUMS))


def _fold_statement(upto: str) -> str:
    """Return the SQL statement that adds the calls up to an id to the daily sums."""
    keys = ", ".join(_DAILY_KEYS)
    sums = ", ".join(f"sum({name})" for name in SUMS)
    changes = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)
    return (
        f"INSERT INTO daily ({_DAILY_COLUMNS}) SELECT {keys}, {sums} FROM event_sums "  # noqa: S608
        f"WHERE id > (SELECT upto FROM folded) AND id <= {upto} GROUP BY {keys} "
        f"ON CONFLICT DO UPDATE SET {changes}"
    )


FILE_NAME = LEDGER_FILES[0]
_PICO = Decimal(10) ** 12

_EventRow = tuple[Any, ...]
_NUMBERS = (*BUCKETS, "reported", "agent_cost", *PRICED)
_LOSS = ("loss", "lost")
"""The cause of a lost cache, and the tokens that were lost. A cause of 0 stands for no loss, and
NULL for an unknown verdict.
"""
_EVENT_COLUMNS = (
    *("key", "request", "at", "day", "session", "kind", "estimated", "telemetry", "rank"),
    *_LOSS,
    *_NUMBERS,
)
_MARKS = ", ".join("?" * len(_EVENT_COLUMNS))
_INSERT = (
    f"INSERT INTO event ({', '.join(_EVENT_COLUMNS)}) VALUES ({_MARKS}) "  # noqa: S608
    "ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING"
)
_KEYS_AFTER = "SELECT key FROM event WHERE id > ?"
_OWNED_FIELDS = (
    *("at", "session", "workspace", "branch", "agent", "model", "provider", "category", "tier"),
    *("telemetry_id", "rank", "loss"),
)
"""The fields that a call has from the session that owns it."""
_KEY_MASK = 2**62 - 1

EVENT_COLUMNS = (
    "at, workspace, branch, session.name, agent, provider.name, model, category, tier, request, "
    f"telemetry, rank, estimated, {', '.join((*_LOSS, *_NUMBERS))}"
)
"""The columns to select from `EVENT_TABLES` for `event_of_row`."""
EVENT_TABLES = (
    "event JOIN session ON session.id = event.session JOIN kind ON kind.id = event.kind "
    "JOIN provider ON provider.id = kind.provider"
)


def event_of_row(row: tuple[Any, ...]) -> LedgerEvent:
    """Return the call in a row with the columns `EVENT_COLUMNS`."""
    at, workspace, branch, session, agent, provider, model, category, tier, request, *others = row
    telemetry, rank, estimated, loss, lost, *numbers = others
    buckets = numbers[: len(BUCKETS)]
    reported, agent_cost, cost, listed, unpriced, whole, basis, lost_cost = numbers[len(BUCKETS) :]
    priced = None
    if basis is not None:
        basis = None if basis == _NO_PRICE else basis
        amounts = _usd(listed), _usd(lost_cost)
        priced = Cost(_usd(cost), unpriced, bool(whole), basis, *amounts)
    return LedgerEvent(
        at=datetime.fromtimestamp(at / 1000, UTC),
        model=model,
        provider=provider,
        buckets=Buckets.of(buckets),
        category=category,
        tier=tier,
        workspace=workspace,
        branch=branch,
        session=session,
        agent=agent,
        request_id=request,
        telemetry_id=telemetry,
        estimated_tokens=estimated,
        reported_cost=_usd(reported),
        agent_cost=_usd(agent_cost),
        rank=rank,
        loss=None if loss is None else CacheLoss(lost, LossCause(loss) if loss else None),
        cost=priced,
    )


def read_calls(
    connection: sqlite3.Connection, which: str, values: Sequence[object] = ()
) -> Iterator[tuple[int, LedgerEvent]]:
    """Yield calls and their row ids.

    Args:
        connection: The ledger.
        which: The SQL condition, which an order and a limit may follow.
        values: The condition's parameters.
    """
    rows = connection.execute(
        f"SELECT event.id, {EVENT_COLUMNS} FROM {EVENT_TABLES} WHERE {which}",  # noqa: S608
        values,
    )
    return ((number, event_of_row(tuple(columns))) for number, *columns in rows)


_NO_PRICE = "none"


def price_columns(cost: Cost | None) -> tuple[Any, ...]:
    """Return the values of the columns `PRICED` for a cost, or for a call without a price yet."""
    if cost is None:
        return None, None, 0, False, None, None
    basis, lost = cost.basis or _NO_PRICE, _pico(cost.lost)
    return _pico(cost.usd), _pico(cost.listed), cost.unpriced_tokens, cost.whole, basis, lost


class Recorded(NamedTuple):
    """A call's id in the ledger, and whether the ledger already contained the call."""

    id: str
    duplicate: bool


class RecordedBatch(NamedTuple):
    """The result of recording a batch of calls."""

    new: list[LedgerEvent]
    has_changes: bool
    """Whether any call was recorded or changed."""
    refused: int = 0
    """Number of calls that were skipped because of invalid values."""


class _Reader(NamedTuple):
    connection: sqlite3.Connection
    inode: int | None
    """The inode of the connection's file, or None if it is in memory."""


class Ledger:
    """A ledger of model calls. Its file is opened on first use. Thread-safe."""

    def __init__(
        self, path: Path, zone: tzinfo | None = None, prices: Prices | None = None
    ) -> None:
        """Create a ledger without opening its file.

        Args:
            path: The ledger's file.
            zone: The time zone that determines local days; defaults to this machine's.
            prices: The prices of recorded calls; defaults to the list in the package.
        """
        self.path = path
        self.prices = Prices() if prices is None else prices
        self._zone = zone
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._data_version: int | None = None
        """The last `PRAGMA data_version`, which changes when another connection writes."""
        self._idle_readers: deque[_Reader] = deque()
        """At most one idle connection. It is kept because opening a new one takes 1 ms."""
        self._ids: dict[tuple[str, ...], int] = {}
        """Cached ids of sessions and call kinds, keyed by table name and column values."""

    def record(self, event: LedgerEvent) -> Recorded:
        """Record a call, unless it has already been recorded.

        A call is identified by its request id and provider, or by its request id alone if an
        agent made it.

        Raises:
            BadParamsError: The event is invalid.
            LedgerError: Storage failed.
        """
        self.prices.load()
        with self._lock, translated(self.path):
            connection = self._open()
            row = self._row_of(connection, event)
            inserted = connection.execute(_INSERT, row)
            if inserted.rowcount == 1:
                return Recorded(event.request_id or f"event-{inserted.lastrowid}", False)
            return self._record_duplicate(connection, event, row, amend=False)

    def _record_duplicate(
        self,
        connection: sqlite3.Connection,
        event: LedgerEvent,
        row: _EventRow,
        *,
        amend: bool,
    ) -> Recorded:
        """Record an event whose key is already taken, by the same call or by another one.

        The key is a hash of the request id alone, so calls to two providers can have the same key.
        A new call gets the next free key. A known call is amended if `amend` is true. A call from
        the same agent is known even if its provider differs, because the agent's file may have
        been read again with another result.
        """
        by_agent = event.agent if event.agent != PROTOCOL else None
        with nested(connection):
            while (stored := next(read_calls(connection, "key = ?", (row[0],)), None)) is not None:
                number, known = stored
                if known.request_id == event.request_id and (
                    known.provider == event.provider or known.agent == by_agent
                ):
                    if amend:
                        self._amend_event(connection, number, known, event)
                    return Recorded(str(event.request_id), True)
                row = (row[0] + 1, *row[1:])
            connection.execute(_INSERT, row)
        return Recorded(str(event.request_id), False)

    def _amend_event(
        self, connection: sqlite3.Connection, number: int, known: LedgerEvent, seen: LedgerEvent
    ) -> None:
        """Merge another version of a recorded call into the ledger, and price the result.

        A cost or branch that was recorded earlier is kept if the new version of the call has none.
        """
        merged, is_same_session = known, _session_of(seen) == _session_of(known)
        if is_same_session:
            branch = known.branch or seen.branch
            merged, seen = (msgspec.structs.replace(one, branch=branch) for one in (known, seen))
        if _size(seen) > _size(known):
            reported = known.reported_cost if seen.reported_cost is None else seen.reported_cost
            own = known.agent_cost if seen.agent_cost is None else seen.agent_cost
            merged = msgspec.structs.replace(
                merged, buckets=seen.buckets, reported_cost=reported, agent_cost=own, cost=None
            )
        if self._add_session(connection, number, merged, seen):
            owned = {name: getattr(seen, name) for name in _OWNED_FIELDS}
            merged = msgspec.structs.replace(merged, **owned, cost=None)
        elif seen.loss not in (None, known.loss) and is_same_session:
            merged = msgspec.structs.replace(merged, loss=seen.loss, cost=None)
        if merged == known:
            return
        before, after = (
            dict(zip(_EVENT_COLUMNS, self._row_of(connection, one), strict=True))
            for one in (known, merged)
        )
        changes = ", ".join(f"{name} = :{name}" for name in after if after[name] != before[name])
        if changes:
            connection.execute(
                f"UPDATE event SET {changes} WHERE id = :id",  # noqa: S608
                {**after, "id": number},
            )

    def _add_session(
        self, connection: sqlite3.Connection, number: int, known: LedgerEvent, seen: LedgerEvent
    ) -> bool:
        """Store that another session also has a call. Return whether it becomes the call's owner.

        The result does not depend on the order in which the sessions are read.
        """
        if seen.rank is None or known.agent == PROTOCOL:  # a client has reported the call
            return False
        owner, other = self._session_id(connection, known), self._session_id(connection, seen)
        is_earlier = _owner_order(seen) < _owner_order(known)
        if is_earlier:
            owner, other = other, owner
        if owner != other:
            connection.execute("INSERT OR IGNORE INTO copy VALUES (?, ?)", (number, other))
            connection.execute("DELETE FROM copy WHERE event = ? AND session = ?", (number, owner))
        return is_earlier

    def record_many(
        self,
        events: Iterable[LedgerEvent],
        *,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> RecordedBatch:
        """Record many calls in one transaction. Calls with invalid values are skipped.

        A call that has already been recorded is updated if the event has more output, or the same
        output and a higher reported cost, because agents write incomplete token counts first.
        If the price list is not loaded yet, the calls are priced later (`sidecar.cost.repricing`).

        Args:
            events: The calls.
            also: Called in the same transaction, for example to store how far a file has been read.
        """
        with self.transaction() as connection, large_cache(connection):
            before = connection.total_changes
            calls, refused = self._rows_of(connection, events)
            new = self._insert_rows(connection, calls)
            batch = RecordedBatch(new, connection.total_changes > before, refused)
            if also is not None:
                also(connection)
        return batch

    def _rows_of(
        self, connection: sqlite3.Connection, events: Iterable[LedgerEvent]
    ) -> tuple[list[tuple[LedgerEvent, _EventRow]], int]:
        """Return each valid event with its row, and the number of invalid events."""
        calls, refused = [], 0
        for event in events:
            try:
                calls.append((event, self._row_of(connection, event)))
            except (BadParamsError, TypeError):  # TypeError: a value has the wrong type
                refused += 1
        return calls, refused

    def _insert_rows(
        self,
        connection: sqlite3.Connection,
        calls: list[tuple[LedgerEvent, _EventRow]],
    ) -> list[LedgerEvent]:
        """Record rows, and return the events that had not been recorded before."""
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()
        connection.executemany(_INSERT, (row for _, row in calls))
        inserted = {key for (key,) in connection.execute(_KEYS_AFTER, (last,))}
        new = []
        for event, row in calls:
            key = row[0]
            if key is None or key in inserted:
                inserted.discard(key)  # a later row with this key is a duplicate
                new.append(event)
            elif not self._record_duplicate(connection, event, row, amend=True).duplicate:
                new.append(event)
        return new

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. It is committed after the block, or rolled back if there is an
        error.
        """
        with self._lock, translated(self.path):
            connection = self._open()
            try:
                with nested(connection):
                    yield connection
            except BaseException:
                self._ids.clear()
                raise

    @contextmanager
    def reader(self, cancelled: Callable[[], bool] | None = None) -> Iterator[sqlite3.Connection]:
        """Open a read-only snapshot, which never blocks writers.

        If the file does not exist, the snapshot is empty and no file is created.

        Raises:
            ReadCancelledError: `cancelled` returned true.
            LedgerError: Reading failed.
        """
        with translated(self.path, cancelled):
            reader = self._take_reader()
            connection = reader.connection
            try:
                if cancelled is not None:
                    connection.set_progress_handler(lambda: int(cancelled()), 20_000)
                connection.execute("BEGIN")
                yield connection
                connection.execute("ROLLBACK")
                connection.set_progress_handler(None, 0)
            except BaseException:
                connection.close()
                raise
            is_closed = self._connection is None or reader.inode != self._inode
            if is_closed or self._idle_readers:
                connection.close()
            else:
                self._idle_readers.append(reader)

    def changed_elsewhere(self) -> bool:
        """Return whether another process has written to the ledger since the previous check.

        The first check returns True if the file exists.

        Raises:
            LedgerError: Reading failed.
        """
        with self._lock, translated(self.path):
            if self._inode != inode_of(self.path):
                self.close()  # another process has replaced the file
            if not self.path.exists():
                return False
            (version,) = self._open().execute("PRAGMA data_version").fetchone()
            before, self._data_version = self._data_version, version
            return bool(version != before)

    def close(self) -> None:
        """Close the file. The ledger opens it again on the next use."""
        with self._lock:
            self._data_version = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            while self._idle_readers:
                self._idle_readers.pop().connection.close()
            self._ids.clear()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            create(self.path)
            try:
                self._connection = self._prepared_connection()
            except ForeignLedgerError:
                self._set_aside()
                self._connection = self._prepared_connection()
            self._inode = inode_of(self.path)
        return self._connection

    def _prepared_connection(self) -> sqlite3.Connection:
        connection = connect(self.path)
        try:
            use_wal(connection)
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self) -> None:
        """Rename a file that is not a ledger, unless another process has already done so."""
        with locked(self.path.with_name(f"{self.path.name}.lock"), BUSY_SECONDS):
            try:
                self._prepared_connection().close()
            except ForeignLedgerError as error:
                set_aside(self.path, str(error), beside=("-wal", "-shm"))
                create(self.path)

    def _take_reader(self) -> _Reader:
        with self._lock:
            if self._inode != inode_of(self.path):
                self.close()  # another process has replaced the file
            if not self.path.exists():
                connection = sqlite3.connect(":memory:", isolation_level=None)
                prepare(connection)
                return _Reader(connection, None)
            self._open()  # imports a ledger from an earlier version
            while self._idle_readers:
                reader = self._idle_readers.pop()
                if reader.inode == self._inode:
                    return reader
                reader.connection.close()
            return _Reader(connect_reader(self.path), self._inode)

    def _row_of(self, connection: sqlite3.Connection, event: LedgerEvent) -> _EventRow:
        checked_numbers(event)
        request = event.request_id
        check_names(requestId=request or "", telemetryId=event.telemetry_id or "")
        cost = event.cost
        if cost is None and self.prices.is_loaded:
            cost = self.prices.cost(event)
        return (
            None if request is None else _hash_request(request),
            request,
            milliseconds(event.at),
            local_day(event.at, self._zone),
            self._session_id(connection, event),
            self._kind_id(connection, event),
            event.estimated_tokens,
            event.telemetry_id,
            event.rank,
            *((None, 0) if event.loss is None else (int(event.loss.cause or 0), event.loss.tokens)),
            *msgspec.structs.astuple(event.buckets),
            _pico(event.reported_cost),
            _pico(event.agent_cost),
            *price_columns(cost),
        )

    def _session_id(self, connection: sqlite3.Connection, event: LedgerEvent) -> int:
        key = ("session", event.workspace, event.session, event.agent, event.branch)
        if key not in self._ids:
            names = {"agent": event.agent, "branch": event.branch}
            check_names(workspace=event.workspace, session=event.session, **names)
            workspace = workspace_key(event.workspace)
            self._ids[key] = _name_id(
                connection, "session", workspace=workspace, name=event.session, **names
            )
        return self._ids[key]

    def _kind_id(self, connection: sqlite3.Connection, event: LedgerEvent) -> int:
        key = ("kind", event.provider, event.model, event.category, event.tier)
        if key not in self._ids:
            names = {"model": event.model, "category": event.category, "tier": event.tier}
            check_names(**names, provider=event.provider)
            provider = _name_id(connection, "provider", name=event.provider)
            self._ids[key] = _name_id(connection, "kind", provider=provider, **names)
        return self._ids[key]


class MemoryLedger(Ledger):
    """A ledger in memory, used for snapshots and if the state folder is unusable."""

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(Path(":memory:"), prices=prices)

    def copy_from(self, source: sqlite3.Connection) -> None:
        """Replace the content with that of another ledger."""
        content = bytearray(source.serialize())
        # A database in memory cannot have a write-ahead log, which these two bytes ask for.
        content[18:20] = b"\x01\x01"
        with self._lock, translated(self.path):
            self._open().deserialize(bytes(content))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            prepare(connection)
            self._connection = connection
        return self._connection

    @contextmanager
    def reader(self, cancelled: Callable[[], bool] | None = None) -> Iterator[sqlite3.Connection]:
        """Yield the ledger's only connection, which other threads cannot use at the same time."""
        with self._lock, translated(self.path, cancelled):
            yield self._open()


def usd(pico: int) -> Decimal:
    """Convert a stored amount (USD * 10**12) to USD."""
    return Decimal(pico) / _PICO


def _usd(pico: int | None) -> Decimal | None:
    return None if pico is None else usd(pico)


def _pico(cost: Decimal | None) -> int | None:
    if cost is None:
        return None
    return int(cost.scaleb(12).to_integral_value(ROUND_HALF_EVEN))


def _name_id(connection: sqlite3.Connection, table: str, **columns: object) -> int:
    """Return the id of the row with these values. If there is no such row, insert it first."""
    values = tuple(columns.values())
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(values))})"  # noqa: S608
    connection.execute(f"{insert} ON CONFLICT DO NOTHING", values)
    where = " AND ".join(f"{column} = ?" for column in columns)
    return int(connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()[0])  # noqa: S608


def _hash_request(request: str) -> int:
    digest = blake2b(request.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest) & _KEY_MASK


def _session_of(event: LedgerEvent) -> tuple[str, str, str]:
    return event.session, workspace_key(event.workspace), event.agent


def _owner_order(event: LedgerEvent) -> tuple[float, str]:
    # Calls that were recorded before version 4 of the ledger have no rank.
    rank = math.inf if event.rank is None else event.rank
    return rank, f"{event.session}\n{workspace_key(event.workspace)}"


def _size(event: LedgerEvent) -> tuple[int, Decimal]:
    """Return what grows when an agent completes a call: its output, then its cost."""
    costs = event.reported_cost, event.agent_cost
    return event.buckets.completion, next((one for one in costs if one is not None), Decimal(0))


def workspace_key(named: str) -> str:
    r"""Return the `file:` URI of a folder that is given as a URI or as an absolute path.

    Anything else is returned unchanged. Different spellings of a folder, such as
    `file:///c%3A/work/` and `C:\work`, result in the same URI.
    """
    path = _local_path(named)
    return named if path is None or not path.is_absolute() else path.as_uri()


def folder_name(workspace: str) -> str:
    """Return a workspace's folder name, or an empty string if there is none."""
    return unquote(workspace.rstrip("/").rpartition("/")[2])


def _local_path(named: str) -> PurePath | None:
    if "://" not in named:
        return PurePath(named) if named else None
    parts = urlsplit(named)
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    if IS_WINDOWS or (path[2:3] == ":" and path[1:2].isalpha()):
        found = str(windows_path(parts.netloc, path))
        return PureWindowsPath(found[:1].upper() + found[1:])
    return PurePosixPath(path) if parts.netloc in ("", "localhost") else None
