"""Reads agents' SQLite databases."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sidecar.agents.folders import Places, Roots, agent_folders
from sidecar.agents.session_events import CallFinished, Store, StoreRead, StoreReader
from sidecar.agents.stores import SessionState, database_files, database_store, read_store
from sidecar.messages.vendor_usage import LONGEST_ID

_BUSY_SECONDS = 0.25
_MAX_VALUE_BYTES = 64 << 20

T = TypeVar("T")


def read_database(
    store: Store,
    state: bytes,
    new: Callable[[], T],
    parse: Callable[[sqlite3.Connection, T], StoreRead],
) -> StoreRead:
    """Read what changed in a database since the last read. See `stores.read_store`.

    Raises:
        OSError: The database is missing, locked or corrupt.
    """

    def parse_rows(reader_state: T) -> StoreRead:
        with read_only(store.path) as connection:
            return parse(connection, reader_state)

    return read_store(store, state, new, parse_rows)


@contextmanager
def read_only(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database for reading, in a single transaction.

    If the database uses a write-ahead log, SQLite may create `-wal` and `-shm` files next to it.
    If the folder is read-only and there is no log, the database is opened as immutable.

    Raises:
        OSError: The database is missing, locked or corrupt.
    """
    connection = None
    try:
        _refuse_fifos(path)
        connection = _open(path)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.set_authorizer(_tables_only)
        yield connection
    except sqlite3.Error as error:
        raise OSError(f"cannot read the database: {type(error).__name__}") from error
    finally:
        if connection is not None:
            connection.close()


def _refuse_fifos(path: str) -> None:
    """Raise OSError if a file is a FIFO, because SQLite would block on it."""
    for suffix in ("", "-journal", "-wal"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(f"{path}{suffix}").st_mode):
                raise OSError("is not a regular file")


def _tables_only(action: int, _one: object, _two: object, _db: object, view: object) -> int:
    """Deny queries on views, because a malicious view could run forever."""
    allowed = view is None or action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Return a table's column names, or an empty set if the table does not exist."""
    return frozenset(
        row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    )


def _open(path: str) -> sqlite3.Connection:
    uri = f"{Path(os.path.abspath(path)).as_uri()}?mode=ro"
    try:
        return _connect(uri)
    except sqlite3.OperationalError:
        if os.path.exists(f"{path}-wal") or os.access(os.path.dirname(path) or ".", os.W_OK):
            raise
        return _connect(f"{uri}&immutable=1")


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class DatabaseState(msgspec.Struct):
    """What a reader remembers about a database between reads."""

    at: str | float | None = None
    """The time of the latest change, in the database's format.

    Some readers use a row id instead.
    """
    sessions: dict[str, SessionState] = msgspec.field(default_factory=dict)
    """The main conversations, keyed by session id."""
    skipped: int = 0
    """The number of malformed rows in the last read."""
    is_settled: bool = True
    """Whether the last read could use all rows. If not, the database is read again later."""

    def advance(self, at: object) -> None:
        """Set `self.at` to `at` if `at` is later."""
        if isinstance(at, str | int | float):
            both = (self.at, at) if isinstance(at, type(self.at)) else (at,)
            self.at = max(both)  # type: ignore[type-var]


class OneDatabase(StoreReader):
    """Base class for readers of agents that store their sessions in SQLite databases."""

    table: str
    """The name of the sessions table."""
    key = "id"
    """The column with the sessions' ids."""
    title_column = ""
    files: tuple[str, ...] = ()
    """The databases in the agent's folders. `*` stands for any part of a name."""

    def paths(self, places: Places) -> tuple[Path, ...]:
        """Return the agent's database paths."""
        found: list[Path] = []
        for home in agent_folders(places, self.agent):
            for file in self.files:
                found += sorted(home.glob(file)) if "*" in file else [home / file]
        return tuple(dict.fromkeys(found))

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterable[CallFinished]:
        """Update `state` with the rows that changed since `state.at`, and return their calls."""
        raise NotImplementedError

    def title_of(self, row: dict[str, Any]) -> object:
        """Return the session title from a row of the sessions table."""
        return row.get(self.title_column)

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(one for path in self.paths(places) for one in database_files(path))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        for path in self.paths(places):
            store = database_store(self.agent, path)
            if store is not None:
                yield store

    def store_at(self, places: Places, path: str) -> Store | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        known = map(os.fspath, self.paths(places))
        return database_store(self.agent, path) if path in known else None

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_database(store, state, DatabaseState, partial(self._read_contents, store.path))

    def title(self, store: Store, title_at: str) -> str | None:
        with read_only(store.path) as connection:
            for row in rows(connection, self.table, "id = ?", title_at):
                return column_text(self.title_of(row))
        return None

    def _read_contents(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> StoreRead:
        state.skipped, state.is_settled = 0, True
        calls = [*self.changes(path, connection, state)]
        if state.sessions and self.table:
            has_ids = self.key in columns(connection, self.table)
            query = f'SELECT "{self.key}" FROM {self.table}'  # noqa: S608
            ids = connection.execute(query) if has_ids else ()
            known = {str(row[0]) for row in ids}
            state.sessions = {name: one for name, one in state.sessions.items() if name in known}
        sessions = [session.snapshot() for session in state.sessions.values()]
        return StoreRead(calls, sessions, state.skipped, is_settled=state.is_settled)


def rows(
    connection: sqlite3.Connection, table: str, where: str = "1", *values: object
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dicts.

    Yields nothing if the table, or a column in `where`, does not exist.
    """
    try:
        cursor = connection.execute(f"SELECT * FROM {table} WHERE {where}", values)  # noqa: S608
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such"):
            return
        raise
    names = [one[0] for one in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def column_text(value: object) -> str | None:
    """Return a column's text, truncated to `LONGEST_ID`, or None if it is empty or not a string."""
    return value[:LONGEST_ID] if isinstance(value, str) and value else None
