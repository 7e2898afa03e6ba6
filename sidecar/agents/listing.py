"""Finds session stores without opening them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from sidecar.agents.events import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
