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
    bar = _ProgressBar(server, title, stop)
    loop, key = asyncio.get_running_loop(), ("progress", bar)
    if bar.is_supported:
        server.scheduler.schedule(key, DELAY_SECONDS, bar.begin)

    def report(message: str, share: float) -> None:
        loop.call_soon_threadsafe(bar.report, message, share)

    try:
        yield report
    finally:
        server.scheduler.cancel(key)
        bar.end()


class _ProgressBar:
    def __init__(self, server: SidecarServer, title: str, stop: Event | None) -> None:
        window = server.client_capabilities.window
        self.is_supported = bool(window and window.work_done_progress)
        self._progress, self._title, self._stop = server.work_done_progress, title, stop
        self._token: str | None = None
        """The progress bar's token, or None while no progress bar is shown."""

    async def begin(self) -> None:
        """Show the progress bar, unless the client rejects it."""
        token = f"token-sidecar/{next(_numbers)}"
        try:
            await self._progress.create_async(token)
        except Exception:  # the client rejected the progress bar
            return
        stop, self._token = self._stop, token
        begin = types.WorkDoneProgressBegin(self._title, cancellable=stop is not None, percentage=0)
        self._progress.begin(token, begin)
        if stop is not None:
            self._progress.tokens[token].add_done_callback(lambda _: stop.set())

    def report(self, message: str, share: float) -> None:
        if self._token is not None:
            body = types.WorkDoneProgressReport(message=message, percentage=int(100 * share))
            self._progress.report(self._token, body)

    def end(self) -> None:
        if self._token is not None:
            self._progress.end(self._token, types.WorkDoneProgressEnd())
            self._progress.tokens.pop(self._token, None)
            self._token = None
