"""What reported usage has taught, and how processes share it: read and changed on the event loop.

Workers read and write the file. They get a copy and bring back another one, which the event loop
takes over.
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
"""What identifies a version of a file."""


class Synced(NamedTuple):
    """What a worker brings back that has written or read the file."""

    calibrations: Calibrations | None
    """Return the file's content, or None if it has not changed."""
    stamp: Stamp | None
    """The version of the file."""
    has_written: bool = False
    number: int = 0
    """Of the last lesson that was written."""


class CalibrationStore:
    """The calibrations of this process. For the event loop, or a process without one."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the user's state."""
        self._folder = folder
        self.known: Calibrations | None = None
        """None until the file was read."""
        self._has_new = False
        self._seen: Stamp | None = None
        """The version of the file that is known here."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._folder / calibration_file.FILE_NAME

    def loaded(self) -> Calibrations:
        """The calibrations; read now where they were not. Blocking then."""
        if self.known is None:
            self.finish_sync(_load(self._folder))
        return self.known or calibration_file.load(self._folder)

    async def load(self, run: Callable[[Callable[[], Synced]], Awaitable[Synced]]) -> None:
        """Have the file read by a worker, once; `run` runs work on one."""
        if self.known is None:
            self.finish_sync(await run(self.begin_load()))

    def begin_load(self) -> Callable[[], Synced]:
        """What a worker does to read the file."""
        return partial(_load, self._folder)

    def changed(self) -> None:
        """Note that something was learned; the next `begin_sync` writes it."""
        self._has_new = True

    def begin_sync(self) -> Callable[[], Synced] | None:
        """What a worker does to share what was learned with other processes: write what is new
        here, or read what is new there. None before anything was read.

        The work raises OSError where nothing can be written: call `changed` again then.
        """
        if self._has_new or self.known is None:
            return self.begin_save()
        return partial(_read, self._folder, self._seen)

    def begin_save(self) -> Callable[[], Synced] | None:
        """The same where something is new here, else None."""
        if not self._has_new or self.known is None:
            return None
        self._has_new = False
        return partial(_write, self._folder, self.known.frozen())

    def finish_sync(self, synced: Synced) -> bool:
        """Take over what a worker brought back. Returns whether another process had learned
        something that was not known here."""
        self._seen, theirs = synced.stamp, synced.calibrations
        if theirs is None:
            return False
        if self.known is None:
            self.known = theirs
            return True
        if synced.has_written:
            self.known.mark_written(synced.number)
        return self.known.merge(theirs)

    def save(self) -> bool:
        """Write what was learned at once. Returns whether another process had learned something.

        Blocking. Raises OSError: then it is still to be written.
        """
        work = self.begin_save()
        if work is None:
            return False
        try:
            return self.finish_sync(work())
        except OSError:
            self.changed()
            raise


def _load(folder: Path) -> Synced:
    """What the file holds; nothing where there is none."""
    now = _stamp(folder)  # before it is read: what changes then is read again
    return Synced(calibration_file.load(folder), now)


def _read(folder: Path, seen: Stamp | None) -> Synced:
    """What the file holds, where that is another version than was seen."""
    return Synced(None, seen) if _stamp(folder) in (None, seen) else _load(folder)


def _write(folder: Path, calibrations: Calibrations) -> Synced:
    number = calibrations.version
    with state_locked(folder):
        calibration_file.save(folder, calibrations)
        return Synced(calibrations, _stamp(folder), has_written=True, number=number)


def _stamp(folder: Path) -> Stamp | None:
    try:
        status = (folder / calibration_file.FILE_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
