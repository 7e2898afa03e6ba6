"""Reads a project's configuration files safely.

A malicious repository may contain links to the user's private files, FIFOs that block readers, or
endless device files. For this reason, only regular files of at most `MAX_BYTES` are read. They must
be inside the root folder after all links are resolved.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from sidecar.errors import SidecarError
from sidecar.operating_system import NO_FOLLOW, open_to_read

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_000_000


class RefusedError(SidecarError, OSError):
    """A file was not read, because doing so may be unsafe. The message explains why."""

    kind = "config"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


def read_file(path: Path, root: Path | None = None) -> bytes:
    """Return a configuration file's contents. If `root` is given, the file must be inside it.

    Raises:
        RefusedError: The file is outside of `root`, is not a regular file, or is larger than
            `MAX_BYTES`.
        OSError: The file does not exist or cannot be read.
    """
    real = resolved(path, root)
    if str(real) == os.devnull and root is None:
        return b""
    return read_regular(real)


def read_regular(path: Path | str) -> bytes:
    """Return a regular file's contents. Links are rejected.

    Raises:
        RefusedError: The file is not a regular file, or is larger than `MAX_BYTES`.
        OSError: The file does not exist or cannot be read.
    """
    # Check before opening, because opening a device may have side effects.
    _check_is_regular(os.lstat(path))
    descriptor = open_to_read(path, NO_FOLLOW)
    with open(descriptor, "rb") as file:
        _check_is_regular(os.fstat(descriptor))
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RefusedError(f"is larger than {MAX_BYTES:,} bytes")
    return data


def resolved(path: Path, root: Path | None) -> Path:
    """Return a file's path with all links resolved.

    Raises:
        RefusedError: The path is outside of `root`.
        OSError: The file does not exist, or its links form a loop.
    """
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, ValueError):  # a loop of links (before Python 3.13) or a NUL in the path
        raise RefusedError("cannot be resolved") from None
    if root is not None and not real.is_relative_to(root.resolve()):
        raise RefusedError("is a link to a file outside the project's folder")
    return real


def _check_is_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("is not a regular file")
    if status.st_size > MAX_BYTES:
        raise RefusedError(f"is larger than {MAX_BYTES:,} bytes")
