"""Agents' calls, brought into the ledger through the session index. For worker threads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar.cost.ledger import create_folder, translated
from sidecar.workspace.session_index import Ingested, Pace, SessionIndex

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.cost.book import CostBook
    from sidecar.workspace.agents import Sources

LOCK_NAME = "agents.lock"


def is_read(book: CostBook, sources: Sources) -> bool:
    """Whether the ledger has all calls of the roots' sessions. Raises LedgerError."""
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
    """Read what is new: of the roots' sessions (`mine`), or of all there are.

    One process does so at a time. `rest`: seconds of rest for each second of work. `progress` is
    called with the share that is done, 0 to 1. Raises LedgerError.
    """
    with _only_process(book.ledger.path) as alone:
        if not alone:
            return Ingested(whole=False)
        index, stores = SessionIndex(book.ledger), sources.stores(mine=mine)
        if not mine:
            index.forget_missing(sources.readers, {store.path for store in stores})
        unread = index.unread(sources.readers, stores)
        pace = Pace(stop or threading.Event(), rest, progress)
        # A collector is sent what happens, not all of history.
        return index.read(sources.readers, unread, pace, record=book.ledger.record_many)


def ingest_missed(book: CostBook, sources: Sources) -> Ingested:
    """Read whatever is new of the roots' sessions.

    It needs no lock: what another process reads too counts once. Raises LedgerError.
    """
    index = SessionIndex(book.ledger)
    unread = index.unread(sources.readers, sources.stores())
    return index.read(sources.readers, unread, record=book.record_many)


_here = threading.Lock()


@contextmanager
def _only_process(ledger: Path) -> Iterator[bool]:
    """Whether nobody else reads into the ledger at this path. Raises LedgerError.

    The system lets go of it when a process ends."""
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
        yield _begun(connection)
    finally:
        connection.close()
        _here.release()


def _begun(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        return False
    return True
