"""Index of the agents' sessions, stored in the ledger's database. All functions block.

The `store` table records how much of each store has been read, and `agent_session` contains
the sessions. A store's calls, sessions and reading position are written in one transaction.
If the schema version changes, both tables are dropped and created again. Their data can be read
again from the stores. Recorded calls are kept.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from sidecar import typed
from sidecar.agents.branches import Head, branch_of_call, head_around, resolve, worktrees_around
from sidecar.agents.file_reading import time_from_ns
from sidecar.agents.folders import Places, Roots
from sidecar.agents.reader_registry import Sources, reader_of
from sidecar.agents.session_events import (
    NEVER,
    CallFinished,
    Store,
    StoredSession,
    StoreRead,
    StoreReader,
)
from sidecar.agents.stores import REWOUND
from sidecar.config.safe_files import locked
from sidecar.cost.book import CostBook
from sidecar.cost.ledger import Ledger, translated
from sidecar.cost.ledger_events import LedgerEvent
from sidecar.cost.worktrees import save_worktrees, with_known_worktrees
from sidecar.errors import log_defect
from sidecar.messages.vendor_usage import LONGEST_ID, MOST_TOKENS
from sidecar.models.catalogue import billing_provider

_log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSION = 10
_CALLS_AT_ONCE = 2_000
_STORES_AT_ONCE = 200
_MAX_REST_SECONDS = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MILLISECONDS = 1 << 48
"""More milliseconds than any time since 1970 that a store may contain."""


_FIELDS = [
    field
    for field in StoredSession.__struct_fields__
    if field not in ("source", "title", "first_prompt", "path", "unread_names", "subagents")
]
_COLUMNS = [f'"{field}"' for field in _FIELDS]  # `limit` is a word of SQL
_TABLES = (
    "CREATE TABLE store (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, agent TEXT NOT NULL, "
    "inode INTEGER NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, "
    "live INTEGER NOT NULL, state BLOB NOT NULL)",
    f"CREATE TABLE agent_session (store INTEGER NOT NULL, {', '.join(_COLUMNS)}, "
    "PRIMARY KEY (store, id)) WITHOUT ROWID",
    "CREATE TABLE index_form (version INTEGER NOT NULL)",
    f"INSERT INTO index_form VALUES ({_VERSION})",  # noqa: S608
)


_UPSERT = (
    f"INSERT INTO agent_session (store, {', '.join(_COLUMNS)}) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(_COLUMNS) + 1))}) ON CONFLICT (store, id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != '"first_folder"')
    + ", first_folder = coalesce(first_folder, excluded.first_folder)"
)


class StoreRow(NamedTuple):
    """A row in the `store` table."""

    id: int
    agent: str
    stamp: tuple[int, int, int]
    """The store's stamp when it was last read completely."""
    state: bytes = b""
    """The reader's state, which can be large. Left empty when all rows are loaded at once."""


class Unread(NamedTuple):
    """The calls that the ledger lacks, because session files have not been read yet."""

    sessions: frozenset[str]
    """The IDs of indexed sessions that may have unread calls."""
    before: datetime
    """The time of the newest unread file. The ledger has all later calls."""


class IngestResult(NamedTuple):
    """The result of reading session files."""

    calls: int = 0
    """Number of new calls in the ledger."""
    refused: int = 0
    """Number of calls rejected because of invalid values."""
    bytes_read: int = 0
    is_complete: bool = True
    """Whether every store was tried. False if reading was stopped early."""
    unread: Unread | None = None
    """What the ledger still lacks, also of stores that could not be read."""
    has_new_costs: bool = False
    """Whether any calls were recorded or changed."""


class IngestControl(NamedTuple):
    """Options for stopping, slowing down and monitoring a read."""

    stop: threading.Event
    rest: float = 0.0
    """Seconds to pause per second of work."""
    progress: Callable[[float], None] = lambda _: None
    """Called with the completed fraction, from 0 to 1."""


