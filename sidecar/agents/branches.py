"""The git branch for which an agent's call counts, and the git worktrees of a folder.

Both are read from git's own files. Hooks also use this module. It imports little, because a prompt
waits for them.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sidecar.config.safe_files import read_regular

DETACHED = "HEAD"
"""What agents record instead of a branch if git's HEAD is detached."""


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


class Head(NamedTuple):
    """What is checked out in a git worktree."""

    branch: str
    """The branch, or an empty string if HEAD is detached."""
    since: datetime
    """When git last changed HEAD. Since then, no other branch has been checked out."""

    def branch_at(self, at: datetime) -> str | None:
        """Return the branch that was checked out at a time, or None if it is unknown.

        An empty string means that HEAD was detached.
        """
        aware = at if at.tzinfo else at.replace(tzinfo=UTC)
        return self.branch if self.since <= aware else None


def branch_of_call(recorded: str, at: datetime, head: Head | None) -> str:
    """Return the branch for which a call counts, or an empty string if HEAD was detached.

    Some agents record only the branch on which a session started, so git's answer comes first.

    Args:
        recorded: The branch that the agent recorded last before the call.
        at: When the call was made.
        head: What is checked out in the call's folder, or None if unknown.
    """
    branch = None if head is None else head.branch_at(at)
    branch = recorded if branch is None else branch
    return "" if branch == DETACHED else branch


def head_around(folder: str) -> Head | None:
    """Return the HEAD of the git worktree that a folder belongs to, or None outside of git."""
    file = head_file(folder)
    if file is None:
        return None
    try:
        since = datetime.fromtimestamp(os.stat(file).st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return None
    target = _first_line(file)
    if target is None or target == _REFTABLE_HEAD:
        return None
    is_branch = target.startswith(_BRANCH_PREFIX)
    return Head(target.removeprefix(_BRANCH_PREFIX) if is_branch else "", since)


def head_file(folder: str) -> str | None:
    """Return the path of the file that git changes when a branch is checked out around a folder."""
    path = Path(resolve(folder))
    tops = (_git_dir(str(each)) for each in (path, *path.parents))
    private = next(filter(None, tops), None)
    return None if private is None else os.path.join(private, "HEAD")


_BRANCH_PREFIX = "ref: refs/heads/"
_REFTABLE_HEAD = f"{_BRANCH_PREFIX}.invalid"
"""The contents of HEAD in repositories that keep it elsewhere."""


def _git_dir(folder: str) -> str | None:
    """Return the path of a worktree's own git data, or None for other folders."""
    git = os.path.join(folder, ".git")
    if os.path.isdir(git):
        return os.path.realpath(git)
    pointer = _first_line(git)
    if pointer is None or not pointer.startswith("gitdir:"):
        return None
    private = os.path.join(folder, pointer.removeprefix("gitdir:").strip())
    return resolve(private) if os.path.isdir(private) else None


def _common_dir(folder: str) -> str | None:
    private = _git_dir(folder)
    if private is None:
        return None
    shared = _first_line(os.path.join(private, "commondir"))
    # A submodule, or a repository whose data is elsewhere, has no such file.
    return private if shared is None else resolve(os.path.join(private, shared))


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
