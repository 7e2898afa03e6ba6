"""Serves one session on stdio, until the client ends it."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from sidecar.defects import log_defect
from sidecar.server.server import SidecarServer
from sidecar.server.stdio import Frames, Writer, read_on_loop, read_on_thread, redirect_stdio

EXIT_SECONDS = 1.5
"""Time allowed for saving calibrations and stopping threads on exit."""


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(exc := context.get("exception"), BaseException):
        log_defect(exc)


async def _run(server: SidecarServer, stdin: int, writer: Writer) -> int:
    loop = asyncio.get_running_loop()
    protocol = server.protocol
    protocol.set_writer(writer)
    done = protocol.start(loop)
    loop.set_exception_handler(_log_exception)

    def receive(frames: Frames) -> None:
        if frames is None:
            protocol.end(1)
            return
        for frame in frames:
            protocol.receive(frame)

    def deliver(frames: Frames) -> None:
        try:
            loop.call_soon_threadsafe(receive, frames)
        except RuntimeError:
            return  # the event loop is closed

    if not read_on_loop(server.scheduler, stdin, receive, writer):
        reading = (stdin, deliver, writer)
        threading.Thread(target=read_on_thread, args=reading, name="stdin", daemon=True).start()
    code = await done
    _end_within(EXIT_SECONDS, code)
    server.scheduler.close()
    await server.services.aclose()
    return code


def _end_within(seconds: float, code: int) -> None:
    """Exit after the given number of seconds, even if a worker thread is blocked."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def serve_stdio(server: SidecarServer) -> int:
    """Serve on stdio until `exit` or the end of the input.

    Returns the exit code required by LSP.
    """
    stdin, stdout = redirect_stdio()
    writer = Writer(stdout)
    try:
        return asyncio.run(_run(server, stdin, writer))
    except KeyboardInterrupt:
        return 1
    finally:
        writer.close()
        server.close()
