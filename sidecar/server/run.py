"""Runs `token-sidecar serve` and configures logging. Logs never contain text from documents."""

from __future__ import annotations

import gc
import logging
import sys

from sidecar.text.printable import printable_lines

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
    # the import takes 10 % less time.
    gc.disable()

    set_up_logging(log_level)
    from sidecar.server.serve import serve_stdio
    from sidecar.server.server import create_server

    server = create_server()
    gc.freeze()
    gc.enable()
    return serve_stdio(server)
