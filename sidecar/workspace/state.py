"""What outlives the process: calibration, the ledger, sessions that asked for it. Blocking."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING

from sidecar.config.paths import state_dir
from sidecar.context.persist import SavedSession, from_json, to_json
from sidecar.counting import calibration_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sidecar.config.settings import Price, Settings
    from sidecar.cost.book import CostBook
    from sidecar.counting.calibration import Calibrations

_SESSIONS_KEPT = 64


class State:
    """The user's state folder. Opened and read when first needed; safe to share by threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_dir()
        self._lock = threading.Lock()
        self._calibrations: Calibrations | None = None
        self._books: dict[tuple[tuple[Price, ...], str | None], CostBook] = {}
        self._dirty = False

    def calibrations(self) -> Calibrations:
        """What reported usage has taught so far."""
        with self._lock:
            if self._calibrations is None:
                self._calibrations = calibration_file.load(self.folder)
            return self._calibrations

    def calibrations_changed(self) -> None:
        """Something was learned; `save` writes it."""
        self._dirty = True

    def save(self) -> None:
        """Write what was learned since the last time. Raises OSError."""
        if self._dirty and self._calibrations is not None:
            self._dirty = False
            calibration_file.save(self.folder, self._calibrations)

    def book(self, settings: Settings) -> CostBook:
        """The ledger, with the user's own prices and collector."""
        from sidecar.cost.book import CostBook

        prices, collector = settings.prices, settings.ledger.otel_endpoint
        with self._lock:
            if (prices, collector) not in self._books:
                book = CostBook(self.folder, prices, otel_endpoint=collector)
                self._books[prices, collector] = book
            return self._books[prices, collector]

    def sessions(self, workspace: str) -> list[SavedSession]:
        """The sessions of a workspace that asked to be kept, by their counts. Never raises."""
        try:
            lines = self._sessions_file(workspace).read_bytes().splitlines()
        except OSError:
            return []
        return [saved for line in lines if (saved := from_json(line)) is not None]

    def save_sessions(
        self, workspace: str, sessions: Sequence[SavedSession], mine: set[str]
    ) -> None:
        """Keep these, the latest ones first, beside those of other servers. Raises OSError.

        `mine` are the ids that this server speaks for: of these only `sessions` stay.
        """
        others = [saved for saved in self.sessions(workspace) if saved.id not in mine]
        every = [*sessions, *others]
        latest = sorted(every, key=lambda one: one.updated_at, reverse=True)[:_SESSIONS_KEPT]
        path = self._sessions_file(workspace)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.touch(mode=0o600)
        aside.write_bytes(b"".join(to_json(saved) + b"\n" for saved in latest))
        aside.replace(path)

    def close(self) -> None:
        """Write what is left, and close the ledger."""
        self.save()
        for book in self._books.values():
            book.close()

    def _sessions_file(self, workspace: str) -> Path:
        name = hashlib.sha256(workspace.encode()).hexdigest()[:32]
        return self.folder / "sessions" / f"{name}.jsonl"
