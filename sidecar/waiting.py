"""How the event loop waits for an answer that may take long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 0.3
"""How long nothing is shown for an endpoint that is asked: then the estimate is."""


async def or_meanwhile(answer: Awaitable[T], meanwhile: Callable[[], Awaitable[None] | None]) -> T:
    """Await an answer, and do something else once where it takes longer than `PATIENCE_SECONDS`."""
    task = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
        if not task.done() and (other := meanwhile()) is not None:
            await other
        return await task
    finally:
        task.cancel()
