"""Opening the files that configure a project: the only door to them.

A repository is someone else's: a link in it may name any file of the user's, a FIFO would hold its
reader for ever, and a device has no end. So a file is opened only where it is regular, of at most
`MAX_BYTES`, and, with all links resolved, inside the root that it configures.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_000_000

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class RefusedError(SidecarError, OSError):
    """A file that is there and may not be read; the text says why, and quotes nothing of it."""

    kind = "config"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


def read_file(path: Path, root: Path | None = None) -> bytes:
    """What a configuration file holds. With `root`, it must lie inside of it, links resolved.

    Raises:
        RefusedError: it lies outside, is no regular file, or is larger than `MAX_BYTES`.
        OSError: it is not there, or cannot be read.
    """
    real = resolved(path, root)
    if str(real) == os.devnull and root is None:
        return b""
    return read_regular(real)


def read_regular(path: Path | str) -> bytes:
    """What a regular file holds that is no link itself. Raises as `read_file`."""
    _check(os.lstat(path))  # before opening: to open a device may already do something
    descriptor = os.open(path, _FLAGS)
    with open(descriptor, "rb") as file:
        _check(os.fstat(descriptor))
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RefusedError(f"is larger than {MAX_BYTES:,} bytes")
    return data


def resolved(path: Path, root: Path | None) -> Path:
    """Where a file really is.

    Raises:
        RefusedError: outside of `root`.
        OSError: it is not there, or its links lead in a circle.
    """
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, ValueError):  # a circle of links before Python 3.13; a NUL in the name
        raise RefusedError("cannot be resolved") from None
    if root is not None and not real.is_relative_to(root.resolve()):
        raise RefusedError("is a link out of the project's folder")
    return real


def _check(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("is not a regular file")
    if status.st_size > MAX_BYTES:
        raise RefusedError(f"is larger than {MAX_BYTES:,} bytes")
