"""SQLite stores of other programs, opened for reading only."""

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
_LONGEST = 64 << 20
"""Bytes of one value."""

T = TypeVar("T")


def read_database(
    store: Store,
    state: bytes,
    new: Callable[[], T],
    parse: Callable[[sqlite3.Connection, T], StoreContents],
) -> StoreRead:
    """Read what is new in a database; as `stores.read_store`. Raises OSError."""

    def parse_rows(reader_state: T) -> StoreContents:
        with read_only(store.path) as connection:
            contents = parse(connection, reader_state)
            return contents._replace(calls=tuple(contents.calls), sessions=tuple(contents.sessions))

    return read_store(store, state, new, parse_rows)


@contextmanager
def read_only(path: str) -> Iterator[sqlite3.Connection]:
    """A database at one moment. Raises OSError where it is gone, locked, damaged or of no use.

    SQLite may make its own `-wal` and `-shm` beside a database with a write-ahead log, as for
    every reader; in a folder that cannot be written to, one without a log is read as it lies.
    """
    connection = None
    try:
        _refuse_fifos(path)
        connection = _open(path)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.set_authorizer(_tables_only)
        yield connection
    except sqlite3.Error as error:
        raise OSError(f"cannot read the database: {type(error).__name__}") from error
    finally:
        if connection is not None:
            connection.close()


def _refuse_fifos(path: str) -> None:
    """SQLite waits for the writer of a FIFO in the place of a database or its journal."""
    for beside in ("", "-journal", "-wal"):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(f"{path}{beside}").st_mode):
                raise OSError("is not a regular file")


def _tables_only(action: int, _one: object, _two: object, _db: object, view: object) -> int:
    """Refuse what a view in a table's place would run: its query may have no end."""
    allowed = view is None or action not in (sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """The columns of a table, which differ from release to release; none where it is missing."""
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
    """A connection that was seen to work: SQLite opens nothing before the first statement."""
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection
