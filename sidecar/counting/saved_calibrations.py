"""This process's calibrations, shared with other processes through a file.

Worker threads read and write the file. They work on a copy, and the event loop merges their result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.config.safe_files import FileStamp, lock_state, make_folder, set_aside, stamp_of, write
from sidecar.counting.calibration import Calibrations

FILE_NAME = "calibration.json"
_MAX_BYTES = 4 * 1024 * 1024


def load_calibrations(folder: Path) -> Calibrations:
    """Return the calibrations in the file, or empty calibrations if there is no file. Never raises.

    A damaged file is renamed.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            data = typed.decode(file.read(_MAX_BYTES), dict[str, Any])
    except msgspec.DecodeError:
        set_aside(path, "it contains no calibrations")
    except OSError:
        pass
    else:
        return Calibrations.from_dict(data)
    return Calibrations()


def save_calibrations(folder: Path, calibrations: Calibrations) -> bool:
    """Merge the calibrations with those that other processes have written, and write the result.

    Returns:
        Whether the file contained changes by other processes.

    Raises:
        OSError: The file cannot be written.
    """
    has_changed = calibrations.merge(load_calibrations(folder))
    make_folder(folder)
    data, version = msgspec.json.encode(calibrations.to_dict()), calibrations.version
    write(folder / FILE_NAME, msgspec.json.format(data, indent=1))
    calibrations.mark_written(version)
    return has_changed


class SyncResult(NamedTuple):
    calibrations: Calibrations | None
    """The file's content, or None if it has not changed."""
    stamp: FileStamp | None
    written_version: int | None = None
    """The version of the calibrations that was written, or None if the file was only read."""


class CalibrationStore:
    """Holds this process's calibrations until they are written to the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: Calibrations | None = None
        """The calibrations, or None if the file has not been read yet."""
        self.has_unsaved = False
        self._read_stamp: FileStamp | None = None

    @property
    def path(self) -> Path:
        return self._folder / FILE_NAME

    def loaded(self) -> Calibrations:
        """Return the calibrations. The first call reads the file and therefore blocks."""
        if self.known is None:
            self.finish_sync(_read_if_changed(self._folder, None))
        return self.known or load_calibrations(self._folder)

    def changed(self) -> None:
        """Mark the calibrations as changed. The next `begin_sync` writes them."""
        self.has_unsaved = True

    def begin_sync(self) -> Callable[[], SyncResult]:
        """Return a function that writes the calibrations if they have changed.

        Otherwise, the function reads the file. It raises OSError if the file cannot be written. In
        that case, call `changed` to retry later.
        """
        if self.known is None or not self.has_unsaved:
            return partial(_read_if_changed, self._folder, self._read_stamp)
        self.has_unsaved = False
        return partial(_write, self._folder, self.known.copy())

    def finish_sync(self, synced: SyncResult) -> bool:
        """Merge the result of the function that `begin_sync` returned.

        Returns:
            Whether another process has changed the calibrations.
        """
        self._read_stamp, theirs = synced.stamp, synced.calibrations
        if theirs is None:
            return False
        if self.known is None:
            self.known = theirs
            return True
        if synced.written_version is not None:
            self.known.mark_written(synced.written_version)
        return self.known.merge(theirs)

    def save(self) -> None:
        """Write the calibrations if they have changed. This function blocks.

        Raises:
            OSError: The file cannot be written. The next call will retry.
        """
        if not self.has_unsaved:
            return
        try:
            self.finish_sync(self.begin_sync()())
        except OSError:
            self.changed()
            raise


def _read_if_changed(folder: Path, seen: FileStamp | None) -> SyncResult:
    # Determined before reading, so that later writes are noticed.
    stamp = stamp_of(folder / FILE_NAME)
    if seen is not None and stamp in (None, seen):
        return SyncResult(None, seen)
    return SyncResult(load_calibrations(folder), stamp)


def _write(folder: Path, calibrations: Calibrations) -> SyncResult:
    version = calibrations.version
    with lock_state(folder):
        save_calibrations(folder, calibrations)
        return SyncResult(calibrations, stamp_of(folder / FILE_NAME), version)
