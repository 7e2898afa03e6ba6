"""Whose request a connection sends next: the newest that somebody still waits for.

A server that is slow and well would else answer, one after another, what was given up long ago,
and be late for whatever is asked now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

from sidecar.endpoints.outcome import Unwanted

Wanted: TypeAlias = Callable[[], bool]
"""Whether somebody still waits for an answer."""


def always() -> bool:
    """What everybody waits for, such as a probe."""
    return True


_wanted: ContextVar[Wanted] = ContextVar("wanted", default=always)


@contextmanager
def while_wanted(wanted: Wanted) -> Iterator[None]:
    """Tasks that are begun here send nothing more once it is not `wanted`."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def always_wanted() -> None:
    """What the running task sends is wanted, whoever has begun it: others wait for it too."""
    _wanted.set(always)


class _Waiting(NamedTuple):
    turn: asyncio.Future[None]
    wanted: Wanted


class Turns:
    """One at a time, the newest first. Use it from one event loop."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: list[_Waiting] = []

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the connection alone. Raises Unwanted where nobody waits for it by then."""
        await self._take()
        try:
            yield
        finally:
            self._hand_on()

    async def _take(self) -> None:
        wanted = _wanted.get()
        if not wanted():
            raise Unwanted
        if not self._busy:
            self._busy = True
            return
        one = _Waiting(asyncio.get_running_loop().create_future(), wanted)
        self._waiting.append(one)
        try:
            await one.turn
        except asyncio.CancelledError:
            if one in self._waiting:
                self._waiting.remove(one)
            elif one.turn.done() and not one.turn.cancelled() and not one.turn.exception():
                self._hand_on()  # it was this one's turn just as it was given up
            raise

    def _hand_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.turn.done():
                continue
            if one.wanted():
                self._waiting.append(one)
            else:
                one.turn.set_exception(Unwanted())
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting.pop().turn.set_result(None)
