"""Work-done progress for what takes long: shown by the editor after half a second, not before."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from threading import Event

    from sidecar.server.server import SidecarServer

PATIENCE_SECONDS = 0.5
_numbers = itertools.count(1)


@asynccontextmanager
async def progress(
    server: SidecarServer, title: str, stop: Event | None = None
) -> AsyncIterator[Callable[[str, float], None]]:
    """Gives `report(what, share)`, which any thread may call; share is from 0 to 1.

    `stop`: set where the person cancels it; without one it cannot be cancelled.
    """
    loop = asyncio.get_running_loop()
    begun = asyncio.ensure_future(_show(server, title, stop))

    def report(what: str, share: float) -> None:
        loop.call_soon_threadsafe(_report, server, begun, what, share)

    try:
        yield report
    finally:
        if not begun.done():
            begun.cancel()
        elif not begun.cancelled() and (token := begun.result()) is not None:
            server.work_done_progress.end(token, types.WorkDoneProgressEnd())
            server.work_done_progress.tokens.pop(token, None)


async def _show(server: SidecarServer, title: str, stop: Event | None) -> str | None:
    """The token of a progress bar that the client shows; None where it shows none."""
    window = server.client_capabilities.window
    if window is None or not window.work_done_progress:
        return None
    await asyncio.sleep(PATIENCE_SECONDS)
    token = f"token-sidecar/{next(_numbers)}"
    try:
        await server.work_done_progress.create_async(token)
    except Exception:  # a client may refuse: then nothing is shown
        return None
    begin = types.WorkDoneProgressBegin(title, cancellable=stop is not None, percentage=0)
    server.work_done_progress.begin(token, begin)
    if stop is not None:
        server.work_done_progress.tokens[token].add_done_callback(lambda _: stop.set())
    return token


def _report(
    server: SidecarServer, begun: asyncio.Future[str | None], what: str, share: float
) -> None:
    if begun.done() and not begun.cancelled() and (token := begun.result()) is not None:
        body = types.WorkDoneProgressReport(message=what, percentage=int(100 * share))
        server.work_done_progress.report(token, body)
