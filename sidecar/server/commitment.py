"""Requests with effects that cannot be undone, such as billing.

A client may cancel any request. Before the point of no return nothing has happened; after it the
request is completed and answered as if it had not been cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

from sidecar.errors import WorkStoppedError


class Commitment:
    """Decides whether a request is committed or cancelled: the first wins, on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = self._given_up = False

    def make(self) -> None:
        """Pass the point of no return.

        Raises:
            WorkStoppedError: the request was cancelled before.
        """
        with self._lock:
            if self._given_up:
                raise WorkStoppedError
            self._made = True

    def give_up(self) -> bool:
        """Cancel the request unless it is committed; return whether it is cancelled."""
        with self._lock:
            self._given_up = not self._made
            return self._given_up


_commitments: WeakKeyDictionary[asyncio.Future[Any], Commitment] = WeakKeyDictionary()


def commitment() -> Commitment:
    """Return a new commitment of the request handled by the running task."""
    made = Commitment()
    task = asyncio.current_task()
    if task is not None:
        _commitments[task] = made
    return made


def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a request unless it is committed."""
    made = _commitments.get(task)
    if made is None or made.give_up():
        task.cancel()
