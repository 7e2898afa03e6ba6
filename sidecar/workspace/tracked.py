"""Which files git tracks: an agent reads them, though a `.gitignore` may name them."""

from __future__ import annotations

import os
from pathlib import Path


def tracked_files(folder: str) -> tuple[str, ...] | None:
    """Their paths below `folder`, relative to it; none outside of a work tree of git.

    None where git is missing or refuses to say. Blocking. Which of them are ignored git is not
    asked: a FIFO in the place of a `.gitignore` would hold it up.
    """
    if not _is_in_work_tree(Path(os.path.abspath(folder))):
        return ()
    from sidecar.workspace import git

    try:
        listed = git.run(Path(folder), "ls-files", "-z", "--cached")
    except git.GitError:
        return None
    return tuple(os.fsdecode(name).replace("/", os.sep) for name in listed.split(b"\0") if name)


def _is_in_work_tree(folder: Path) -> bool:
    return any(os.path.exists(each / ".git") for each in (folder, *folder.parents))
