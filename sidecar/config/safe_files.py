"""Reads a project's files and writes the user's own, without following what a repository plants.

A malicious repository may contain links to the user's private files, FIFOs that block readers, or
endless device files. For this reason, only regular files of at most `MAX_BYTES` are read. They must
be inside the root folder after all links are resolved.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from sidecar.errors import SidecarError
from sidecar.operating_system import NO_FOLLOW, open_to_read, replace_file, restrict_folder

_STATE_LOCK = "state.lock"
_STATE_LOCK_SECONDS = 10.0

FileStamp: TypeAlias = tuple[int, int, int, int]
"""A file's size, its modification and change times in nanoseconds, and its inode number.

Size and modification time alone miss a file that is replaced by one with the same times, for
example by `cp -p`, `rsync` or `tar`.
"""

stamp_of_status: Callable[[os.stat_result], FileStamp] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)


def stamp_of(path: str | os.PathLike[str] | None) -> FileStamp | None:
    """Return a file's stamp, or None if the file does not exist. This function blocks."""
    if path is None:
        return None
    try:
        return stamp_of_status(os.stat(path))
    except (OSError, ValueError):  # ValueError: the path contains a NUL
        return None


logger = logging.getLogger(__name__)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and deny other users access to it.

    Raises:
        OSError: The folder cannot be created.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        restrict_folder(folder)


def create(path: Path) -> None:
    """Create an empty private file if it does not exist.

    SQLite itself would create a file that other users can read.

    Raises:
        OSError: The file cannot be created.
    """
    make_folder(path.parent)
    if not path.exists():  # closing an existing file would release this process's locks on it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, replacing any existing file. The folder must exist.

    Raises:
        OSError: The file cannot be written.
    """
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # always 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        replace_file(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def locked(lock: Path, seconds: float) -> Iterator[bool]:
    """Lock a file against other processes. Yields False if this takes longer than `seconds`.

    The file is empty and never deleted. It is locked by SQLite, whose locks work on every
    platform and are released when the process exits.

    Raises:
        OSError: The file cannot be created or locked.
    """
    import sqlite3

    create(lock)
    with contextlib.closing(
        sqlite3.connect(lock, timeout=seconds, isolation_level=None, check_same_thread=False)
    ) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise OSError(f"{lock} cannot be locked: {error}") from error
            yield False
        else:
            yield True


def set_aside(path: Path, why: str, beside: tuple[str, ...] = ()) -> None:
    """Rename an unusable file to make room for a new one, and log the reason. Never raises.

    Args:
        path: The file.
        why: The reason.
        beside: Suffixes of associated files, which are renamed as well.
    """
    aside = path.with_name(f"{path.name}.broken-{time.time_ns()}")
    try:
        os.replace(path, aside)
        for end in beside:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{end}", f"{aside}{end}")
    except OSError:
        logger.warning("%s is unusable and could not be renamed: %s", path, why)
    else:
        logger.warning("%s is unusable and was renamed to %s: %s", path, aside.name, why)


ListFile: TypeAlias = Path | None
"""The path of the saved price list, or None to use only the bundled list."""


def read_price_list(file: ListFile) -> bytes | None:
    """Return the list's contents, or None if it is missing or cannot be read."""
    try:
        return file.read_bytes() if file else None
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot read the price list %s: %s", file, error.strerror)
        return None


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


@contextlib.contextmanager
def lock_state(folder: Path) -> Iterator[None]:
    """Lock the state folder against other processes. Raises OSError."""
    with locked(folder / _STATE_LOCK, _STATE_LOCK_SECONDS) as is_alone:
        if not is_alone:
            raise TimeoutError(errno.ETIMEDOUT, "another process has locked the state folder")
        yield
