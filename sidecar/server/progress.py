"""Shows progress in the editor for work that takes longer than half a second."""

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

DELAY_SECONDS = 0.5
_numbers = itertools.count(1)


@asynccontextmanager
async def progress(
    server: SidecarServer, title: str, stop: Event | None = None
) -> AsyncIterator[Callable[[str, float], None]]:
    """Show a progress bar while the block is running.

    Yields `report(message, share)`, which may be called from any thread. `share` ranges from
    0 to 1.

    Args:
        server: The server whose client shows the progress bar.
        title: The progress bar's title.
        stop: An event to set when the user cancels. If None, the progress bar has no cancel button.
    """
    loop, client = asyncio.get_running_loop(), server.work_done_progress
    key, token = ("progress", object()), ""  # the token is empty while no bar is shown

    async def begin() -> None:
        nonlocal token
        created = f"token-sidecar/{next(_numbers)}"
        try:
            await client.create_async(created)
        except Exception:  # the client rejected the progress bar
            return
        token = created
        options = types.WorkDoneProgressBegin(title, cancellable=stop is not None, percentage=0)
        client.begin(token, options)
        if stop is not None:
            client.tokens[token].add_done_callback(lambda _: stop.set())

    def update(message: str, share: float) -> None:
        if token:
            body = types.WorkDoneProgressReport(message=message, percentage=int(100 * share))
            client.report(token, body)

    def report(message: str, share: float) -> None:
        loop.call_soon_threadsafe(update, message, share)

    window = server.client_capabilities.window
    if window and window.work_done_progress:
        server.scheduler.schedule(key, DELAY_SECONDS, begin)
    try:
        yield report
    finally:
        server.scheduler.cancel(key)
        if token:
            client.end(token, types.WorkDoneProgressEnd())
            client.tokens.pop(token, None)
            token = ""