class SessionIndex:
    """The index of agents' sessions. Safe to use from several threads and processes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def unread(self, stores: Iterable[Store], max_bytes: int | None = None) -> list[Store]:
        """Return the stores with unread contents, newest first.

        Skips stores with a path that is not valid UTF-8.

        Args:
            stores: The stores.
            max_bytes: Limit for the total size of the returned stores.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        stores = [one for one in stores if _text_or_none(one.path)]
        few = len(stores) <= _STORES_AT_ONCE
        with self._ledger.reader() as connection:
            rows = _store_rows(connection, [one.path for one in stores] if few else None)
        found = (one for one in stores if not (row := rows.get(one.path)) or row.stamp != one.stamp)
        newest = sorted(found, key=lambda one: -one.mtime_ns)
        if max_bytes is None:
            return newest
        sizes = itertools.accumulate(store.size for store in newest)
        return [store for store, size in zip(newest, sizes, strict=True) if size <= max_bytes]

    def find_unread(self, stores: Iterable[Store]) -> Unread | None:
        """Return what the ledger lacks, or None if no store has unread contents.

        A part of the path of a sub-agent's store is usually the ID of the session that started the
        sub-agent. Otherwise, the store may belong to any of the agent's sessions.

        Raises LedgerError.
        """
        unread = self.unread(stores)
        if not unread:
            return None
        with self._ledger.reader() as connection:
            columns = "agent, path, coalesce(subagent_of, id)"
            rows = _select_sessions(connection, columns, "1")
        by_path, by_agent = dict[str, set[str]](), dict[str, set[str]]()
        for agent, path, name in rows:
            by_path.setdefault(path, set()).add(name)
            by_agent.setdefault(agent, set()).add(name)
        found = set[str]()
        for store in unread:
            names = by_path.get(store.path, set())
            if not store.live and not names:
                of_agent = by_agent.get(store.agent, set())
                path = Path(store.path)
                names = of_agent.intersection((*path.parts, path.stem)) or of_agent
            found |= names
        return Unread(frozenset(found), time_from_ns(unread[0].mtime_ns))

    def read(
        self,
        readers: Sequence[StoreReader],
        stores: Iterable[Store],
        control: IngestControl | None = None,
    ) -> IngestResult:
        """Read new contents from the given stores.

        Args:
            readers: The readers for the stores' agents.
            stores: The stores in reading order.
            control: Options for stopping or slowing down.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        control = control or IngestControl(threading.Event())
        by_agent = {one.agent: one for one in readers}
        wanted = list(stores)
        if wanted:
            with self._ledger.transaction() as connection:
                _create_tables(connection)
        whole_size = max(1, sum(one.size for one in wanted))
        done, began = IngestResult(), time.monotonic()
        readings = _read_stores(by_agent, wanted, self._rows_of)
        for some in _batches(readings, control.stop):
            head_of = cache(head_around)
            events = [event for one in some for event in one.events(head_of)]

            worktrees = _worktrees_of(some)

            def also(
                connection: sqlite3.Connection,
                some: list[_Reading] = some,
                worktrees: dict[str, str] = worktrees,
            ) -> None:
                _create_tables(connection)
                save_worktrees(connection, worktrees)
                for one in some:
                    _save_reading(connection, one)

            batch = self._ledger.record_many(events, also=also)
            done = IngestResult(
                done.calls + len(batch.new),
                done.refused + batch.refused,
                done.bytes_read + sum(one.read.bytes_read for one in some),
                has_new_costs=done.has_new_costs or batch.has_changes,
            )
            control.progress(min(1.0, done.bytes_read / whole_size))
            took = time.monotonic() - began
            if control.stop.wait(min(_MAX_REST_SECONDS, took * control.rest)):
                return done._replace(is_complete=False)
            began = time.monotonic()
        if done.refused:
            _log.warning("ignored %d calls with invalid values in session files", done.refused)
        return done

    def forget_missing(
        self, readers: Iterable[StoreReader], stores: Iterable[Store], roots: Roots | None = None
    ) -> None:
        """Remove the sessions of deleted stores. Their calls are kept.

        Args:
            readers: The readers for the agents.
            stores: The stores that exist. Other stores are looked up on the disk.
            roots: If set, only stores with a session in these folders are removed.

        Raises:
            LedgerError: The ledger cannot be read or written.
        """
        agents, existing = {one.agent for one in readers}, {store.path for store in stores}
        with self._ledger.reader() as connection:
            if roots is None:
                found = [(row.agent, path) for path, row in _store_rows(connection).items()]
            else:
                found = _select_sessions(
                    connection, "DISTINCT agent, path", _in_roots(connection, roots)
                )
        self.forget([path for agent, path in found if agent in agents and path not in existing])

    def forget(self, paths: Collection[str]) -> None:
        """Remove the given stores' sessions if the stores have been deleted.

        Their calls are kept. Raises LedgerError.
        """
        paths = [path for path in paths if _text_or_none(path) and not os.path.exists(path)]
        if not paths:
            return
        with self._ledger.transaction() as connection:
            gone = [row.id for row in _store_rows(connection, paths).values()]
            for table, column in (("agent_session", "store"), ("store", "id")) if gone else ():
                connection.executemany(
                    f"DELETE FROM {table} WHERE {column} = ?",  # noqa: S608
                    ((one,) for one in gone),
                )

    def sessions(
        self, sources: Sources, since_ms: int = 0, *, with_names: bool = True
    ) -> list[StoredSession]:
        """Return the roots' sessions, newest first.

        A session in several stores is returned once. Titles and first prompts are read from the
        stores.

        Args:
            sources: The agents' readers and folders, and the workspace's folders.
            since_ms: Older sessions are skipped, except for the newest session of each agent.
            with_names: Whether to read titles and prompts now. If not, call `read_name` later.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        by_agent = {one.agent: one for one in sources.readers}
        with self._ledger.reader() as connection:
            where = f"subagent_of IS NULL AND ({_in_roots(connection, sources.roots)})"
            found = _join_sessions(connection, where)
        best: dict[tuple[str, str], list[_Row]] = {}
        for row in (one for one in found if one.store.agent in by_agent):
            best.setdefault((row.store.agent, row.session.id), []).append(row)
        for rows in best.values():
            rows.sort(key=_rank_of_row, reverse=True)
        shown: list[StoredSession] = []
        agents: set[str] = set()
        for rows in sorted(
            best.values(), key=lambda rows: rows[0].session.updated_at, reverse=True
        ):
            agent = rows[0].store.agent
            old = max(row.store.mtime_ns for row in rows) // 1_000_000 < since_ms
            if old and agent in agents:
                continue
            agents.add(agent)
            session = _merge_rows(rows, by_agent[agent], sources.places)
            if with_names:
                session = read_name(session, by_agent[agent], with_prompts=sources.with_prompts)
            shown.append(session)
        with self._ledger.reader() as connection:
            return _with_subagents(connection, shown)

    def read_session(
        self, reader: StoreReader, places: Places, store: Store
    ) -> StoredSession | None:
        """Read a store, and return its newest session without its name. Raises LedgerError."""
        self.read([reader], self.unread([store]))
        with self._ledger.reader() as connection:
            rows = _join_sessions(connection, "path = ?", (store.path,))
        return _merge_rows([max(rows, key=_rank_of_row)], reader, places) if rows else None

    def _rows_of(self, stores: Sequence[Store]) -> dict[str, StoreRow]:
        with self._ledger.reader() as connection:
            return _store_rows(connection, [one.path for one in stores])


