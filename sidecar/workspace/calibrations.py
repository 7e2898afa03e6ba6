"""The calibrations of this process, and the file that shares them with other processes.

Workers read and write the file. They get a copy of the calibrations and return a new one, which
the event loop merges.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sidecar.counting import calibration_file
from sidecar.workspace.state import state_locked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from sidecar.counting.calibration import Calibrations

Stamp: TypeAlias = tuple[int, int, int]
"""Identifies a version of a file: inode, modification time and size."""


class SyncResult(NamedTuple):
    """The result of reading or writing the calibration file."""

    calibrations: Calibrations | None
    """The file's content, or None if it has not changed."""
    stamp: Stamp | None
    has_written: bool = False
    version: int = 0
    """The version of the calibrations that were written."""


class CalibrationStore:
    """The calibrations of this process, and what is not yet written to the file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: Calibrations | None = None
        """The calibrations, or None until the file is read."""
        self._has_unsaved = False
        self._read_stamp: Stamp | None = None
        """Identifies the last version of the file that was read."""

    @property
    def path(self) -> Path:
        return self._folder / calibration_file.FILE_NAME

    def loaded(self) -> Calibrations:
        """Return the calibrations. The first call reads the file, which blocks."""
        if self.known is None:
            self.finish_sync(_load_calibrations(self._folder))
        return self.known or calibration_file.load(self._folder)

    async def load(self, run: Callable[[Callable[[], SyncResult]], Awaitable[SyncResult]]) -> None:
        """Read the file once.

        Args:
            run: Runs a function on a worker.
        """
        if self.known is None:
            self.finish_sync(await run(self.begin_load()))

    def begin_load(self) -> Callable[[], SyncResult]:
        """Return a function that reads the calibration file."""
        return partial(_load_calibrations, self._folder)

    def changed(self) -> None:
        """Mark the calibrations as changed, so that the next `begin_sync` writes them."""
        self._has_unsaved = True

    def begin_sync(self) -> Callable[[], SyncResult] | None:
        """Return a function that writes changed calibrations, or else reads the file.

        Returns None before the file is read. The function raises OSError if the file cannot be
        written; the caller must then call `changed`.
        """
        if self._has_unsaved or self.known is None:
            return self.begin_save()
        return partial(_read_calibrations, self._folder, self._read_stamp)

    def begin_save(self) -> Callable[[], SyncResult] | None:
        """Return a function that writes changed calibrations, or None if nothing has changed."""
        if not self._has_unsaved or self.known is None:
            return None
        self._has_unsaved = False
        return partial(_write_calibrations, self._folder, self.known.frozen())

    def finish_sync(self, synced: SyncResult) -> bool:
        """Merge the result of reading or writing the calibration file.

        Returns:
            Whether another process has changed the calibrations.
        """
        self._read_stamp, theirs = synced.stamp, synced.calibrations
        if theirs is None:
            return False
        if self.known is None:
            self.known = theirs
            return True
        if synced.has_written:
            self.known.mark_written(synced.version)
        return self.known.merge(theirs)

    def save(self) -> bool:
        """Write changed calibrations. Blocking.

        Returns:
            Whether another process has changed the calibrations.

        Raises:
            OSError: The file cannot be written; the next call tries again.
        """
        work = self.begin_save()
        if work is None:
            return False
        try:
            return self.finish_sync(work())
        except OSError:
            self.changed()
            raise


def _load_calibrations(folder: Path) -> SyncResult:
    # Read the stamp first, so that a change during reading is noticed later.
    now = _stamp_of_file(folder)
    return SyncResult(calibration_file.load(folder), now)


def _read_calibrations(folder: Path, seen: Stamp | None) -> SyncResult:
    return (
        SyncResult(None, seen)
        if _stamp_of_file(folder) in (None, seen)
        else _load_calibrations(folder)
    )


def _write_calibrations(folder: Path, calibrations: Calibrations) -> SyncResult:
    version = calibrations.version
    with state_locked(folder):
        calibration_file.save(folder, calibrations)
        return SyncResult(calibrations, _stamp_of_file(folder), has_written=True, version=version)


def _stamp_of_file(folder: Path) -> Stamp | None:
    try:
        status = (folder / calibration_file.FILE_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
