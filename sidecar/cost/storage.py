"""The ledger's file: opened for its user alone, shared by processes, its errors in plain words."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar.config.private import make_folder
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BUSY_SECONDS = 30.0

# In KB, negative. SQLite walks its whole cache after a commit that made a page: 16 MB cost each
# record 60 us.
_CACHE = -500
_BULK_CACHE = -64_000
_READ_CACHE = -2_000
"""A reader never commits; a year's rollups are sorted in so much memory, else in a file."""

# A record touches three B-trees, and WAL writes whole pages: small ones make it twice as fast.
_PRAGMAS = (
    "PRAGMA page_size = 1024",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA wal_autocheckpoint = 16000",
    f"PRAGMA cache_size = {_CACHE}",
)


class LedgerError(SidecarError):
    """The ledger cannot be read or written; the message says what to do."""

    kind = "storage"
    retryable = True


class ReadCancelledError(LedgerError):
    """The caller's `cancelled` returned true while the ledger was being read."""


@contextmanager
def nested(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction, unless one is open already."""
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
    """End a transaction, if it is still open: SQLite ends it by itself when the disk is full."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


@contextmanager
def large_cache(connection: sqlite3.Connection) -> Iterator[None]:
    """Room for the pages of a long transaction, which otherwise are written many times over."""
    connection.execute(f"PRAGMA cache_size = {_BULK_CACHE}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA cache_size = {_CACHE}")


def create_folder(ledger: Path) -> None:
    """Make the folder that a ledger lies in. Raises LedgerError."""
    with translated(ledger):
        make_folder(ledger.parent)


def inode_of(path: Path) -> int | None:
    """Which file the path leads to; None where there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def connect(path: Path) -> sqlite3.Connection:
    """A connection that waits for other processes, and commits by itself outside `nested`."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    return connection


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging.

    SQLite does not wait for other processes here as it does elsewhere, so that we have to.
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


class Readers:
    """Connections to read from, one for each report at a time.

    One that nobody uses is kept for the next report: to open it, read the schema and compile
    what is asked takes as long as a report of a day does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: sqlite3.Connection | None = None
        self._file = object()
        """Another one for each file that the ledger had."""

    def take(self, path: Path) -> tuple[sqlite3.Connection, object]:
        """A connection for one thread, and what it is given back with."""
        with self._lock:
            connection, self._idle = self._idle, None
            file = self._file
        if connection is None:
            connection = connect(path)
            connection.execute("PRAGMA query_only = ON")
            connection.execute(f"PRAGMA cache_size = {_READ_CACHE}")
        return connection, file

    def give_back(self, connection: sqlite3.Connection, file: object) -> None:
        """Keep it, unless another one is kept or the ledger was closed meanwhile."""
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
        with self._lock:
            if self._idle is None and file is self._file:
                self._idle = connection
                return
        connection.close()

    def close(self) -> None:
        """Close what is kept; what is in use is closed when it is given back."""
        with self._lock:
            connection, self._idle, self._file = self._idle, None, object()
        if connection is not None:
            connection.close()


@contextmanager
def translated(path: Path, cancelled: Callable[[], bool] | None = None) -> Iterator[None]:
    """Turn what SQLite and the file system raise into errors that say what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if cancelled is not None and cancelled():
            raise ReadCancelledError("the report was cancelled") from error
        raise explained(error, path) from error


def explained(error: Exception, path: Path) -> LedgerError:
    if isinstance(error, OSError):
        return LedgerError(f"the ledger {path} cannot be opened: {error.strerror}")
    if isinstance(error, sqlite3.OperationalError):
        return LedgerError(f"the ledger {path} cannot be used: {error}")
    return LedgerError(
        f"the ledger {path} is damaged ({error}): move it away, and a new one is begun"
    )
