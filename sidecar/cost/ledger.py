"""The ledger: every model call once, in SQLite, written by several processes at the same time.

An acknowledged event survives the end of the process by any signal: it was committed to the
write-ahead log. (`synchronous=NORMAL`: a power cut may take the last moments, never the file.)
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.config.paths import LEDGER_FILES
from sidecar.config.private import create, locked, set_aside
from sidecar.cost.bands import REPORTED, band
from sidecar.cost.days import local_day
from sidecar.cost.events import LedgerEvent, check_names, checked_numbers, milliseconds
from sidecar.cost.schema import BUCKETS, ForeignLedgerError, prepare
from sidecar.cost.storage import (
    BUSY_SECONDS,
    Readers,
    connect,
    explained,
    inode_of,
    large_cache,
    nested,
    translated,
    use_wal,
)
from sidecar.cost.workspaces import workspace_key
from sidecar.messages.bounds import LONGEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import tzinfo

FILE_NAME = LEDGER_FILES[0]
_PICO = Decimal(10) ** 12

_COLUMNS = (
    "key",
    "request",
    "at",
    "day",
    "session",
    "kind",
    "band",
    *BUCKETS,
    "estimated",
    "reported",
)
_INSERT = (
    f"INSERT INTO event ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "  # noqa: S608
    "ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING"
)
_AMENDED = ("band", *BUCKETS, "reported")
_AMEND = f"UPDATE event SET {', '.join(f'{name} = ?' for name in _AMENDED)} WHERE id = ?"  # noqa: S608
_KEY_MASK = 2**63 - 1
_PROMPT_PARTS = BUCKETS.index("output")
"""The first buckets make up the prompt."""


class Recorded(NamedTuple):
    """What became of an event: its id, and whether it was there already."""

    id: str
    duplicate: bool


class Ledger:
    """One ledger file. Safe to share between threads; opened at its first use."""

    def __init__(self, path: Path, zone: tzinfo | None = None) -> None:
        """`zone`: whose days count; None is this machine's."""
        self.path = path
        self._zone = zone
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._version: int | None = None
        """`PRAGMA data_version`, by which SQLite tells that another connection has written."""
        self._readers = Readers()
        self._providers: dict[str, int] = {}
        self._sessions: dict[tuple[str, str, str], int] = {}
        self._kinds: dict[tuple[str, str, str, str], int] = {}

    def record(self, event: LedgerEvent, *, amend: bool = False) -> Recorded:
        """Keep an event: once for a request id of its provider, whoever records it.

        With `amend`, a later record of the same call that holds more output, or as much and a
        higher reported cost, replaces its numbers (transcripts write partial counts first); time,
        session and estimate stay.
        Raises ValueError for an event that cannot be kept, LedgerError where storage fails.
        """
        with self._lock:
            try:
                connection = self._connection or self._open()
                row = self._row(connection, event)
                inserted = connection.execute(_INSERT, row)
                if inserted.rowcount == 1:
                    return Recorded(event.request_id or f"event-{inserted.lastrowid}", False)
                return self._again(connection, event, row, amend=amend)
            except (sqlite3.Error, OSError) as error:
                raise explained(error, self.path) from error

    def _again(
        self,
        connection: sqlite3.Connection,
        event: LedgerEvent,
        row: tuple[Any, ...],
        *,
        amend: bool,
    ) -> Recorded:
        """An event whose key is taken: by itself, or (once in 10**12 years) by another one."""
        with nested(connection):
            while (found := _holder(connection, row[0])) is not None:
                if found[1:3] == (event.request_id, event.provider):
                    if amend:
                        _amend(connection, row, found[0], found[3:])
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
    ) -> list[LedgerEvent]:
        """Keep many events in one transaction, and return those that were new.

        `also` runs in it too: a reader's offset is stored with the events that it read.
        """
        with self.transaction() as connection, large_cache(connection):
            new = [event for event in events if not self.record(event, amend=amend).duplicate]
            if also is not None:
                also(connection)
        return new

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All records made inside are kept together, or none of them."""
        with self._lock, translated(self.path):
            connection = self._open()
            try:
                with nested(connection):
                    yield connection
            except BaseException:
                self._forget_names()
                raise

    @contextmanager
    def reader(self, cancelled: Callable[[], bool] | None = None) -> Iterator[sqlite3.Connection]:
        """A connection of one's own to read from, at one moment; it never holds a writer up.

        A ledger that was never written reads as an empty one, and no file is made.
        Raises ReadCancelledError as soon as `cancelled()` is true, LedgerError where reading fails.
        """
        with translated(self.path, cancelled):
            connection, file = self._open_reader()
            try:
                if cancelled is not None:
                    connection.set_progress_handler(lambda: int(cancelled()), 20_000)
                connection.execute("BEGIN")
                yield connection
                self._readers.give_back(connection, file)
            except BaseException:
                connection.close()
                raise

    def changed_elsewhere(self) -> bool:
        """Whether another process, or another `Ledger`, has written since the last call.

        True at the first call for a file. Raises LedgerError.
        """
        with self._lock, translated(self.path):
            if self._inode != inode_of(self.path):
                self.close()  # someone moved the file away
            if not self.path.exists():
                return False
            (version,) = self._open().execute("PRAGMA data_version").fetchone()
            before, self._version = self._version, version
            return bool(version != before)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self._version = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._readers.close()
            self._forget_names()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            create(self.path)
            try:
                self._connection = self._prepared()
            except ForeignLedgerError:
                self._set_aside()
                self._connection = self._prepared()
            self._inode = inode_of(self.path)
        return self._connection

    def _prepared(self) -> sqlite3.Connection:
        connection = connect(self.path)
        try:
            use_wal(connection)
            prepare(connection, self._local_day)
        except BaseException:
            connection.close()
            raise
        return connection

    def _local_day(self, milliseconds: int) -> int:
        return local_day(datetime.fromtimestamp(milliseconds / 1000, UTC), self._zone)

    def _set_aside(self) -> None:
        """Rename a file that is no ledger, unless another process has done so meanwhile."""
        with locked(self.path.with_name(f"{self.path.name}.lock"), BUSY_SECONDS):
            try:
                self._prepared().close()
            except ForeignLedgerError as error:
                set_aside(self.path, str(error), beside=("-wal", "-shm"))
                create(self.path)

    def _open_reader(self) -> tuple[sqlite3.Connection, object]:
        with self._lock:
            if self._inode != inode_of(self.path):
                self.close()  # someone moved the file away: what we write to it, nobody would read
            if not self.path.exists():
                connection = sqlite3.connect(":memory:", isolation_level=None)
                prepare(connection, self._local_day)
                return connection, None  # nothing to keep
            self._open()  # a ledger of an earlier version is imported first
            return self._readers.take(self.path)

    def _row(self, connection: sqlite3.Connection, event: LedgerEvent) -> tuple[Any, ...]:
        numbers = checked_numbers(event)
        request = event.request_id
        if request is not None and (len(request) > LONGEST_ID or not request.isascii()):
            check_names(requestId=request)
        is_reported = event.reported_cost is not None
        said = event.reported_cost if is_reported else event.agent_cost
        return (
            None if request is None else _key(event.provider, request),
            request,
            milliseconds(event.at),
            local_day(event.at, self._zone),
            self._session(connection, event),
            self._kind(connection, event),
            REPORTED if is_reported else band(sum(numbers[:_PROMPT_PARTS])),
            *numbers,
            event.estimated_tokens,
            None if said is None else _pico(said),
        )

    def _provider(self, connection: sqlite3.Connection, name: str) -> int:
        known = self._providers.get(name)
        if known is None:
            check_names(provider=name)
            known = _name_id(connection, "provider", ("name",), (name,))
            self._providers[name] = known
        return known

    def _session(self, connection: sqlite3.Connection, event: LedgerEvent) -> int:
        key = (event.workspace, event.session, event.agent)
        known = self._sessions.get(key)
        if known is None:
            check_names(workspace=event.workspace, session=event.session, agent=event.agent)
            columns = ("workspace", "name", "agent")
            values = (workspace_key(event.workspace), event.session, event.agent)
            known = _name_id(connection, "session", columns, values)
            self._sessions[key] = known
        return known

    def _kind(self, connection: sqlite3.Connection, event: LedgerEvent) -> int:
        key = (event.provider, event.model, event.category, event.tier)
        known = self._kinds.get(key)
        if known is None:
            check_names(model=event.model, category=event.category, tier=event.tier)
            provider = self._provider(connection, event.provider)
            values = (provider, event.model, event.category, event.tier)
            columns = ("provider", "model", "category", "tier")
            known = _name_id(connection, "kind", columns, values)
            self._kinds[key] = known
        return known

    def _forget_names(self) -> None:
        self._providers.clear()
        self._sessions.clear()
        self._kinds.clear()


class MemoryLedger(Ledger):
    """A ledger that ends with its process: what is read again holds where no file can be used."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        super().__init__(Path(":memory:"), zone)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            prepare(connection, self._local_day)
            self._connection = connection
        return self._connection

    @contextmanager
    def reader(self, cancelled: Callable[[], bool] | None = None) -> Iterator[sqlite3.Connection]:
        """The one connection, which no other thread uses meanwhile."""
        with self._lock, translated(self.path, cancelled):
            yield self._open()


