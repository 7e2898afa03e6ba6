"""Creates files (0600) and folders (0700) that only the user can access. All functions block."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from typing import TYPE_CHECKING

from sidecar.operating_system import replace_file, restrict_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
