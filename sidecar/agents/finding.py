"""Finds the session stores of agents without opening them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sidecar.agents.events import Store, StoreRead, StoreReader
from sidecar.agents.places import agent_folders

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.contents import ContentEntry
    from sidecar.agents.events import StoredSession
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots


def store_from_path(agent: str, path: str | Path, *, live: bool = True) -> Store | None:
    """Return the store at a path, or None if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
        return None
    return Store(agent, str(path), status.st_ino, status.st_size, status.st_mtime_ns, live)


def database_store(agent: str, path: str | Path) -> Store | None:
    """Return a SQLite store. Its size and time include the write-ahead log."""
    found, log = store_from_path(agent, path), store_from_path(agent, f"{path}-wal")
    if found is None or log is None:
        return found
    newest = max(found.mtime_ns, log.mtime_ns)
    return Store(agent, found.path, found.inode, found.size + log.size, newest)


def database_files(path: str | Path) -> tuple[str, ...]:
    """Return the files that change with a SQLite database."""
    return str(path), f"{path}-wal"


def list_folder(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, or none if it is missing or unreadable."""
    try:
        with os.scandir(folder) as scan:
            yield from scan
    except OSError:
        return


def find_files(
    agent: str, folder: str | Path, *suffixes: str, live: bool = True
) -> Iterator[Store]:
    """Yield the files in a folder that have one of the suffixes. Links are not followed."""
    stack = [list_folder(folder)]  # folders may be nested too deeply for recursion
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        elif entry.is_dir(follow_symlinks=False):
            stack.append(list_folder(entry.path))
        elif entry.name.endswith(suffixes):
            yield from stores_from_entry(agent, entry, live=live)


def stores_from_entry(agent: str, entry: os.DirEntry[str], *, live: bool = True) -> Iterator[Store]:
    """Yield the store of a directory entry, unless the file is gone."""
    found = store_from_path(agent, entry.path, live=live)
    if found is not None:
        yield found


class LineFiles:
    """Finds all files with the given suffixes in an agent's folders."""

    agent: str
    inner: str
    """Path of the files inside the agent's folders."""
    suffixes: tuple[str, ...] = (".jsonl",)

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.events.StoreReader`."""
        return tuple(str(home / self.inner) for home in agent_folders(places, self.agent))

    def is_store(self, path: str) -> bool:
        """Return whether a file is a store, judged by its name."""
        return path.endswith(self.suffixes)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        """See `sidecar.agents.events.StoreReader`."""
        for folder in self.folders(places):
            for found in find_files(self.agent, folder, *self.suffixes):
                if self.is_store(found.path):
                    yield found

    def store_at(self, places: Places, path: str) -> Store | None:
        """See `sidecar.agents.events.StoreReader`."""
        inside = any(path.startswith(folder + os.sep) for folder in self.folders(places))
        return store_from_path(self.agent, path) if inside and self.is_store(path) else None


class NamedFiles:
    """Finds files with a fixed name, each in a folder of its own."""

    agent: str
    inner: str
    """Path of those folders inside the agent's folders."""
    name: str
    live = True

    def holders(self, places: Places) -> tuple[str, ...]:
        """Return the folders that contain the stores' folders."""
        return tuple(str(home / self.inner) for home in agent_folders(places, self.agent))

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.events.StoreReader`."""
        return self.holders(places)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        """See `sidecar.agents.events.StoreReader`."""
        for folder in self.holders(places):
            for entry in list_folder(folder):
                found = store_from_path(
                    self.agent, os.path.join(entry.path, self.name), live=self.live
                )
                if found is not None:
                    yield found

    def store_at(self, places: Places, path: str) -> Store | None:
        """See `sidecar.agents.events.StoreReader`."""
        folder, name = os.path.split(path)
        inside = name == self.name and os.path.dirname(folder) in self.holders(places)
        return store_from_path(self.agent, path, live=self.live) if inside else None


class TwoStores(StoreReader):
    """Combines the readers of a new and an old format."""

    def __init__(self, new: StoreReader, old: StoreReader, is_old: Callable[[str], bool]) -> None:
        """Args:
        new: The reader of the new format.
        old: The reader of the old format.
        is_old: Returns whether the store at a path has the old format.
        """
        self._new, self._old, self._is_old = new, old, is_old

    @property
    def agent(self) -> str:
        return self._new.agent

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Store | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def is_copy(self, store: Store) -> bool:
        return self._reader_of(store).is_copy(store)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return self._reader_of(store).read(store, state)

    def title(self, store: Store, title_at: str) -> str | None:
        return self._reader_of(store).title(store, title_at)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return self._reader_of(session).window(places, session)

    def contents(self, path: str, session: str) -> Iterable[ContentEntry]:
        return (self._old if self._is_old(path) else self._new).contents(path, session)

    def _reader_of(self, stored: Store | StoredSession) -> StoreReader:
        return self._old if self._is_old(stored.path) else self._new