class _Reading(NamedTuple):
    store: Store
    before: bytes | None
    """The reader's state before the store was read, or None for a new store."""
    read: StoreRead

    @property
    def has_recorded_calls(self) -> bool:
        """Whether the calls may already be in the ledger under other IDs."""
        return self.read.has_lost_state and self.before is not None

    def events(self, head_of: Callable[[str], Head | None]) -> Iterator[LedgerEvent]:
        sessions = {session.id: session for session in self.read.sessions}
        for call in self.read.calls:
            if not (call.is_unread_past and self.has_recorded_calls):
                rank = _rank_of_call(call, sessions.get(call.session))
                head = head_of(call.workspace) if os.path.isabs(call.workspace) else None
                yield make_ledger_event(call, self.store.agent, rank, head)


class _Row(NamedTuple):
    store: Store
    session: StoredSession


def _read_stores(
    readers: dict[str, StoreReader],
    stores: Sequence[Store],
    rows_of: Callable[[Sequence[Store]], dict[str, StoreRow]],
) -> Iterator[_Reading]:
    for start in range(0, len(stores), _STORES_AT_ONCE):
        some = stores[start : start + _STORES_AT_ONCE]
        rows = rows_of(some)
        for store in some:
            row = rows.get(store.path)
            try:
                yield from _read_in_steps(readers[store.agent], store, row)
            except OSError as error:
                why = error.strerror or "damaged"
                _log.info("cannot read a session file (%s): %s", store.agent, why)
            except Exception as exc:  # a damaged store must not stop the others from being read
                log_defect(exc, f"{store.agent} session file")
                # Mark the store as read, so it is not read again until it changes.
                failed = StoreRead(has_all_sessions=False, state=row.state if row else b"")
                yield _Reading(store, row and row.state, failed)


