"""Files that are the user's alone: state and caches. Folders are 0700 and files 0600. Blocking."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)


def make_folder(folder: Path) -> None:
    """Make a folder with those above that are missing, and close one that others may look into.

    What is there and is no folder stays as it is. Raises OSError.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(mode=0o700)
    with contextlib.suppress(OSError):
        _close(folder)


def create(path: Path) -> None:
    """Make an empty file and its folder where they are missing, and close them to others.

    SQLite would make a file that others can read. Raises OSError.
    """
    make_folder(path.parent)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def write(path: Path, data: bytes) -> None:
    """Put a file in place as a whole: other processes read the old one or the new. Raises OSError.

    Its folder must be there.
    """
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # always 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def locked(lock: Path, seconds: float) -> Iterator[bool]:
    """Hold a lock that processes share; False where another one has held it for so many seconds.

    `lock` is an empty file that stays. The system releases it when the process ends, however it
    ends: SQLite locks it, which works alike on every system. Raises OSError.
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
    """Rename a file that cannot be used, and say so in the log: it is begun anew. Never raises.

    `beside`: the ends of the names of files that belong to it.
    """
    aside = path.with_name(f"{path.name}.broken-{time.time_ns()}")
    try:
        os.replace(path, aside)
        for end in beside:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{end}", f"{aside}{end}")
    except OSError:
        logger.warning("%s cannot be used and is left alone: %s", path, why)
    else:
        logger.warning("%s could not be used and is now %s: %s", path, aside.name, why)


def _close(folder: Path) -> None:
    """Take a folder of the user's from others; not one that is shared, such as /tmp."""
    if os.name == "nt":
        return  # the profile's folders are the user's alone
    status = folder.stat()
    shared = status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX
    if status.st_mode & 0o077 and not shared:
        folder.chmod(0o700)
