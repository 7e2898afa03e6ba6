"""Logs without contents: our own records only, to stderr, where editors keep a server's log.

pygls logs whole bodies and params (buffers, keys), so nothing of its loggers is let through.
"""

from __future__ import annotations

import logging
import sys

from sidecar.text.printable import printable_lines

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Formatter(logging.Formatter):
    """Names that others chose stay text: no escapes of a terminal, no command of a CI."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def set_up_logging(level: str = "WARNING") -> None:
    """Send `sidecar` records of `level` and above to stderr; silence every library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    ours = logging.getLogger("sidecar")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False
    silence_libraries()


def silence_libraries() -> None:
    """Let no library's record out: their texts quote what they were given."""
    for name in ("pygls", "asyncio", "httpx", "httpcore", "watchdog"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL + 1)
        logger.propagate = False
        logger.handlers[:] = [logging.NullHandler()]