def _read_in_steps(reader: StoreReader, store: Store, row: StoreRow | None) -> Iterator[_Reading]:
    if row is not None and row.stamp == store.stamp:
        return
    before, is_complete = row and row.state, False
    while not is_complete:
        read = reader.read(store, before or b"")
        yield _Reading(store, before, read)
        before, is_complete = read.state, read.is_complete


def _worktrees_of(readings: Iterable[_Reading]) -> dict[str, str]:
    """Return the worktrees of the repositories that the sessions and calls belong to."""
    folders = {call.workspace for one in readings for call in one.read.calls}
    sessions = (session for one in readings for session in one.read.sessions)
    for session in sessions:
        for text in (session.first_folder, session.folder):
            folders.update((_text_or_none(text) or "").split("\n"))
    found: dict[str, str] = {}
    for folder in folders:
        if os.path.isabs(folder) and _text_or_none(folder):
            found |= worktrees_around(folder)
    return {
        path: repository for path, repository in found.items() if _text_or_none(path + repository)
    }


def _batches(readings: Iterator[_Reading], stop: threading.Event) -> Iterator[list[_Reading]]:
    """Group the stores' changes into batches. One commit per store would be slow.

    A batch ends early if `stop` is set.
    """
    some: list[_Reading] = []
    events = 0
    for one in readings:
        some.append(one)
        events += len(one.read.calls)
        is_full = events >= _CALLS_AT_ONCE or len(some) >= _STORES_AT_ONCE
        if is_full or not one.read.is_complete or stop.is_set():
            yield some
            some, events = [], 0
    if some:
        yield some


def _save_reading(connection: sqlite3.Connection, one: _Reading) -> None:
    """Save what was read from a store, unless another process has updated the store."""
    store, read = one.store, one.read
    known = _store_rows(connection, [store.path]).get(store.path)
    if (known.state if known else b"") != (one.before or b""):
        return
    stamp = store.stamp if read.is_complete and read.is_settled else (0, 0, 0)
    connection.execute(
        "INSERT INTO store (path, agent, inode, size, mtime_ns, live, state) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET inode = excluded.inode, "
        "size = excluded.size, mtime_ns = excluded.mtime_ns, state = excluded.state",
        (store.path, store.agent, *stamp, store.live, read.state),
    )
    (number,) = connection.execute("SELECT id FROM store WHERE path = ?", (store.path,)).fetchone()
    if read.has_all_sessions:
        connection.execute("DELETE FROM agent_session WHERE store = ?", (number,))
    connection.executemany(
        _UPSERT,
        (
            (number, *_values_of(session, store))
            for session in read.sessions
            if _is_name(session.id)
        ),
    )


