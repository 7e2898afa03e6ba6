"""The sizes of running servers' conversations, shared with other processes. Blocking.

Each server writes one file per workspace, which holds counts, ids, models and times and no text. It
holds a lock for as long as it runs, however it ends: files without a lock's owner are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.config.private import locked, make_folder, write
from sidecar.context.usage import ContextUsage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LOCK_SECONDS = 1.0
_NEW_SECONDS = 60.0
"""A lock this new may not be held yet by the server that has created it."""
_MOST_BYTES = 1 << 22


class LiveSessions:
    """Writes this process's conversations, and reads those of other running processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where running servers write."""
        self._name = secrets.token_hex(8)
        self._running = contextlib.ExitStack()
        """Holds this process's lock from the first file on."""
        self._written: dict[str, list[ContextUsage]] = {}
        self._lock = threading.Lock()

    def write(self, workspace: str, sessions: Sequence[ContextUsage]) -> None:
        """Replace what is written of a workspace, if it differs. Raises OSError."""
        private = [msgspec.structs.replace(one, largest=[], text="", rows=[]) for one in sessions]
        with self._lock:
            if private == self._written.get(workspace, []):
                return
            if not self._written:
                self._begin()
            path = self._file(workspace)
            if private:
                write(path, msgspec.json.encode(private))
            else:
                path.unlink(missing_ok=True)
            self._written[workspace] = private

    def read(self, workspace: str) -> list[ContextUsage]:
        """The conversations of all running servers in a workspace. Never raises."""
        found: list[ContextUsage] = []
        for path in self.folder.glob(f"*.{_digest(workspace)}.json"):
            with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
                if _is_held(_lock_of(path)):
                    with path.open("rb") as file:
                        found += typed.decode(file.read(_MOST_BYTES), list[ContextUsage])
        return found

    def close(self) -> None:
        """Remove what was written. Never raises."""
        with self._lock, contextlib.suppress(OSError):
            for workspace in self._written:
                self._file(workspace).unlink(missing_ok=True)
            self._running.close()
            if self._written:
                self._lock_path.unlink(missing_ok=True)
            self._written.clear()

    def _begin(self) -> None:
        make_folder(self.folder)
        for path in self.folder.glob("*.lock"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _NEW_SECONDS and not _is_held(path):
                    for left in (*self.folder.glob(f"{path.stem}.*.json"), path):
                        left.unlink(missing_ok=True)
        if not self._running.enter_context(locked(self._lock_path, _LOCK_SECONDS)):
            raise OSError("the lock of this process's conversations is held by another one")

    @property
    def _lock_path(self) -> Path:
        return self.folder / f"{self._name}.lock"

    def _file(self, workspace: str) -> Path:
        return self.folder / f"{self._name}.{_digest(workspace)}.json"


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.lock")


def _is_held(lock: Path) -> bool:
    """Whether the process that created a lock still runs. Raises OSError."""
    if not lock.exists():
        return False
    with locked(lock, 0.0) as is_free:
        return not is_free


def _digest(workspace: str) -> str:
    return hashlib.sha256(workspace.encode()).hexdigest()[:32]
