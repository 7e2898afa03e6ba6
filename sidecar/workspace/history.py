"""What agents' files say that calls took, kept in the ledger. Blocking, for worker threads.

Each file is read from its mark on, which is kept with the calls that it covers: whoever is stopped
goes on there, and what two processes read counts once.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.agents import ingest
from sidecar.agents.live import store_at
from sidecar.agents.reader import stores_of
from sidecar.agents.values import Batch, Call, Found, Mark
from sidecar.cost.events import LedgerEvent, check_event, split
from sidecar.cost.sources import forget_marks, keep_marks, marks_in
from sidecar.cost.storage import create_folder, inode_of, translated
from sidecar.errors import BadParamsError
from sidecar.models.catalogue import billing_provider

if TYPE_CHECKING:
    from sidecar.cost.book import CostBook
    from sidecar.workspace.agents import Sources

_log = logging.getLogger(__name__)

LOCK_NAME = "agents.lock"
_CALLS_AT_ONCE = 2_000
_STORES_AT_ONCE = 200
_LONGEST_REST = 0.5


class Ingested(NamedTuple):
    """What a reading came to."""

    calls: int = 0
    """New in the ledger."""
    refused: int = 0
    """Calls that nobody can have made."""
    bytes_read: int = 0
    whole: bool = True
    """False where it was stopped, or another process is at it."""


def is_read(book: CostBook, sources: Sources) -> bool:
    """Whether the ledger has all calls of the roots' sessions. Raises LedgerError."""
    with book.ledger.reader() as connection:
        marks = _decoded(marks_in(connection))
    return not ingest.plan(sources.readers, sources.places, marks, sources.roots).stores


class ReadStores(NamedTuple):
    """Stores that were seen read to their end, as they were listed then."""

    sources: Sources
    ledger: int | None
    """Which file the calls went to."""
    stores: frozenset[Found]


class _Stop(NamedTuple):
    event: threading.Event
    rest: float
    """Seconds of rest for each second of work."""


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
    stopping = _Stop(stop or threading.Event(), rest)
    with _only_process(book.ledger.path) as alone:
        if not alone:
            return Ingested(whole=False)
        with book.ledger.reader() as connection:
            marks = _decoded(marks_in(connection))
        roots = sources.roots if mine else None
        planned = ingest.plan(sources.readers, sources.places, marks, roots)
        if planned.vanished:
            with book.ledger.transaction() as connection:
                forget_marks(connection, planned.vanished)
        size = max(1, planned.size)
        batches = ingest.read(sources.readers, planned.stores, marks)
        keep = book.ledger.record_many  # a collector is sent what happens, not all of history
        return _keep(keep, batches, stopping, lambda read: progress(min(1.0, read / size)))


def ingest_changed(book: CostBook, sources: Sources, changed: Collection[str]) -> Ingested:
    """Read what is new in the stores that these files are of, and list no others.

    It needs no lock: what another process reads too counts once. Raises LedgerError.
    """
    fresh, marks = _changed(book, sources, changed)
    return _keep_fresh(book, sources, fresh, marks)


def ingest_missed(
    book: CostBook, sources: Sources, before: ReadStores | None = None
) -> tuple[Ingested, ReadStores]:
    """Read whatever is new of the roots' sessions, where no change was reported.

    `before`: what this returned the last time; only the marks of other stores are looked at.
    Raises LedgerError.
    """
    ledger = inode_of(book.ledger.path)
    same = before is not None and before.sources == sources and before.ledger == ledger
    known = before.stores if before is not None and same else frozenset()
    listed = [(one, stores_of(one, sources.places, sources.roots)) for one in sources.readers]
    doubtful = [one.path for _, found in listed for one in found if one not in known]
    with book.ledger.reader() as connection:
        marks = _decoded(marks_in(connection, doubtful if known else None))
    fresh = [
        one
        for reader, found in listed
        for one in ingest.fresh(reader, (each for each in found if each not in known), marks)
    ]
    done = _keep_fresh(book, sources, fresh, marks)
    every = frozenset(one for _, found in listed for one in found)
    return done, ReadStores(sources, ledger, every.difference(fresh))


