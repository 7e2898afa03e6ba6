"""Shows progress in the editor for work that takes longer than half a second."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Event

from lsprotocol import types

from sidecar.server.client import Client
from sidecar.tasks import Scheduler

DELAY_SECONDS = 0.5
_numbers = itertools.count(1)


@asynccontextmanager
async def progress(
    client: Client, scheduler: Scheduler, title: str, stop: Event | None = None
) -> AsyncIterator[Callable[[str, float], None]]:
    """Show a progress bar while the block is running.

    Yields `report(message, share)`, which may be called from any thread. `share` ranges from
    0 to 1.

    Args:
        client: The client that shows the progress bar.
        scheduler: Delays the progress bar, so that quick work does not show one.
        title: The progress bar's title.
        stop: An event to set when the user cancels. If None, the progress bar has no cancel button.
    """
    loop, bar = asyncio.get_running_loop(), client.work_done_progress
    key, token = ("progress", object()), ""  # the token is empty while no bar is shown

    async def begin() -> None:
        nonlocal token
        created = f"token-sidecar/{next(_numbers)}"
        try:
            await bar.create_async(created)
        except Exception:  # the client rejected the progress bar
            return
        token = created
        options = types.WorkDoneProgressBegin(title, cancellable=stop is not None, percentage=0)
        bar.begin(token, options)
        if stop is not None:
            bar.tokens[token].add_done_callback(lambda _: stop.set())

    def update(message: str, share: float) -> None:
        if token:
            body = types.WorkDoneProgressReport(message=message, percentage=int(100 * share))
            bar.report(token, body)

    def report(message: str, share: float) -> None:
        loop.call_soon_threadsafe(update, message, share)

    window = client.client_capabilities.window
    if window and window.work_done_progress:
        scheduler.schedule(key, DELAY_SECONDS, begin)
    try:
        yield report
    finally:
        scheduler.cancel(key)
        if token:
            bar.end(token, types.WorkDoneProgressEnd())
            bar.tokens.pop(token, None)
            token = ""
