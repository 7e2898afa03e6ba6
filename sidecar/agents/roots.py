"""Decides which sessions belong to a workspace, based on the agents' working directories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from sidecar.config.project_files import read_regular


class Roots(msgspec.Struct, frozen=True):
    """A workspace's root folders, and the other git worktrees of their repositories.

    All symbolic links are resolved.
    """

    paths: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[str | os.PathLike[str]]) -> Roots:
        """Find the other git worktrees of the folders' repositories, and return all roots."""
        found: dict[str, None] = {}
        for folder in folders:
            real = os.path.realpath(folder)
            found |= dict.fromkeys((real, *worktrees_beside(real)))
        return cls(tuple(found))

    def contains(self, folder: str | None) -> bool:
        """Return whether a folder is inside one of the roots.

        Args:
            folder: Paths, digests or names of folders, separated by line feeds, as in
                `StoredSession`. A digest (`md5:…`) matches a root, but not its subfolders. A
                name (`name:…`) matches if exactly one root has this name.
        """
        return any(self._contains(path) for path in (folder or "").split("\n") if path)

    def _contains(self, folder: str) -> bool:
        method, _, digest = folder.partition(":")
        if method in _DIGESTS:
            return any(_folder_digest(method, root) == digest for root in self.paths)
        if method == "name":
            return [os.path.basename(root) for root in self.paths].count(digest) == 1
        real = resolve(folder)
        return any(
            real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.paths
        )


_DIGESTS = ("md5", "sha256")


@lru_cache(maxsize=64)
def _folder_digest(method: str, folder: str) -> str:
    digest = hashlib.new(method, usedforsecurity=False)
    digest.update(folder.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def resolve(folder: str) -> str:
    """Return a folder's path with all links resolved. Invalid paths are returned unchanged."""
    try:
        return os.path.realpath(folder)
    except ValueError:  # the path contains a NUL
        return folder


def worktrees_around(folder: str) -> dict[str, str]:
    """Return the git worktrees of the repository that a folder belongs to.

    Returns:
        The path of each worktree, and the path of the repository's data. Empty outside of git.
    """
    path = Path(resolve(folder))
    tops = (str(each) for each in (path, *path.parents))
    return next(filter(None, map(worktrees_beside, tops)), {})


def worktrees_beside(top: str) -> dict[str, str]:
    """Return the same as `worktrees_around` for the top folder of a worktree."""
    common = _common_dir(top)
    if common is None:
        return {}
    found = [top]
    if os.path.basename(common) == ".git":
        found.append(os.path.dirname(common))
    for name in _list_names(os.path.join(common, "worktrees")):
        private = os.path.join(common, "worktrees", name)
        if pointer := _first_line(os.path.join(private, "gitdir")):  # may be a relative path
            found.append(resolve(os.path.dirname(os.path.join(private, pointer))))
    return dict.fromkeys(found, common)


def _common_dir(folder: str) -> str | None:
    git = os.path.join(folder, ".git")
    if os.path.isdir(git):
        return os.path.realpath(git)
    pointer = _first_line(git)
    if pointer is None or not pointer.startswith("gitdir:"):
        return None
    private = os.path.join(folder, pointer.removeprefix("gitdir:").strip())
    shared = _first_line(os.path.join(private, "commondir"))
    if shared is None:  # a submodule, or a repository whose data is elsewhere
        return resolve(private) if os.path.isdir(private) else None
    return resolve(os.path.join(private, shared))


def _list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _first_line(path: str) -> str | None:
    try:
        data = read_regular(path)
    except (OSError, ValueError):  # ValueError: the path contains a NUL
        return None
    return data[:4096].partition(b"\n")[0].decode("utf-8", "replace").strip() or None
