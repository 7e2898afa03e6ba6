"""Base class for agents that keep all sessions in one SQLite database."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar.agents.databases import columns, read_database, read_only
from sidecar.agents.events import CallFinished, Store, StoreRead, StoreReader
from sidecar.agents.listing import database_files, database_store
from sidecar.agents.stores import SessionState, StoreContents
from sidecar.messages.bounds import LONGEST_ID

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots


class DatabaseState(msgspec.Struct):
    """The state of a database."""

    at: str | float | None = None
    """Time of the newest change, in the database's own unit."""
    sessions: dict[str, SessionState] = msgspec.field(default_factory=dict)
    """Main conversations by id."""
    skipped: int = 0
    """Number of broken rows in the last reading."""

    def passed(self, at: object) -> None:
        """Record the time of a row."""
        if isinstance(at, str | int | float):
            both = (self.at, at) if isinstance(at, type(self.at)) else (at,)
            self.at = max(both)  # type: ignore[type-var]


class OneDatabase(StoreReader):
    """See `sidecar.agents.events.StoreReader`."""

    table: str
    """The table of sessions."""

    def paths(self, places: Places) -> tuple[Path, ...]:
        """Return the paths of the agent's databases."""
        raise NotImplementedError

    def changes(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterable[CallFinished]:
        """Apply the rows that changed since `state.at`. Returns their calls."""
        raise NotImplementedError

    def title_of(self, row: dict[str, Any]) -> object:
        """Return the title in a row of the table of sessions."""
        raise NotImplementedError

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
                return text(self.title_of(row))
        return None

    def _read_contents(
        self, path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> StoreContents:
        state.skipped = 0
        calls = [*self.changes(path, connection, state)]
        if state.sessions:
            ids = connection.execute(f"SELECT id FROM {self.table}")  # noqa: S608
            known = {str(row[0]) for row in ids}
            state.sessions = {name: one for name, one in state.sessions.items() if name in known}
        sessions = [session.snapshot() for session in state.sessions.values()]
        return StoreContents(calls, sessions, state.skipped)


def rows(
    connection: sqlite3.Connection, table: str, where: str = "1", *values: object
) -> Iterator[dict[str, Any]]:
    """Yield rows with their column names, or none if the table does not exist."""
    if not columns(connection, table):
        return
    cursor = connection.execute(f"SELECT * FROM {table} WHERE {where}", values)  # noqa: S608
    names = [one[0] for one in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def whole(number: object) -> int:
    """Return a column's number of tokens, or 0 if it is not a number."""
    return int(number) if isinstance(number, int | float) and 0 < number <= 10**12 else 0


def text(value: object) -> str | None:
    """Return a column's text, shortened to the longest allowed name, or None if it is not a
    text."""
    return value[:LONGEST_ID] if isinstance(value, str) and value else None
