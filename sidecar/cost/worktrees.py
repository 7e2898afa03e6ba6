"""The git worktrees that the ledger remembers.

Hooks also use this module. It imports little, because a prompt waits for them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping


def with_known_worktrees(connection: sqlite3.Connection, folders: Iterable[str]) -> tuple[str, ...]:
    """Return folders, and all former and current worktrees of their repositories."""
    folders, rows = tuple(folders), _worktree_rows(connection)
    repositories = {repository for folder, repository in rows if folder in folders}
    others = (folder for folder, repository in rows if repository in repositories)
    return tuple(dict.fromkeys((*folders, *others)))


def _worktree_rows(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the folder and the repository of each known worktree."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'worktree'").fetchone():
        return []
    return connection.execute("SELECT folder, repository FROM worktree").fetchall()


_WORKTREES = (
    "CREATE TABLE IF NOT EXISTS worktree "
    "(folder TEXT PRIMARY KEY, repository TEXT NOT NULL) WITHOUT ROWID"
)


def save_worktrees(connection: sqlite3.Connection, worktrees: Mapping[str, str]) -> None:
    """Remember to which repository each folder belongs, because git forgets removed worktrees."""
    if changed := unsaved_worktrees(connection, worktrees):
        connection.execute(_WORKTREES)
        connection.executemany("REPLACE INTO worktree VALUES (?, ?)", changed)


def unsaved_worktrees(
    connection: sqlite3.Connection, worktrees: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the folders whose repository has not been saved yet."""
    known = dict(_worktree_rows(connection))
    return [item for item in worktrees.items() if known.get(item[0]) != item[1]]


def nested_repositories(connection: sqlite3.Connection, folders: Iterable[str]) -> dict[str, str]:
    """Return the URIs and names of other repositories' folders inside a workspace's folders.

    Their branches may have the same names as those of the workspace's own repository.

    Args:
        connection: The ledger.
        folders: The URIs of the workspace's folders.
    """
    places = [_with_slash(place) for place in folders]
    tops = {_with_slash(folder_uri(path)): one for path, one in _worktree_rows(connection)}
    around = {
        top: repository
        for top, repository in tops.items()
        if any(place.startswith(top) for place in places)
    }
    own = {tops[max(around, key=len)]} if around else set[str]()
    return {
        top.rstrip("/"): unquote(top.rstrip("/").rpartition("/")[2])
        for top, repository in tops.items()
        if repository not in own and any(top.startswith(place) for place in places)
    }


def folder_uri(path: str) -> str:
    """Return the `file:` URI of an absolute path."""
    return Path(path).as_uri() if os.path.isabs(path) else path


def _with_slash(uri: str) -> str:
    return uri.rstrip("/") + "/"


def repository_inside(nested: Mapping[str, str], workspace: str) -> str | None:
    """Return the name of the nested repository that contains a workspace, or None."""
    found = (name for top, name in nested.items() if f"{workspace}/".startswith(f"{top}/"))
    return next(found, None)
