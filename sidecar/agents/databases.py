"""SQLite stores of other programs, opened for reading only."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from sidecar.agents.folding import Folded, fold_store

if TYPE_CHECKING:
    from sidecar.agents.values import Batch, Found, Mark

_BUSY_SECONDS = 0.25
_LONGEST = 64 << 20
"""Bytes of one value."""

S = TypeVar("S", bound=msgspec.Struct)


FoldRows: TypeAlias = Callable[[sqlite3.Connection, S], Folded[S]]
"""Takes what is new of a database into a state, which holds its cursors."""


class LastRow(msgspec.Struct, frozen=True):
    """Of a table whose rows are never changed: the last one that was read."""

    row: int = 0


def fold_database(found: Found, mark: Mark | None, start: S, fold: FoldRows[S]) -> Iterator[Batch]:
    """A database, from the cursors of `mark`; all of it where it is another file than then.

    Raises OSError where it cannot be read.
    """

    def fold_all(state: S) -> Folded[S]:
        with read_only(found.path) as connection:
            return fold(connection, state)

    same = mark if mark is not None and mark.inode == found.inode else None
    return fold_store(found, same, start, fold_all)


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
