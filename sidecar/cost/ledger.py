"""The ledger: an SQLite database that stores every model call once.

Several processes can write to it at the same time. A recorded call survives if the process is
killed, because it has been committed to the write-ahead log. With `synchronous=NORMAL`, a power
failure can lose the last few calls but never damages the file.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import ROUND_HALF_EVEN, Decimal
from hashlib import blake2b
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from sidecar.config.paths import LEDGER_FILES
from sidecar.config.private_files import create, locked, make_folder, set_aside
from sidecar.cost.days import local_day
from sidecar.cost.events import (
    PROTOCOL,
    REPORTED,
    Buckets,
    LedgerEvent,
    band,
    check_names,
    checked_numbers,
    milliseconds,
)
from sidecar.errors import BadParamsError, SidecarError
from sidecar.operating_system import IS_WINDOWS, windows_path

if TYPE_CHECKING:
    from datetime import tzinfo

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


VERSION = 4
"""The `PRAGMA user_version` of ledgers with this schema."""
QUARTER_MS = 900_000
DAY_MS = 86_400_000
FOLD_EVERY = 4096
"""Number of calls that are added to the daily sums at a time."""

BUCKETS = Buckets.__struct_fields__
"""A call's token count columns."""
SUMS = ("calls", *BUCKETS, "estimated_calls", "estimated", "estimated_prompt", "reported")
"""A daily sum's columns.

`estimated_prompt` is the actual number of prompt tokens in calls with an estimate. `reported` is
the reported cost in USD * 10**12.
"""
PROMPT_SQL = "input + cache_read + cache_write_5m + cache_write_1h + cache_write"


class ForeignLedgerError(LedgerError):
    """The file is a database with a different schema, which cannot be imported."""


def prepare(connection: sqlite3.Connection) -> None:
    """Create a new ledger's tables, or import a ledger from the last development version.

    Several processes can call this at the same time.

    Raises:
        ForeignLedgerError: The file has a different schema.
        LedgerError: The ledger was created by a newer version of token-sidecar.
    """
    if _version_of(connection) == VERSION:
        return
    with nested(connection):
        version = _version_of(connection)
        if version == VERSION:
            return
        if version > VERSION:
            raise LedgerError("the ledger was created by a newer version; update token-sidecar")
        for statement in _statements_to_prepare(connection, version):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version_of(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _statements_to_prepare(connection: sqlite3.Connection, version: int) -> Iterable[str]:
    if version == VERSION - 1:
        return ["ALTER TABLE event ADD COLUMN rank INTEGER", _COPIES]
    if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return _creation_statements()
    raise ForeignLedgerError("it was not created by this version or the previous version")


# A call that forks have copied belongs to several sessions. `event` names its owner, and this table
# names the others.
_COPIES = (
    "CREATE TABLE copy (event INTEGER NOT NULL, session INTEGER NOT NULL, "
    "PRIMARY KEY (event, session)) WITHOUT ROWID"
)


def _creation_statements() -> Iterator[str]:
    # Many calls have the same session, provider and kind, so each of these is stored only once.
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
    # `at` is in ms since 1970. `day` is the call's date in the time zone of the machine that
    # recorded it. `reported` is in USD * 10**12. `key` is a hash of the request id. Indexing hashes
    # instead of ids makes the index two thirds smaller.
    yield (
        "CREATE TABLE event (id INTEGER PRIMARY KEY, key INTEGER, request TEXT, "
        "at INTEGER NOT NULL, day INTEGER NOT NULL, session INTEGER NOT NULL, "
        "kind INTEGER NOT NULL, band INTEGER NOT NULL, "
        f"{', '.join(f'{name} INTEGER NOT NULL' for name in BUCKETS)}, "
        "estimated INTEGER, reported INTEGER, telemetry TEXT, rank INTEGER)"
    )
    yield "CREATE UNIQUE INDEX event_key ON event (key) WHERE key IS NOT NULL"
    yield _COPIES
    yield from _sum_statements()


def _sum_statements() -> Iterator[str]:
    """Yield the statements that create the daily sums and their triggers.

    The sums contain the calls up to `folded.upto`. Readers add the few later calls, because
    updating a sum with each call would double the recording time. `utc` is the UTC day, because
    prices change at midnight UTC. Calls are never deleted.
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
        f"CREATE TABLE daily ({', '.join(f'{name} INTEGER NOT NULL' for name in _DAILY_KEYS)}, "
        f"{', '.join(f'{name} INTEGER NOT NULL' for name in SUMS)}, "
        f"PRIMARY KEY ({', '.join(_DAILY_KEYS)})) WITHOUT ROWID"
    )
    yield "CREATE TABLE folded (upto INTEGER NOT NULL)"
    yield "INSERT INTO folded (upto) VALUES (0)"
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


_DAILY_KEYS = ("day", "utc", "session", "kind", "band")
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
_EVENT_COLUMNS = (
    *("key", "request", "at", "day", "session", "kind", "band"),
    *(*BUCKETS, "estimated", "reported", "telemetry", "rank"),
)
_MARKS = ", ".join("?" * len(_EVENT_COLUMNS))
_INSERT = (
    f"INSERT INTO event ({', '.join(_EVENT_COLUMNS)}) VALUES ({_MARKS}) "  # noqa: S608
    "ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING"
)
_KEYS_AFTER = "SELECT key FROM event WHERE id > ?"
_AMENDED = ("band", *BUCKETS, "reported")
_AMEND = f"UPDATE event SET {', '.join(f'{name} = ?' for name in _AMENDED)} WHERE id = ?"  # noqa: S608
_OWNED = ("at", "day", "session", "kind", "telemetry", "rank")
"""The columns that a call has from the session that owns it."""
_CHANGE_OWNER = f"UPDATE event SET {', '.join(f'{name} = ?' for name in _OWNED)} WHERE id = ?"  # noqa: S608
_KEY_MASK = 2**62 - 1
_PROMPT_PARTS = BUCKETS.index("output")
"""The number of buckets that are part of the prompt."""


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


_WORKTREES = (
    "CREATE TABLE IF NOT EXISTS worktree "
    "(folder TEXT PRIMARY KEY, repository TEXT NOT NULL) WITHOUT ROWID"
)


def save_worktrees(connection: sqlite3.Connection, worktrees: Mapping[str, str]) -> None:
    """Remember to which repository each folder belongs, because git forgets removed worktrees."""
    if changed := unsaved_worktrees(connection, worktrees):
        connection.execute(_WORKTREES)
        connection.executemany("REPLACE INTO worktree VALUES (?, ?)", changed)


def unsaved_worktrees(
    connection: sqlite3.Connection, worktrees: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the folders whose repository has not been saved yet."""
    known = dict(_worktree_rows(connection))
    return [item for item in worktrees.items() if known.get(item[0]) != item[1]]


def with_known_worktrees(connection: sqlite3.Connection, folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders, and all former and current worktrees of their repositories."""
    folders, rows = tuple(folders), _worktree_rows(connection)
    repositories = {repository for folder, repository in rows if folder in folders}
    others = (folder for folder, repository in rows if repository in repositories)
    return tuple(dict.fromkeys((*folders, *others)))


def _worktree_rows(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'worktree'").fetchone():
        return []
    return connection.execute("SELECT folder, repository FROM worktree").fetchall()


class Ledger:
    """A ledger of model calls. Its file is opened on first use. Thread-safe."""

    def __init__(self, path: Path, zone: tzinfo | None = None) -> None:
        """Create a ledger without opening its file.

        Args:
            path: The ledger's file.
            zone: The time zone that determines local days; defaults to this machine's.
        """
        self.path = path
        self._zone = zone
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._version_of: int | None = None
        """The last `PRAGMA data_version`, which changes when another connection writes."""
        self._idle_readers: deque[_Reader] = deque()
        """At most one idle connection. It is kept because opening a new one takes 1 ms."""
        self._ids: dict[tuple[str, ...], int] = {}
        """Cached ids of sessions and call kinds, keyed by table name and column values."""

    def record(self, event: LedgerEvent, *, amend: bool = False) -> Recorded:
        """Record a call, unless it has already been recorded.

        A call is identified by its request id and provider, or by its request id alone if an
        agent made it.

        Args:
            event: The call.
            amend: Whether to update a call that has already been recorded. It is updated if the
                event has more output, or the same output and a higher reported cost, because
                agents write incomplete token counts first.

        Raises:
            BadParamsError: The event is invalid.
            LedgerError: Storage failed.
        """
        with self._lock, translated(self.path):
            connection = self._open()
            row = self._row_of(connection, event)
            inserted = connection.execute(_INSERT, row)
            if inserted.rowcount == 1:
                return Recorded(event.request_id or f"event-{inserted.lastrowid}", False)
            return self._record_duplicate(connection, event, row, amend=amend)

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
            while (stored := _event_by_key(connection, row[0])) is not None:
                number, request, provider, agent, *numbers = stored
                if request == event.request_id and (
                    provider == event.provider or agent == by_agent
                ):
                    if amend:
                        _amend_event(connection, row, number, numbers)
                        _add_session(connection, row, number)
                    return Recorded(str(event.request_id), True)
                row = (row[0] + 1, *row[1:])
            connection.execute(_INSERT, row)
        return Recorded(str(event.request_id), False)

    def record_many(
        self,
        events: Iterable[LedgerEvent],
        *,
        amend: bool = False,
        also: Callable[[sqlite3.Connection], None] | None = None,
    ) -> RecordedBatch:
        """Record many calls in one transaction. Calls with invalid values are skipped.

        Args:
            events: The calls.
            amend: Whether to update calls that have already been recorded (see `record`).
            also: Called in the same transaction, for example to store how far a file has been read.
        """
        with self.transaction() as connection, large_cache(connection):
            before = connection.total_changes
            calls, refused = self._rows_of(connection, events)
            new = self._insert_rows(connection, calls, amend=amend)
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
        *,
        amend: bool,
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
            elif not self._record_duplicate(connection, event, row, amend=amend).duplicate:
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
            before, self._version_of = self._version_of, version
            return bool(version != before)

    def close(self) -> None:
        """Close the file. The ledger opens it again on the next use."""
        with self._lock:
            self._version_of = None
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
        numbers = checked_numbers(event)
        request = event.request_id
        check_names(requestId=request or "", telemetryId=event.telemetry_id or "")
        is_reported = event.reported_cost is not None
        cost = event.reported_cost if is_reported else event.agent_cost
        return (
            None if request is None else _hash_request(request),
            request,
            milliseconds(event.at),
            local_day(event.at, self._zone),
            self._session_id(connection, event),
            self._kind_id(connection, event),
            REPORTED if is_reported else band(sum(numbers[:_PROMPT_PARTS])),
            *numbers,
            event.estimated_tokens,
            None if cost is None else _to_pico(cost),
            event.telemetry_id,
            event.rank,
        )

    def _session_id(self, connection: sqlite3.Connection, event: LedgerEvent) -> int:
        key = ("session", event.workspace, event.session, event.agent)
        if key not in self._ids:
            check_names(workspace=event.workspace, session=event.session, agent=event.agent)
            workspace = workspace_key(event.workspace)
            self._ids[key] = _name_id(
                connection, "session", workspace=workspace, name=event.session, agent=event.agent
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
    """A ledger in memory, used if the state folder is unusable."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        super().__init__(Path(":memory:"), zone)

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


def _to_pico(cost: Decimal) -> int:
    return int((cost * _PICO).to_integral_value(rounding=ROUND_HALF_EVEN))


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


def _event_by_key(connection: sqlite3.Connection, key: int) -> tuple[Any, ...] | None:
    found = connection.execute(
        "SELECT event.id, request, provider.name, agent, band, reported, "  # noqa: S608
        f"{', '.join(BUCKETS)} FROM event JOIN session ON session.id = event.session "
        "JOIN kind ON kind.id = event.kind JOIN provider ON provider.id = kind.provider "
        "WHERE key = ?",
        (key,),
    ).fetchone()
    return None if found is None else tuple(found)


def _amend_event(
    connection: sqlite3.Connection, row: _EventRow, event: int, stored: Sequence[Any]
) -> None:
    seen = dict(zip(_EVENT_COLUMNS, row, strict=True))
    known = dict(zip(("band", "reported", *BUCKETS), stored, strict=True))
    if (_output_tokens(seen), seen["reported"] or 0) <= (
        _output_tokens(known),
        known["reported"] or 0,
    ):
        return
    if seen["reported"] is None and known["reported"] is not None:
        is_reported = known["band"] == REPORTED
        band = REPORTED if is_reported else seen["band"]
        seen |= {"reported": known["reported"], "band": band}
    connection.execute(_AMEND, (*(seen[name] for name in _AMENDED), event))


def _add_session(connection: sqlite3.Connection, row: _EventRow, event: int) -> None:
    """Add a session that also has a call. If it is the earliest, it becomes the call's owner.

    The result does not depend on the order in which the sessions are read.
    """
    seen = dict(zip(_EVENT_COLUMNS, row, strict=True))
    session, rank = connection.execute(
        "SELECT session, rank FROM event WHERE id = ?", (event,)
    ).fetchone()
    if seen["rank"] is None or rank is None:  # a client has reported the call
        return
    other = seen["session"]
    names = dict(
        connection.execute(
            "SELECT id, name || char(10) || workspace FROM session WHERE id IN (?, ?)",
            (session, other),
        )
    )
    if (seen["rank"], names[other]) < (rank, names[session]):
        connection.execute(_CHANGE_OWNER, (*(seen[name] for name in _OWNED), event))
        session, other = other, session
    if session != other:
        connection.execute("INSERT OR IGNORE INTO copy VALUES (?, ?)", (event, other))
        connection.execute("DELETE FROM copy WHERE event = ? AND session = ?", (event, session))


def _output_tokens(numbers: dict[str, Any]) -> int:
    return int(numbers["output"] + numbers["reasoning"])


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
