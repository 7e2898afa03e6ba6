"""Runs the server over stdio, with its log."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from sidecar.errors import log_defect
from sidecar.server.stdio import Frames, Writer, read_on_loop, read_on_thread, redirect_stdio
from sidecar.text.printable import printable_lines

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer

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


_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def set_up_logging(level: str = "WARNING") -> None:
    """Log this package's messages of at least this level to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logger = logging.getLogger("sidecar")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False


def run(log_level: str = "WARNING") -> int:
    """Serve on stdin and stdout until the session ends. Returns the exit code."""
    # Counting threads yield to the event loop after 0.5 ms rather than 5 ms.
    sys.setswitchinterval(0.0005)
    # Importing lsprotocol creates about 100,000 permanent objects. Without garbage collection,
    # the import takes a fifth less time.
    gc.disable()

    set_up_logging(log_level)
    from sidecar.server.server import create_server

    server = create_server()
    gc.freeze()
    gc.enable()
    return serve_stdio(server)
