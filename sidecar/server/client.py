"""The editor: messages and progress for it, LSP's types, and the end of its process."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from threading import Event
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from sidecar import __version__
from sidecar.operating_system import is_alive
from sidecar.server.protocol import Feature, SidecarProtocol, strict_converter
from sidecar.tasks import Scheduler
from sidecar.text.document import Position

logger = logging.getLogger(__name__)

DIAGNOSTICS_SOURCE = "token-sidecar"

LINE_END = 2**31 - 1  # LSP clamps positions to the end of the line


def find_line_span(span: types.Range) -> tuple[int, int]:
    """Return the first and last line of a range, even if start and end are swapped."""
    lines = span.start.line, span.end.line
    return min(lines), max(lines)


def from_position(position: Position) -> types.Position:
    return types.Position(position.line, position.character)


class Client(LanguageServer):
    """The editor at the other end of the connection. pygls provides LSP's standard messages."""

    protocol: SidecarProtocol

    def __init__(self) -> None:
        super().__init__(
            "token-sidecar",
            __version__,
            protocol_cls=SidecarProtocol,
            converter_factory=strict_converter,
            text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
        )

    @property
    def initialized(self) -> asyncio.Event:
        """Set by the `initialized` notification. LSP forbids requests to the client before it."""
        return self.protocol.initialized

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Do nothing. pygls would show a popup, but errors are already logged and answered."""


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


CHECK_SECONDS = 3.0
"""How often to check whether the client process is still running."""


class ClientProcess(Feature):
    """Ends the session when the client's process ends, even if the pipe stays open."""

    def __init__(self, client: Client, scheduler: Scheduler) -> None:
        self._client, self._scheduler = client, scheduler

    def on_initialize(self, params: types.InitializeParams) -> None:
        # A process that is not found may run on another machine or outside of this container.
        if params.process_id is not None and is_alive(params.process_id):
            self._check(params.process_id)

    def _check(self, process_id: int) -> None:
        if is_alive(process_id):
            check = partial(self._check, process_id)
            self._scheduler.schedule(("client process",), CHECK_SECONDS, check)
        else:
            logger.error("the client process has exited; stopping")
            self._client.protocol.end(1)
