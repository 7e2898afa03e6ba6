"""Tells whether a file was edited or replaced since it was read."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int, int]
"""A file's size, its modification and change times in nanoseconds, and its inode number.

Size and modification time alone miss a file that is replaced by one with the same times, for
example by `cp -p`, `rsync` or `tar`.
"""

stamp_of_status: Callable[[os.stat_result], FileStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)


def stamp_of(path: str | os.PathLike[str]) -> FileStamp | None:
    """Return a file's stamp, or None if the file does not exist. This function blocks."""
    try:
        return stamp_of_status(os.stat(path))
    except (OSError, ValueError):  # ValueError: the path contains a NUL
        return None
