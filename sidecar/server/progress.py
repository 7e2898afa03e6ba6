"""Work-done progress for what takes long: shown by the editor after half a second, not before."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lsprotocol import types

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sidecar.server.server import SidecarServer

PATIENCE_SECONDS = 0.5
_numbers = itertools.count(1)  # pygls keeps tokens for ever: each must be new


@asynccontextmanager
async def progress(
    server: SidecarServer, title: str
) -> AsyncIterator[Callable[[str, float], None]]:
    """Gives `report(what, share)`, which any thread may call; share is from 0 to 1."""
    loop = asyncio.get_running_loop()
    shown = asyncio.ensure_future(_show(server, title))

    def report(what: str, share: float) -> None:
        loop.call_soon_threadsafe(_tell, server, shown, what, share)

    try:
        yield report
    finally:
        if not shown.done():
            shown.cancel()
        elif not shown.cancelled() and (token := shown.result()) is not None:
            server.work_done_progress.end(token, types.WorkDoneProgressEnd())


async def _show(server: SidecarServer, title: str) -> str | None:
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
    server.work_done_progress.begin(token, types.WorkDoneProgressBegin(title, percentage=0))
    return token


def _tell(
    server: SidecarServer, shown: asyncio.Future[str | None], what: str, share: float
) -> None:
    if shown.done() and not shown.cancelled() and (token := shown.result()) is not None:
        body = types.WorkDoneProgressReport(message=what, percentage=int(100 * share))
        server.work_done_progress.report(token, body)
