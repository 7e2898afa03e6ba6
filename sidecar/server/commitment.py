"""A request that does what cannot be taken back, such as billing, is then finished in any case.

A client may give up any request. Before the point of no return nothing has happened; after it the
request is worked off and answered as if it had not been given up.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

from sidecar.counting.incremental import Stopped


class Commitment:
    """Whichever comes first: that it is made, on any thread, or that the request is given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = self._given_up = False

    def make(self) -> None:
        """From here on the request is finished. Raises Stopped where it was given up before."""
        with self._lock:
            if self._given_up:
                raise Stopped
            self._made = True

    def give_up(self) -> bool:
        """Whether it still could be given up; then it never can be made."""
        with self._lock:
            self._given_up = not self._made
            return self._given_up


_commitments: WeakKeyDictionary[asyncio.Future[Any], Commitment] = WeakKeyDictionary()


def commitment() -> Commitment:
    """What the request that the running task works off commits itself by."""
    made = Commitment()
    task = asyncio.current_task()
    if task is not None:
        _commitments[task] = made
    return made


def cancel(task: asyncio.Future[Any]) -> None:
    """Give a request up, unless it is to be finished."""
    made = _commitments.get(task)
    if made is None or made.give_up():
        task.cancel()