def usd(pico: int) -> Decimal:
    """USD of a stored amount."""
    return Decimal(pico) / _PICO


def _pico(cost: Decimal) -> int:
    """USD * 10**12 as the ledger stores it: whole numbers add up exactly in SQL."""
    return int((cost * _PICO).to_integral_value(rounding=ROUND_HALF_EVEN))


def _name_id(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    values: tuple[object, ...],
) -> int:
    """The id of a row of names, made where it is new. Table and columns are ours, never input."""
    where = " AND ".join(f"{column} = ?" for column in columns)
    found = connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()  # noqa: S608
    if found is None:
        marks = ", ".join("?" * len(columns))
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
            values,
        )
        found = connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()  # noqa: S608
    return int(found[0])


def _key(provider: str, request: str) -> int:
    """A number for a request id of a provider: 63 bits, so that two rarely share one."""
    digest = blake2b(f"{provider}\0{request}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest) & _KEY_MASK


def _holder(connection: sqlite3.Connection, key: int) -> tuple[Any, ...] | None:
    """Who has the key: id, request, provider, band, reported, buckets."""
    found = connection.execute(
        f"SELECT event.id, request, provider.name, band, reported, {', '.join(BUCKETS)} "  # noqa: S608
        "FROM event JOIN kind ON kind.id = event.kind JOIN provider ON provider.id = kind.provider "
        "WHERE key = ?",
        (key,),
    ).fetchone()
    return None if found is None else tuple(found)


def _amend(
    connection: sqlite3.Connection, row: tuple[Any, ...], event: int, stored: tuple[Any, ...]
) -> None:
    """Replace the numbers of an event by those of `row`, where they hold more output or cost."""
    seen = dict(zip(_COLUMNS, row, strict=True))
    known = dict(zip(("band", "reported", *BUCKETS), stored, strict=True))
    if (_output(seen), seen["reported"] or 0) <= (_output(known), known["reported"] or 0):
        return
    if seen["reported"] is None and known["reported"] is not None:
        is_reported = known["band"] == REPORTED
        band = REPORTED if is_reported else seen["band"]
        seen |= {"reported": known["reported"], "band": band}
    connection.execute(_AMEND, (*(seen[name] for name in _AMENDED), event))


def _output(numbers: dict[str, Any]) -> int:
    return int(numbers["output"] + numbers["reasoning"])
