"""Finds agents' session files and databases without opening them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from pathlib import Path

import msgspec

from sidecar.agents.context_sizes import ContextSizes
from sidecar.agents.folders import Places, Roots, agent_folders, session_folders
from sidecar.agents.session_events import McpToolCall, Store, StoredSession, StoreRead, StoreReader


def store_from_path(agent: str, path: str | Path, *, live: bool = True) -> Store | None:
    """Return the store at a path, or None if there is no regular file at this path."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
        return None
    return Store(agent, str(path), status.st_ino, status.st_size, status.st_mtime_ns, live)


def with_size_of(store: Store, *others: Store) -> Store:
    """Combine the files that make up a store.

    Returns a copy of `store`. The copy has the total size of all given files, and the latest of
    their modification times.
    """
    files = (store, *others)
    size, newest = sum(file.size for file in files), max(file.mtime_ns for file in files)
    return msgspec.structs.replace(store, size=size, mtime_ns=newest)


def database_store(agent: str, path: str | Path) -> Store | None:
    """Return a SQLite database as a store.

    Its size and modification time include those of the write-ahead log.
    """
    found, log = store_from_path(agent, path), store_from_path(agent, f"{path}-wal")
    return with_size_of(found, log) if found and log else found


def database_files(path: str | Path) -> tuple[str, ...]:
    """Return the files that change when a SQLite database is written to."""
    return str(path), f"{path}-wal"


def list_folder(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """Yield a folder's entries. A missing or unreadable folder has no entries."""
    try:
        with os.scandir(folder) as scan:
            yield from scan
    except OSError:
        return


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one. A link in a loop is not a folder."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def walk(folder: str | Path, levels: int = 0) -> Iterator[str]:
    """Yield the paths of all files in a folder and its subfolders.

    Links are followed, as agents do. Each real folder is searched once, if possible by its own
    path. Links to a folder that contains `folder` are not followed.

    Args:
        folder: The folder, which may be missing.
        levels: The number of folder levels to search, including the folder itself, or 0 for all
            levels.
    """
    return (entry.path for entry in _entries_below(str(folder), levels) if not is_folder(entry))


def followed_links(folder: str | Path, levels: int = 0) -> Iterator[str]:
    """Yield the links that `walk` follows. Their targets must be watched separately."""
    return (entry.path for entry in _entries_below(str(folder), levels) if entry.is_symlink())


def _entries_below(folder: str, levels: int) -> Iterator[os.DirEntry[str]]:
    """Yield the files in a folder and its subfolders, and the links to other folders.

    Links come last, so that a file or folder is first reached by its own path.
    """
    searched = {_identity(str(parent)) for parent in Path(os.path.realpath(folder)).parents}
    pending: list[tuple[bool, str, int, os.DirEntry[str] | None]] = [(False, folder, 1, None)]
    while pending:  # not recursive, as folders may be nested too deeply
        is_link, path, level, entry = heappop(pending)
        if entry is not None and is_link and not is_folder(entry):
            yield entry
        elif (identity := _identity(path)) not in searched:
            searched.add(identity)
            if entry is not None and is_link:
                yield entry
            for inner in list_folder(path):
                if not (inner.is_symlink() or is_folder(inner)):
                    yield inner
                elif not (levels and level >= levels and is_folder(inner)):
                    heappush(pending, (inner.is_symlink(), inner.path, level + 1, inner))


def _identity(folder: str) -> tuple[int, int] | None:
    """Return numbers that identify a real folder, or None if there is no folder at this path."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


class FileStores(StoreReader):
    """Base class for readers of agents that store their sessions in files."""

    inner: tuple[str, ...]
    """The folders that contain stores, relative to the agent's data folders."""
    pattern: str
    """A regular expression for the relative paths of stores, with `/` as the separator."""

    @property
    def levels(self) -> int:
        """The number of folder levels to search, or 0 for all levels, if the pattern has `.*`."""
        parts = self.pattern.replace("[^/]", "").split("|")
        return 0 if ".*" in self.pattern else 1 + max(part.count("/") for part in parts)

    def folders(self, places: Places) -> tuple[str, ...]:
        folders = self.searched_folders(places)
        links = (link for folder in folders for link in followed_links(folder, self.levels))
        return tuple(dict.fromkeys((*folders, *links)))

    def searched_folders(self, places: Places) -> tuple[str, ...]:
        """Return the folders that contain stores."""
        homes, named = agent_folders(places, self.agent), self.named_folders(places)
        inside = (home / inner for home in homes for inner in self.inner)
        return tuple(map(str, dict.fromkeys((*inside, *named))))

    def named_folders(self, places: Places) -> tuple[Path, ...]:
        """Return the folders that a variable or a setting of the agent names for its sessions."""
        return session_folders(places, self.agent)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        for folder in self.searched_folders(places):
            yield from self.stores_in(folder, folder)

    def store_at(self, places: Places, path: str) -> Store | None:
        folders = self.searched_folders(places)
        inside = (folder for folder in folders if path.startswith(folder + os.sep))
        return next((self._store_in(folder, path) for folder in inside), None)

    def make_store(self, path: str) -> Store | None:
        """Return the store at a path that matches the pattern, or None if the file is gone."""
        return store_from_path(self.agent, path)

    def stores_in(self, folder: str, start: str) -> Iterator[Store]:
        """Yield the stores below `start`, which is `folder` or a folder inside it."""
        for path in walk(start, self.levels):
            if store := self._store_in(folder, path):
                yield store

    def _store_in(self, folder: str, path: str) -> Store | None:
        relative = path[len(folder) + 1 :].replace(os.sep, "/")
        return self.make_store(path) if re.fullmatch(self.pattern, relative) else None


class TwoStores(StoreReader):
    """Combines the readers for an agent's new and old file formats."""

    def __init__(self, new: StoreReader, old: StoreReader, is_old: Callable[[str], bool]) -> None:
        """Combine two readers.

        Args:
            new: The reader for the new format.
            old: The reader for the old format.
            is_old: Returns whether the store at a path uses the old format.
        """
        self._new, self._old, self._is_old = new, old, is_old
        self.agent = new.agent

    def for_agent(self, agent: str) -> TwoStores:
        return TwoStores(self._new.for_agent(agent), self._old.for_agent(agent), self._is_old)

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Store | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return self._reader_of(store).read(store, state)

    def title(self, store: Store, title_at: str) -> str | None:
        return self._reader_of(store).title(store, title_at)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return self._reader_of(session).window(places, session)

    def compacts_at(self, window: int, model: str) -> int:
        return self._new.compacts_at(window, model)

    def own_full(self, window: int, model: str) -> int | None:
        return self._new.own_full(window, model)

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:
        return (self._old if self._is_old(path) else self._new).made_call(path, session, call)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        (self._old if self._is_old(path) else self._new).measure(path, session, sizes)

    def _reader_of(self, stored: Store | StoredSession) -> StoreReader:
        return self._old if self._is_old(stored.path) else self._new
