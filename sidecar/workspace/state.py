"""The user's state folder with the ledger and saved conversations. Blocking."""

from __future__ import annotations

import contextlib
import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.config.paths import state_dir
from sidecar.config.private import locked, make_folder, set_aside, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sidecar.config.settings import Price, Settings
    from sidecar.context.persist import SavedSession
    from sidecar.cost.book import CostBook

_SESSIONS_KEPT = 64
_LOCK_NAME = "state.lock"
_LOCK_SECONDS = 10.0


@contextlib.contextmanager
def state_locked(folder: Path) -> Iterator[None]:
    """Lock the state folder's shared files against other processes. Raises OSError."""
    with locked(folder / _LOCK_NAME, _LOCK_SECONDS) as is_alone:
        if not is_alone:
            raise TimeoutError(errno.ETIMEDOUT, "another process holds the state folder")
        yield


class OpenBooks:
    """The open ledgers of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: dict[tuple[tuple[Price, ...], str | None], CostBook] = {}

    def get(self, folder: Path, prices: tuple[Price, ...], otel_endpoint: str | None) -> CostBook:
        """Return a state folder's ledger, opening it if necessary."""
        key = prices, otel_endpoint
        with self._lock:
            book = self._books.get(key)
            if book is None:
                from sidecar.cost.book import CostBook

                book = self._books[key] = CostBook(folder, prices, otel_endpoint=otel_endpoint)
            return book

    def close(self) -> None:
        for book in self._books.values():
            book.close()


@dataclass(frozen=True, eq=False)
class State:
    """The user's state folder. Frozen, so that threads can share it."""

    folder: Path = field(default_factory=state_dir)
    books: OpenBooks = field(default_factory=OpenBooks)

    def book(self, settings: Settings) -> CostBook:
        """Return the ledger, with the user's own prices and collector."""
        return self.books.get(self.folder, settings.prices, settings.ledger.otel_endpoint)

    def sessions(self, workspace: str) -> list[SavedSession]:
        """Return the saved conversations of a workspace, newest first. Never raises."""
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
        self, workspace: str, sessions: Sequence[SavedSession], own_ids: set[str]
    ) -> None:
        """Save this server's conversations without changing those of other servers.

        Args:
            workspace: URI of the workspace.
            sessions: The conversations to save.
            own_ids: This server's ids. Saved conversations with such an id that are missing from
                `sessions` are removed.

        Raises:
            OSError: The file cannot be written.
        """
        with state_locked(self.folder):
            others = [saved for saved in self.sessions(workspace) if saved.id not in own_ids]
            newest_first = sorted(
                [*sessions, *others], key=lambda saved: saved.updated_at, reverse=True
            )
            path = self._sessions_file(workspace)
            self._write_sessions(path, newest_first[:_SESSIONS_KEPT])

    def close(self) -> None:
        self.books.close()

    def _write_sessions(self, path: Path, sessions: Sequence[SavedSession]) -> None:
        from sidecar.context.persist import to_json

        make_folder(self.folder)
        make_folder(path.parent)
        write(path, b"".join(to_json(saved) + b"\n" for saved in sessions))

    def _sessions_file(self, workspace: str) -> Path:
        import hashlib

        name = hashlib.sha256(workspace.encode()).hexdigest()[:32]
        return self.folder / "sessions" / f"{name}.jsonl"
