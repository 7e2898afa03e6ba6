"""What tells that a file is as it was: its size, times and inode."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter

RACY_NS = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT) ticks every two seconds."""

FullStamp = tuple[int, int, int, int]
"""Size, modification and change time in nanoseconds, inode: what changes when a file does."""

stamp_of: Callable[[os.stat_result], FullStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""The stamp of a file's status."""


def settled(stamp: FullStamp, read_at_ns: int) -> bool:
    """Whether a later change of what was read then is sure to have another stamp."""
    return max(stamp[1], stamp[2]) < read_at_ns - RACY_NS


def stamps(paths: Sequence[str]) -> list[FullStamp | None]:
    """The stamp of each file, None for one that is not there."""
    try:
        return list(map(stamp_of, map(os.stat, paths)))
    except (OSError, ValueError):
        return [stamp(path) for path in paths]


def stamp(path: str) -> FullStamp | None:
    """The stamp of one file."""
    try:
        return stamp_of(os.stat(path))
    except (OSError, ValueError):
        return None