def _values_of(session: StoredSession, store: Store) -> list[Any]:
    """Return the values of a session's columns."""
    session = _without_impossible_values(session)
    if session.updated_at == NEVER:
        session = msgspec.structs.replace(session, updated_at=time_from_ns(store.mtime_ns))
    values = msgspec.to_builtins(session, builtin_types=(bytes,))
    return [values[field] for field in _FIELDS]


def _without_impossible_values(session: StoredSession) -> StoredSession:
    """Return a session with invalid values replaced by None. The store may be hostile."""
    return msgspec.structs.replace(
        session,
        first_folder=_text_or_none(session.first_folder),
        folder=_text_or_none(session.folder),
        model=session.model if _is_name(session.model) else None,
        parent=session.parent if _is_name(session.parent) else None,
        subagent_of=session.subagent_of if _is_name(session.subagent_of) else None,
        branch=session.branch if _is_name(session.branch) else None,
        title_at=session.title_at if _is_name(session.title_at) else None,
        tokens=_tokens_or_none(session.tokens),
        limit=_tokens_or_none(session.limit),
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= LONGEST_ID and _text_or_none(name) is not None


def _text_or_none(text: object) -> str | None:
    """Return a text, or None if it cannot be stored, because it is not valid UTF-8."""
    if not isinstance(text, str):
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _tokens_or_none(number: object) -> int | None:
    return number if isinstance(number, int) and 0 <= number <= MOST_TOKENS else None


def _create_tables(connection: sqlite3.Connection) -> None:
    if _has_tables(connection):
        return
    known: list[tuple[object, ...]] = []
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'store'").fetchone():
        known = connection.execute("SELECT path, agent, live FROM store").fetchall()
    for table in ("store", "agent_session", "index_form"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _TABLES:
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO store (path, agent, live, inode, size, mtime_ns, state) "
        "VALUES (?, ?, ?, 0, 0, 0, x'')",
        known,
    )


def _has_tables(connection: sqlite3.Connection) -> bool:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'index_form'").fetchone()
    if known is None:
        return False
    return bool(connection.execute("SELECT version FROM index_form").fetchone() == (_VERSION,))


def _store_rows(
    connection: sqlite3.Connection, paths: Collection[str] | None = None
) -> dict[str, StoreRow]:
    if not _has_tables(connection):
        return {}
    query = "SELECT path, id, agent, inode, size, mtime_ns{} FROM store"
    if paths is None:
        rows = connection.execute(query.format("")).fetchall()
    else:
        with_state = query.format(", state") + " WHERE path = ?"
        rows = [row for path in paths for row in connection.execute(with_state, (path,))]
    return {row[0]: StoreRow(row[1], row[2], row[3:6], *row[6:]) for row in rows}


def _select_sessions(
    connection: sqlite3.Connection, columns: str, where: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Return the given columns of sessions, joined with the sessions' stores."""
    if not _has_tables(connection):
        return []
    stores = "SELECT id AS store, agent, path, inode, size, mtime_ns, live FROM store"
    query = f"SELECT {columns} FROM agent_session JOIN ({stores}) USING (store) WHERE {where}"  # noqa: S608
    return connection.execute(query, values).fetchall()


def _in_roots(connection: sqlite3.Connection, roots: Roots) -> str:
    """Return the condition that a session belongs to the roots."""
    roots = Roots(with_known_worktrees(connection, roots.paths))
    connection.create_function("is_ours", 1, lru_cache(roots.contains))
    return "is_ours(first_folder) OR is_ours(folder)"


def _with_subagents(
    connection: sqlite3.Connection, sessions: Sequence[StoredSession]
) -> list[StoredSession]:
    """Return sessions with their sub-agents, wherever these work."""
    names = {session.id for session in sessions}
    connection.create_function("is_shown", 1, names.__contains__)
    rows = _join_sessions(connection, "subagent_of IS NOT NULL AND is_shown(subagent_of)")
    rows.sort(key=_rank_of_row)
    best = {(row.store.agent, row.session.id): row for row in rows}
    found: dict[tuple[str, str | None], list[StoredSession]] = {}
    for row in sorted(best.values(), key=lambda row: row.session.updated_at, reverse=True):
        key = row.store.agent, row.session.subagent_of
        session = msgspec.structs.replace(row.session, source=row.store.agent, path=row.store.path)
        found.setdefault(key, []).append(session)
    return [
        msgspec.structs.replace(session, subagents=tuple(below))
        if (below := found.get((session.source, session.id)))
        else session
        for session in sessions
    ]


def _join_sessions(
    connection: sqlite3.Connection, where: str, values: Sequence[object] = ()
) -> list[_Row]:
    columns = ", ".join(("agent, path, inode, size, mtime_ns, live", *_COLUMNS))
    rows = _select_sessions(connection, columns, where, values)
    found = [dict(zip(_FIELDS, row[6:], strict=True)) for row in rows]
    sessions = typed.convert(found, list[StoredSession], strict=False)
    return [
        _Row(Store(agent, path, inode, size, mtime_ns, bool(live)), session)
        for (agent, path, inode, size, mtime_ns, live, *_), session in zip(
            rows, sessions, strict=True
        )
    ]


def _merge_rows(rows: Sequence[_Row], reader: StoreReader, places: Places) -> StoredSession:
    """Combine a session's rows from all of its stores. The most important row must be first."""
    store, session = rows[0]
    if len(rows) > 1:
        session = _with_missing_values(session, [row.session for row in rows])
    session = msgspec.structs.replace(
        session,
        source=store.agent,
        path=store.path,
        unread_names=tuple((row.store, row.session.title_at) for row in rows),
    )
    limit = session.limit or reader.window(places, session)
    return msgspec.structs.replace(session, limit=limit)


def _with_missing_values(best: StoredSession, sessions: Sequence[StoredSession]) -> StoredSession:
    """Return `best` with missing values taken from the session's other stores."""
    size = next((one for one in sessions if one.tokens is not None), best)
    if best.compacted or best.note == REWOUND:
        # The session's other stores still contain its size from before the compaction or rewind.
        size = best

    def first(field: str) -> Any:
        values = (getattr(one, field) for one in sessions)
        return next((value for value in values if value is not None), None)

    return msgspec.structs.replace(
        best,
        model=first("model"),
        tokens=size.tokens,
        limit=size.limit or first("limit"),
        quality=size.quality,
        error_percent=size.error_percent,
        compacted=size.compacted,
        note=size.note,
        branch=first("branch"),
        began_at=first("began_at"),
        active=first("active"),
        sizes=first("sizes"),
    )


def _rank_of_row(row: _Row) -> tuple[int, datetime]:
    return row.session.rank, row.session.updated_at


def _ask_reader(agent: str, ask: Callable[[], T]) -> T | None:
    """Call a function that reads a session file. Returns None on failure."""
    try:
        return ask()
    except OSError:
        return None
    except Exception as exc:
        log_defect(exc, f"{agent} session file")
        return None


def read_name(
    session: StoredSession, reader: StoreReader | None = None, *, with_prompts: bool
) -> StoredSession:
    """Return a session with its title, or with its first prompt if it has no title.

    Args:
        session: The session.
        reader: The reader of the session's agent. Defaults to the agent's usual reader.
        with_prompts: Whether to read the first prompt of a session without a title.
    """
    if not session.unread_names:
        return session
    titles = (
        _read_title(reader or reader_of(session.source), store, at)
        for store, at in session.unread_names
        if at is not None
    )
    title = next(filter(None, titles), None)
    prompt = _first_prompt(session) if with_prompts and title is None else None
    return msgspec.structs.replace(session, title=title, first_prompt=prompt, unread_names=())


def _read_title(reader: StoreReader, store: Store, at: str) -> str | None:
    title: object = _ask_reader(store.agent, lambda: reader.title(store, at))
    return title[:LONGEST_ID] if isinstance(title, str) else None


def _first_prompt(session: StoredSession) -> str | None:
    for store, _ in session.unread_names:
        key = store.agent, store.path, session.id, store.mtime_ns
        if prompt := _ask_reader(store.agent, partial(_read_first_prompt, *key)):
            return prompt
    return None


@lru_cache(maxsize=256)
def _read_first_prompt(agent: str, path: str, session: str, _mtime_ns: int) -> str | None:
    """Read a session's first prompt. The result is cached until the session changes."""
    from sidecar.agents.context_sizes import first_prompt

    return first_prompt(partial(reader_of(agent).measure, path, session))


def _rank_of_call(call: CallFinished, session: StoredSession | None) -> int:
    """Return the rank of a session among those that have the same call.

    A copy comes last, and a sub-agent comes after the conversation that started it. Of several
    copies, the one that began first comes first. Sessions that say nothing about a copy, such as
    those that Claude Code resumed under a new ID, continue the original. It ends first.
    """
    level = 2 if call.is_copy else 1 if call.category == "subagent" else 0
    at = None
    if session is not None:
        at = session.began_at if call.is_copy else session.updated_at
    since = 0 if at is None or at <= _EPOCH else int(at.timestamp() * 1000)
    return level * _MOST_MILLISECONDS + since


def make_ledger_event(
    call: CallFinished, agent: str, rank: int | None = None, head: Head | None = None
) -> LedgerEvent:
    """Return a call as the ledger records it.

    Args:
        call: The call.
        agent: The agent's name.
        rank: The rank of the call's session (`LedgerEvent.rank`).
        head: What is checked out in the call's folder, or None if unknown.
    """
    branch = branch_of_call(call.branch, call.at, head)
    return msgspec.structs.replace(
        call,
        agent=agent,
        rank=rank,
        provider=billing_provider(call.provider, call.model),
        workspace=_folder_uri(call.workspace),
        branch=branch if _is_name(branch) else "",
    )


@lru_cache(maxsize=4096)
def _folder_uri(folder: str) -> str:
    return Path(resolve(folder)).as_uri() if os.path.isabs(folder) else folder


LOCK_NAME = "agents.lock"


def find_unread(book: CostBook, sources: Sources) -> Unread | None:
    """Return what the ledger lacks from the roots' session files, or None if it has all calls.

    Raises LedgerError.
    """
    return SessionIndex(book.ledger).find_unread(sources.stores())


def read_all(
    book: CostBook, sources: Sources, *, mine: bool, control: IngestControl | None = None
) -> IngestResult:
    """Read all agents' stores, newest first, unless another process is reading them.

    Args:
        book: The ledger and its prices.
        sources: The files to read.
        mine: Whether to read only stores that may contain sessions in the roots.
        control: Options for stopping, slowing down and monitoring.

    Raises:
        LedgerError: The ledger cannot be written.
    """
    index, stores = SessionIndex(book.ledger), sources.stores(mine=mine)
    path = book.ledger.path
    with translated(path), locked(path.with_name(LOCK_NAME), 0.0) as alone:
        result = IngestResult()
        if alone:
            if not mine:
                index.forget_missing(sources.readers, stores)
            book.prices.load()
            result = index.read(sources.readers, index.unread(stores), control)
    unread = index.find_unread(stores)
    is_complete = unread is None or (alone and result.is_complete)
    return result._replace(is_complete=is_complete, unread=unread)
