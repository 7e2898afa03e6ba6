"""Shares the context usage of this server's conversations with other processes.

Each server writes one file per workspace with counts, ids, models and times, but no text. The
server holds a lock while it runs; files of servers without a lock are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.config.private import locked, make_folder, write
from sidecar.context.protocol import ContextUsage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sidecar.workspace.workers import Workers

_LOCK_SECONDS = 1.0
_NEW_SECONDS = 60.0
"""A new server may take this long to lock the file that it has created."""
_MOST_BYTES = 1 << 22


class SharedConversations:
    """Shares this process's conversations with other processes."""

    def __init__(self, folder: Path, workers: Workers) -> None:
        self.folder = folder
        """The folder in which all running servers write."""
        self._workers = workers
        self._name = secrets.token_hex(8)
        self._process_lock: contextlib.ExitStack | None = None
        self._written: dict[str, bytes | None] = {}
        """The file content by workspace; None while a write runs or after it failed."""
        self._writing = asyncio.Lock()

    async def write(self, workspace: str, sessions: Sequence[ContextUsage]) -> None:
        """Write a workspace's file if its content has changed. Raises OSError."""
        private = [msgspec.structs.replace(one, largest=[], text="", rows=[]) for one in sessions]
        data = msgspec.json.encode(private) if private else b""
        async with self._writing:
            if data == self._written.get(workspace, b""):
                return
            run = self._workers.run
            if self._process_lock is None:
                self._process_lock = await run(partial(_lock_files, self.folder, self._lock_path))
            self._written[workspace] = None
            await run(partial(_replace_file, self._file_of(workspace), data))
            self._written[workspace] = data

    async def aclose(self) -> None:
        """Remove the files and the lock. Never raises."""
        async with self._writing:
            lock, self._process_lock = self._process_lock, None
            files = tuple(self._file_of(workspace) for workspace in self._written)
            self._written.clear()
            if lock is not None:
                await self._workers.run(partial(_remove_files, files, lock, self._lock_path))

    @property
    def _lock_path(self) -> Path:
        return self.folder / f"{self._name}.lock"

    def _file_of(self, workspace: str) -> Path:
        return self.folder / f"{self._name}.{_name_digest(workspace)}.json"


def read(folder: Path, workspace: str) -> list[ContextUsage]:
    """Return the conversations of all running servers in a workspace. Never raises."""
    usages: list[ContextUsage] = []
    for path in folder.glob(f"*.{_name_digest(workspace)}.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            if _is_held(_lock_of(path)):
                with path.open("rb") as file:
                    usages += typed.decode(file.read(_MOST_BYTES), list[ContextUsage])
    return usages


def _lock_files(folder: Path, lock: Path) -> contextlib.ExitStack:
    """Remove the files of ended processes, and take this process's lock. Raises OSError."""
    make_folder(folder)
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _NEW_SECONDS and not _is_held(path):
                for left in (*folder.glob(f"{path.stem}.*.json"), path):
                    left.unlink(missing_ok=True)
    with contextlib.ExitStack() as held:
        if not held.enter_context(locked(lock, _LOCK_SECONDS)):
            raise OSError("another process holds the lock of this process's conversations")
        return held.pop_all()


def _replace_file(path: Path, data: bytes) -> None:
    if data:
        write(path, data)
    else:
        path.unlink(missing_ok=True)


def _remove_files(files: tuple[Path, ...], lock: contextlib.ExitStack, lock_path: Path) -> None:
    with contextlib.suppress(OSError), lock:
        for path in files:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        lock_path.unlink(missing_ok=True)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.lock")


def _is_held(lock: Path) -> bool:
    """Return whether the process that created a lock still runs. Raises OSError."""
    if not lock.exists():
        return False
    with locked(lock, 0.0) as is_free:
        return not is_free


def _name_digest(workspace: str) -> str:
    return hashlib.sha256(workspace.encode()).hexdigest()[:32]
