"""Which sessions are of a workspace: those whose folder is in one of its roots, links resolved."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from sidecar.config.project_files import read_regular


class Roots(msgspec.Struct, frozen=True):
    """Root folders as real paths, the git worktrees of their repositories among them."""

    paths: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[str | os.PathLike[str]]) -> Roots:
        """Reads the repositories' lists of worktrees, and nothing else."""
        found: dict[str, None] = {}
        for folder in folders:
            real = os.path.realpath(folder)
            found |= dict.fromkeys((real, *_worktrees(real)))
        return cls(tuple(found))

    def hold(self, folder: str | None) -> bool:
        """Return whether `folder`, as in `SessionSnapshot.folder`, is in one of the roots.

        Of a digest it is known only whether it is that of a root itself, of a name (`name:…`)
        whether it is that of exactly one root.
        """
        return any(self._hold(one) for one in (folder or "").split("\n") if one)

    def _hold(self, folder: str) -> bool:
        method, _, digest = folder.partition(":")
        if method in _DIGESTS:
            return any(_digest(method, root) == digest for root in self.paths)
        if method == "name":
            return [os.path.basename(root) for root in self.paths].count(digest) == 1
        real = _real(folder)
        return any(
            real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in self.paths
        )


_DIGESTS = ("md5", "sha256")


@lru_cache(maxsize=64)
def _digest(method: str, folder: str) -> str:
    digest = hashlib.new(method, usedforsecurity=False)
    digest.update(folder.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _worktrees(folder: str) -> list[str]:
    """The other working trees of the repository whose top `folder` is; none elsewhere."""
    common = _common_dir(folder)
    if common is None:
        return []
    found = []
    if os.path.basename(common) == ".git":
        found.append(os.path.dirname(common))
    for name in _names(os.path.join(common, "worktrees")):
        pointer = _line(os.path.join(common, "worktrees", name, "gitdir"))
        if pointer:
            found.append(os.path.realpath(os.path.dirname(pointer)))
    return [path for path in found if path != folder]


def _common_dir(folder: str) -> str | None:
    """The repository's own folder, from a main or a linked working tree."""
    git = os.path.join(folder, ".git")
    if os.path.isdir(git):
        return os.path.realpath(git)
    pointer = _line(git)
    if pointer is None or not pointer.startswith("gitdir:"):
        return None
    private = os.path.join(folder, pointer.removeprefix("gitdir:").strip())
    shared = _line(os.path.join(private, "commondir"))
    return os.path.realpath(os.path.join(private, shared)) if shared else None


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _line(path: str) -> str | None:
    """The first line of one of git's pointer files."""
    try:
        data = read_regular(path)
    except OSError:
        return None
    return data[:4096].partition(b"\n")[0].decode("utf-8", "replace").strip() or None
