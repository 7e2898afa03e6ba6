"""Reads the SQLite databases of other programs."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sidecar.agents.stores import StoreContents, read_store

if TYPE_CHECKING:
    from sidecar.agents.events import Store, StoreRead

_BUSY_SECONDS = 0.25
_MAX_VALUE_BYTES = 64 << 20

T = TypeVar("T")


def read_database(
    store: Store,
    state: bytes,
    new: Callable[[], T],
    parse: Callable[[sqlite3.Connection, T], StoreContents],
) -> StoreRead:
    """Read the new contents of a database; see `stores.read_store`. Raises OSError."""

    def parse_rows(reader_state: T) -> StoreContents:
        with read_only(store.path) as connection:
            contents = parse(connection, reader_state)
            return contents._replace(calls=tuple(contents.calls), sessions=tuple(contents.sessions))

    return read_store(store, state, new, parse_rows)


@contextmanager
def read_only(path: str) -> Iterator[sqlite3.Connection]:
    """Open a consistent view of a database.

    SQLite may create `-wal` and `-shm` files next to a database with a write-ahead log. A
    database without a log in a read-only folder is opened as immutable.

    Raises:
        OSError: The database is missing, locked or damaged.
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
    """Raise OSError for a FIFO: SQLite would wait until another process writes to it."""
    for suffix in ("", "-journal", "-wal"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(f"{path}{suffix}").st_mode):
                raise OSError("is not a regular file")


def _tables_only(action: int, _one: object, _two: object, _db: object, view: object) -> int:
    """Deny queries of views, because a hostile view may never end."""
    allowed = view is None or action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Return the columns of a table, or none if the table does not exist."""
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
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection
