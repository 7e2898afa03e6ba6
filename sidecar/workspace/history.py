"""Reads agents' calls into the ledger, through the session index. Blocking."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar.cost.ledger import create_folder, translated
from sidecar.workspace.session_index import IngestControl, Ingested, SessionIndex

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.cost.book import CostBook
    from sidecar.workspace.agents import Sources

LOCK_NAME = "agents.lock"


def is_read(book: CostBook, sources: Sources) -> bool:
    """Return whether the ledger has all calls of the roots' sessions. Raises LedgerError."""
    return not SessionIndex(book.ledger).has_unread(sources.stores())


def ingest_all(
    book: CostBook,
    sources: Sources,
    *,
    mine: bool,
    stop: threading.Event | None = None,
    rest: float = 0.0,
    progress: Callable[[float], None] = lambda _: None,
) -> Ingested:
    """Read the new contents of agents' stores. Only one process does this at a time.

    Args:
        book: The ledger.
        sources: Which agents' files to read.
        mine: Whether to read only stores that may belong to the roots.
        stop: Stops reading when set.
        rest: Seconds to sleep for each second of work.
        progress: Called with the completed fraction, 0 to 1.

    Raises:
        LedgerError: The ledger cannot be written.
    """
    with _try_process_lock(book.ledger.path) as alone:
        if not alone:
            return Ingested(is_complete=False)
        index, stores = SessionIndex(book.ledger), sources.stores(mine=mine)
        if not mine:
            index.forget_missing(sources.readers, {store.path for store in stores})
        unread = index.unread(sources.readers, stores)
        control = IngestControl(stop or threading.Event(), rest, progress)
        # Not `book.record_many`: calls from before are not exported to a collector.
        return index.read(sources.readers, unread, control, record=book.ledger.record_many)


def ingest_missed(book: CostBook, sources: Sources) -> Ingested:
    """Read the new contents of the roots' stores without waiting for other processes.

    Calls that another process reads too are recorded once. Raises LedgerError.
    """
    index = SessionIndex(book.ledger)
    unread = index.unread(sources.readers, sources.stores())
    return index.read(sources.readers, unread, record=book.record_many)


_here = threading.Lock()


@contextmanager
def _try_process_lock(ledger: Path) -> Iterator[bool]:
    """Yield whether this process got the lock of a ledger. Raises LedgerError.

    The operating system releases the lock when the process ends.
    """
    if not _here.acquire(blocking=False):
        yield False
        return
    try:
        create_folder(ledger)
        with translated(ledger):
            lock = ledger.with_name(LOCK_NAME)
            connection = sqlite3.connect(lock, timeout=0, isolation_level=None)
    except BaseException:
        _here.release()
        raise
    try:
        yield _lock_exclusively(connection)
    finally:
        connection.close()
        _here.release()


def _lock_exclusively(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        return False
    return True
