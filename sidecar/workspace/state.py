"""What outlives the process: calibration, the ledger, sessions that asked for it. Blocking."""

from __future__ import annotations

import contextlib
import errno
import threading
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from sidecar.config.paths import state_dir
from sidecar.config.private import locked, make_folder, set_aside, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from sidecar.config.settings import Price, Settings
    from sidecar.context.persist import SavedSession
    from sidecar.cost.book import CostBook
    from sidecar.counting.calibration import Calibrations
    from sidecar.workspace.live_sessions import LiveSessions

_SESSIONS_KEPT = 64
_LOCK_NAME = "state.lock"
_LOCK_SECONDS = 10.0


Stamp: TypeAlias = tuple[int, int, int]
"""What identifies a version of a file."""


class Synced(NamedTuple):
    """What a worker brings back that has written or read what was learned."""

    calibrations: Calibrations | None
    """What the file holds; None where that has not changed."""
    stamp: Stamp | None
    """The version of the file."""
    has_written: bool = False
    number: int = 0
    """Of the last lesson that was written."""


class State:
    """The user's state folder. Opened and read when first needed; safe to share by threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_dir()
        self._lock = threading.Lock()
        self._calibrations: Calibrations | None = None
        self._books: dict[tuple[tuple[Price, ...], str | None], CostBook] = {}
        self._dirty = False
        self._seen: Stamp | None = None
        """The version of the calibrations' file that is known here."""

    def calibrations(self) -> Calibrations:
        """What reported usage has taught so far."""
        from sidecar.counting import calibration_file

        with self._lock:
            if self._calibrations is None:
                self._seen = self._stamp()  # before it is read: what changes then is read again
                self._calibrations = calibration_file.load(self.folder)
            return self._calibrations

    @property
    def known_calibrations(self) -> Calibrations | None:
        """The same; None until it was read. Never waits."""
        return self._calibrations

    def calibrations_changed(self) -> None:
        """Something was learned; the next `begin_sync` writes it."""
        self._dirty = True

    def begin_sync(self) -> Callable[[], Synced] | None:
        """What a worker does to share what was learned with other processes: write what is new
        here, or read what is new there. None before anything was read; OSError where it fails."""
        known = self._calibrations
        if known is None:
            return None
        writes, self._dirty = self._dirty, False
        return partial(self._sync, known.frozen() if writes else None, self._seen)

    def finish_sync(self, synced: Synced) -> bool:
        """Take over what a worker brought back. Returns whether another process had learned
        something that was not known here."""
        self._seen, known, theirs = synced.stamp, self._calibrations, synced.calibrations
        if known is None or theirs is None:
            return False
        if synced.has_written:
            known.written(synced.number)
        return known.take(theirs)

    def _sync(self, unwritten: Calibrations | None, seen: Stamp | None) -> Synced:
        from sidecar.counting import calibration_file

        if unwritten is None:
            now = self._stamp()
            is_new = now not in (None, seen)
            return Synced(calibration_file.load(self.folder) if is_new else None, now or seen)
        number = unwritten.lessons
        with self._locked():
            calibration_file.save(self.folder, unwritten)
            return Synced(unwritten, self._stamp(), has_written=True, number=number)

    def save(self) -> bool:
        """Write what was learned, without an event loop. Raises OSError: then it is still due."""
        work = self.begin_sync() if self._dirty else None
        if work is None:
            return False
        try:
            return self.finish_sync(work())
        except OSError:
            self.calibrations_changed()
            raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing shared files meanwhile. Raises OSError."""
        with locked(self.folder / _LOCK_NAME, _LOCK_SECONDS) as is_alone:
            if not is_alone:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the state folder")
            yield

    @property
    def calibrations_path(self) -> Path:
        """The file that learned factors are kept in."""
        from sidecar.counting import calibration_file

        return self.folder / calibration_file.FILE_NAME

    def _stamp(self) -> Stamp | None:
        """What identifies a version of the calibrations' file; None where there is none."""
        try:
            status = self.calibrations_path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def book(self, settings: Settings) -> CostBook:
        """The ledger, with the user's own prices and collector."""
        key = settings.prices, settings.ledger.otel_endpoint
        with self._lock:
            book = self._books.get(key)
            if book is None:
                from sidecar.cost.book import CostBook

                book = self._books[key] = CostBook(self.folder, key[0], otel_endpoint=key[1])
            return book

    @cached_property
    def live(self) -> LiveSessions:
        """The conversations of the servers that run now."""
        from sidecar.workspace.live_sessions import LiveSessions

        return LiveSessions(self.folder / "live")

    def sessions(self, workspace: str) -> list[SavedSession]:
        """The sessions of a workspace that asked to be kept, by their counts. Never raises."""
        from sidecar.context.persist import from_json

        path = self._sessions_file(workspace)
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return []
        kept = [saved for line in lines if (saved := from_json(line)) is not None]
        if len(kept) < len(lines):
            set_aside(path, "a session in it is damaged, or of another version")
            with contextlib.suppress(OSError):
                self._write_sessions(path, kept)
        return kept

    def save_sessions(
        self, workspace: str, sessions: Sequence[SavedSession], mine: set[str]
    ) -> None:
        """Keep these, the latest ones first, beside those of other servers. Raises OSError.

        `mine` are the ids that this server speaks for: of these only `sessions` stay.
        """
        with self._locked():
            others = [saved for saved in self.sessions(workspace) if saved.id not in mine]
            every = [*sessions, *others]
            latest = sorted(every, key=lambda one: one.updated_at, reverse=True)[:_SESSIONS_KEPT]
            self._write_sessions(self._sessions_file(workspace), latest)

    def close(self) -> None:
        """Write what is left, and close the ledger."""
        self.live.close()
        self.save()
        for book in self._books.values():
            book.close()

    def _write_sessions(self, path: Path, sessions: Sequence[SavedSession]) -> None:
        from sidecar.context.persist import to_json

        make_folder(self.folder)
        make_folder(path.parent)
        write(path, b"".join(to_json(saved) + b"\n" for saved in sessions))

    def _sessions_file(self, workspace: str) -> Path:
        import hashlib

        name = hashlib.sha256(workspace.encode()).hexdigest()[:32]
        return self.folder / "sessions" / f"{name}.jsonl"
