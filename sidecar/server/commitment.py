"""Cancellation of requests that cannot be undone, such as recording a call.

A client can cancel a request until the request is committed. After that, the request is
completed and answered as usual.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

from sidecar.errors import WorkStoppedError


class Commitment:
    """Decides whether a request is committed or cancelled. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_committed = self._is_cancelled = False

    def commit(self) -> None:
        """Commit the request, so that it can no longer be cancelled.

        Raises:
            WorkStoppedError: The request is already cancelled.
        """
        with self._lock:
            if self._is_cancelled:
                raise WorkStoppedError
            self._is_committed = True

    def cancel(self) -> bool:
        """Cancel the request unless it is committed. Returns whether it is cancelled."""
        with self._lock:
            self._is_cancelled = not self._is_committed
            return self._is_cancelled


_commitments: WeakKeyDictionary[asyncio.Future[Any], Commitment] = WeakKeyDictionary()


def create_commitment() -> Commitment:
    """Return a new commitment for the request of the current task."""
    commitment = Commitment()
    task = asyncio.current_task()
    if task is not None:
        _commitments[task] = commitment
    return commitment


def cancel(task: asyncio.Future[Any]) -> None:
    commitment = _commitments.get(task)
    if commitment is None or commitment.cancel():
        task.cancel()
