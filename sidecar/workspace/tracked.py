"""Which files git tracks: an agent reads them, though a `.gitignore` may name them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sidecar.config.project_files import read_regular


def tracked_files(folder: str) -> tuple[str, ...] | None:
    """Their paths below `folder`, relative to it; none outside of a work tree of git.

    None where git is missing or refuses to say. Blocking. Which of them are ignored git is not
    asked: a FIFO in the place of a `.gitignore` would hold it up.
    """
    if index_of(os.path.abspath(folder)) is None:
        return ()
    from sidecar.workspace import git

    try:
        listed = git.run(Path(folder), "ls-files", "-z", "--cached")
    except git.GitError:
        return None
    return tuple(os.fsdecode(name).replace("/", os.sep) for name in listed.split(b"\0") if name)


def index_of(folder: str) -> str | None:
    """Where git keeps which files it tracks; None outside of a work tree. It need not be there."""
    while not os.path.exists(place := os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    if os.path.isfile(place):  # of a linked work tree or a submodule
        with contextlib.suppress(OSError):
            named = os.fsdecode(read_regular(place).removeprefix(b"gitdir:").strip())
            place = os.path.join(folder, named)
    return os.path.join(place, "index")
