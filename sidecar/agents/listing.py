"""Session stores by directory listings alone."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from sidecar.agents.events import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def store_from_path(agent: str, path: str | Path, *, live: bool = True) -> Store | None:
    """One store that may be there; None where it is not, or is no regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # who opens a FIFO waits for its writer
        return None
    return Store(agent, str(path), status.st_ino, status.st_size, status.st_mtime_ns, live)


def database_store(agent: str, path: str | Path) -> Store | None:
    """A SQLite store, as large and as new as it is with its write-ahead log."""
    found, log = store_from_path(agent, path), store_from_path(agent, f"{path}-wal")
    if found is None or log is None:
        return found
    newest = max(found.mtime_ns, log.mtime_ns)
    return Store(agent, found.path, found.inode, found.size + log.size, newest)


def database_files(path: str | Path) -> tuple[str, ...]:
    """What of a SQLite store changes with it."""
    return str(path), f"{path}-wal"


def list_folder(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder; nothing where there is none or it may not be read."""
    try:
        with os.scandir(folder) as scan:
            yield from scan
    except OSError:
        return


def find_files(
    agent: str, folder: str | Path, *suffixes: str, live: bool = True
) -> Iterator[Store]:
    """All files with one of these suffixes in a folder and in its folders, links not followed."""
    stack = [list_folder(folder)]  # folders may be nested deeper than Python calls
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        elif entry.is_dir(follow_symlinks=False):
            stack.append(list_folder(entry.path))
        elif entry.name.endswith(suffixes):
            yield from stores_from_entry(agent, entry, live=live)


def stores_from_entry(agent: str, entry: os.DirEntry[str], *, live: bool = True) -> Iterator[Store]:
    """The store that an entry is; nothing where it has vanished."""
    found = store_from_path(agent, entry.path, live=live)
    if found is not None:
        yield found
