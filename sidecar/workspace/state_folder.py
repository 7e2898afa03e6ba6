"""The user's state folder, which contains the ledger and saved conversations.

Servers share their conversations' context usage through files, one per server and workspace. The
files contain counts, IDs, models and times, but no text. A server holds a lock while it runs. Files
from a server that no longer holds its lock are ignored.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.config.paths import state_dir
from sidecar.config.safe_files import lock_state, locked, make_folder, set_aside, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from pathlib import Path

    from sidecar.config.settings import Price, Settings
    from sidecar.conversations.context_protocol import ContextUsage
    from sidecar.conversations.conversation import SavedSession
    from sidecar.cost.book import CostBook
    from sidecar.tasks import Workers

_SESSIONS_KEPT = 64


@dataclass(frozen=True, eq=False)
class State:
    """The user's state folder, and the ledgers in it that this process has opened. Thread-safe."""

    folder: Path = field(default_factory=state_dir)
    _books: dict[tuple[Price, ...], CostBook] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def book(self, settings: Settings) -> CostBook:
        """Return the ledger, with the user's prices from the settings."""
        with self._lock:
            book = self._books.get(settings.prices)
            if book is None:
                from sidecar.cost.book import CostBook

                book = self._books[settings.prices] = CostBook(self.folder, settings.prices)
            return book

    def refresh_prices(self) -> None:
        """Replace the prices that ledgers have from an earlier price list. This function blocks."""
        with self._lock:
            books = [*self._books.values()]
        for book in books:
            book.prices.fingerprint()

    def estimate(self, model: str, tokens: int, settings: Settings) -> Decimal | None:
        """Return the price of uncached input in USD, or None if it is unknown."""
        return self.book(settings).estimate(model, tokens)

    def sessions(self, workspace: str) -> list[SavedSession]:
        """Return a workspace's saved conversations, newest first. Never raises."""
        from sidecar.conversations.conversation import from_json

        path = self._sessions_file(workspace)
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return []
        kept = [saved for line in lines if (saved := from_json(line)) is not None]
        if len(kept) < len(lines):
            set_aside(path, "it contains a session that is damaged or from another version")
            with contextlib.suppress(OSError):
                self._write_sessions(path, kept)
        return kept

    def save_sessions(
        self, workspace: str, sessions: Sequence[SavedSession], own_ids: set[str]
    ) -> None:
        """Save this server's conversations. Conversations saved by other servers are kept.

        Args:
            workspace: The workspace's URI.
            sessions: The conversations to save.
            own_ids: The IDs of this server's conversations. Saved conversations with these IDs
                are deleted if they are missing from `sessions`.

        Raises:
            OSError: The file cannot be written.
        """
        with lock_state(self.folder):
            others = [saved for saved in self.sessions(workspace) if saved.id not in own_ids]
            newest_first = sorted(
                [*sessions, *others], key=lambda saved: saved.updated_at, reverse=True
            )
            path = self._sessions_file(workspace)
            self._write_sessions(path, newest_first[:_SESSIONS_KEPT])

    def close(self) -> None:
        for book in self._books.values():
            book.close()

    def _write_sessions(self, path: Path, sessions: Sequence[SavedSession]) -> None:
        from sidecar.conversations.conversation import to_json

        make_folder(self.folder)
        make_folder(path.parent)
        write(path, b"".join(to_json(saved) + b"\n" for saved in sessions))

    def _sessions_file(self, workspace: str) -> Path:
        return self.folder / "sessions" / f"{_name_digest(workspace)}.jsonl"


_SHARING_LOCK_SECONDS = 1.0
_NEW_SECONDS = 60.0
"""How long to keep an unlocked lock file, in seconds. Its server may still be starting."""
_MAX_SHARED_BYTES = 1 << 22


class SharedConversations:
    """Shares this process's conversations with other processes."""

    def __init__(self, folder: Path, workers: Workers) -> None:
        self.folder = folder
        """The folder that all running servers write their conversations to."""
        import asyncio
        import secrets

        self._workers = workers
        self._name = secrets.token_hex(8)
        self._process_lock: contextlib.ExitStack | None = None
        self._written: dict[str, bytes | None] = {}
        """The content of each workspace's file. None while the file is being written, and after
        a failed write.
        """
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
        """Remove this process's files and lock. Never raises."""
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


def read_shared_conversations(folder: Path, workspace: str) -> list[ContextUsage]:
    """Return all running servers' conversations in a workspace. Never raises."""
    from sidecar.conversations.context_protocol import ContextUsage

    usages: list[ContextUsage] = []
    for path in folder.glob(f"*.{_name_digest(workspace)}.json"):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if _is_held(_lock_of(path)):
                with path.open("rb") as file:
                    usages += typed.decode(file.read(_MAX_SHARED_BYTES), list[ContextUsage])
    return usages


def _lock_files(folder: Path, lock: Path) -> contextlib.ExitStack:
    """Remove the files of processes that have exited, and lock this process's files.

    Raises OSError.
    """
    make_folder(folder)
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _NEW_SECONDS and not _is_held(path):
                for left in (*folder.glob(f"{path.stem}.*.json"), path):
                    left.unlink(missing_ok=True)
    with contextlib.ExitStack() as held:
        if not held.enter_context(locked(lock, _SHARING_LOCK_SECONDS)):
            raise OSError("another process has locked this process's conversations")
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
    """Return whether the process that created a lock file is still running. Raises OSError."""
    if not lock.exists():
        return False
    with locked(lock, 0.0) as is_free:
        return not is_free


def _name_digest(workspace: str) -> str:
    import hashlib

    return hashlib.sha256(workspace.encode()).hexdigest()[:32]