def _keep_fresh(
    book: CostBook, sources: Sources, fresh: Collection[Found], marks: dict[str, Mark]
) -> Ingested:
    batches = ingest.read(sources.readers, fresh, marks)
    return _keep(book.record_many, batches, _Stop(threading.Event(), 0.0), lambda _: None)


def _changed(
    book: CostBook, sources: Sources, changed: Collection[str]
) -> tuple[Collection[Found], dict[str, Mark]]:
    found = (store_at(sources.readers, sources.places, path) for path in changed)
    stores = {store.path: store for store in found if store is not None}
    with book.ledger.reader() as connection:
        marks = _decoded(marks_in(connection, stores))
    return [one for path, one in stores.items() if not _is_read(marks.get(path), one)], marks


def _is_read(mark: Mark | None, store: Found) -> bool:
    return mark is not None and mark.unchanged(store)


def event_of(call: Call) -> LedgerEvent:
    """A call as the ledger keeps it; its folder with links resolved."""
    return LedgerEvent(
        at=call.at,
        model=call.model,
        provider=billing_provider(call.provider, call.model),
        agent=call.agent,
        session=call.session,
        workspace=_folder_uri(call.workspace),
        request_id=call.request,
        tier=call.tier,
        category=call.category,
        reported_cost=call.cost_usd,
        agent_cost=call.agent_cost_usd or None,  # 0 stands for a model that it has no price of
        buckets=split(call.usage, call.cache_write_5m_tokens, web_searches=call.web_searches),
    )


@lru_cache(maxsize=4096)
def _folder_uri(folder: str) -> str:
    """A folder of this machine, links resolved; what is none stays as it is."""
    if not os.path.isabs(folder):
        return folder
    return Path(os.path.realpath(folder)).as_uri()


def _keep(
    record_many: Callable[..., list[LedgerEvent]],
    batches: Iterator[Batch],
    stop: _Stop,
    progress: Callable[[int], None],
) -> Ingested:
    """Keep batches with their marks, some at a time, until there are no more or `stop` is set."""
    done, began = Ingested(), time.monotonic()
    for some in _together(batches):
        events, refused = _checked(call for batch in some for call in batch.calls)
        marks = {batch.mark.path: msgspec.msgpack.encode(batch.mark) for batch in some}

        def also(
            connection: sqlite3.Connection,
            marks: Mapping[str, bytes] = marks,
            refused: int = refused,
        ) -> None:
            keep_marks(connection, marks.items(), refused)

        new = record_many(events, amend=True, also=also)
        done = Ingested(
            done.calls + len(new),
            done.refused + refused,
            done.bytes_read + sum(batch.bytes_read for batch in some),
        )
        progress(done.bytes_read)
        took = time.monotonic() - began
        if stop.event.wait(min(_LONGEST_REST, took * stop.rest)):
            return done._replace(whole=False)
        began = time.monotonic()
    if done.refused:
        _log.warning("%d calls in session files have impossible numbers", done.refused)
    return done


def _together(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Batches for one transaction: a commit for each small file would take longer than reading."""
    some: list[Batch] = []
    calls = 0
    for batch in batches:
        some.append(batch)
        calls += len(batch.calls)
        if calls >= _CALLS_AT_ONCE or len(some) >= _STORES_AT_ONCE:
            yield some
            some, calls = [], 0
    if some:
        yield some


def _checked(calls: Iterable[Call]) -> tuple[list[LedgerEvent], int]:
    """The calls that can be kept, and how many cannot: one of these would undo the whole batch."""
    events, refused = [], 0
    for call in calls:
        event = event_of(call)
        try:
            check_event(event)
        except BadParamsError:
            refused += 1
        else:
            events.append(event)
    return events, refused


def _decoded(marks: Mapping[str, bytes]) -> dict[str, Mark]:
    """Marks as readers take them; one of another version is as none, and its file is read anew."""
    found: dict[str, Mark] = {}
    for path, data in marks.items():
        try:
            found[path] = msgspec.msgpack.decode(data, type=Mark)
        except msgspec.MsgspecError:
            continue
    return found


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
