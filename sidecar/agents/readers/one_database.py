"""Agents that keep all sessions in one SQLite database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.agents.databases import fold_database, read_only
from sidecar.agents.listing import database, files_of
from sidecar.agents.values import Batch, Found, Glance, Mark, StoredSession

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from sidecar.agents.folding import Folded
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look
    from sidecar.agents.roots import Roots


class Since(msgspec.Struct, frozen=True):
    """The newest change that was read, as the database writes its times."""

    at: str | float | None = None


class OneDatabase(NamedTuple):
    """See `sidecar.agents.reader.Reader`."""

    agent: str
    paths: Callable[[Places], tuple[Path, ...]]
    sessions: Callable[[Found, sqlite3.Connection, Roots], Iterator[StoredSession]]
    fold: Callable[[str, sqlite3.Connection, Since], Folded[Since]]
    """How the database at a path is read."""

    def folders(self, places: Places) -> tuple[str, ...]:
        return tuple(one for path in self.paths(places) for one in files_of(path))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        for path in self.paths(places):
            found = database(self.agent, path)
            if found is not None:
                yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        path = path.removesuffix("-wal").removesuffix("-shm")
        known = map(os.fspath, self.paths(places))
        return database(self.agent, path) if path in known else None

    def glance(self, look: Look) -> Glance:
        found = look.found
        with read_only(found.path) as connection:
            return Glance(found, tuple(self.sessions(found, connection, look.roots)))

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_database(found, mark, Since(), partial(self.fold, found.path))


def whole(number: object) -> int:
    """A column's number of tokens; 0 where it has none."""
    return int(number) if isinstance(number, int | float) and 0 < number <= 10**12 else 0
