"""Logs to stderr, without any text of documents.

pygls logs whole messages, including documents and keys, so its loggers are silenced.
"""

from __future__ import annotations

import logging
import sys

from sidecar.text.printable import printable_lines

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def set_up_logging(level: str = "WARNING") -> None:
    """Log records of `sidecar` from `level` on to stderr, and silence all libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logger = logging.getLogger("sidecar")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    silence_libraries()


def silence_libraries() -> None:
    """Silence the libraries' loggers, because their messages quote contents."""
    for name in ("pygls", "asyncio", "httpx", "httpcore", "watchdog"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        logger.handlers[:] = [logging.NullHandler()]
