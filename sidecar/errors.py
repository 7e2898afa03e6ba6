"""Errors that are reported to the user, and the log of defects.

Of an unexpected exception, only the type and the location are logged, because its message may quote
text from documents.
"""

from __future__ import annotations

import logging
from typing import Literal

ErrorKind = Literal[
    "badParams",
    "unknownDocument",
    "noText",
    "endpoint",
    "config",
    "storage",
    "trust",
    "internal",
]

ERROR_KINDS: dict[ErrorKind, str] = {
    "badParams": "the params are invalid; -32602",
    "unknownDocument": "the document is not open in this server, or out of sync; -32602",
    "noText": "the request needs the session's text, but only its counts are known; -32803",
    "endpoint": "a model server did not respond, or sent an unexpected response; -32803",
    "config": "the configuration forbids the request or is invalid; -32803",
    "storage": "the ledger or another state file cannot be read or written; -32803",
    "trust": "only the user's own settings may allow this; -32803",
    "internal": "a bug in this server; -32803",
}


def how_to_install(extra: str) -> str:
    """Return instructions for installing an optional extra of this package."""
    return f"install the extra: in your clone, run pipx inject --force token-sidecar '.[{extra}]'"


class SidecarError(Exception):
    """Base class for all errors in this package.

    The messages are shown to users and never quote text from documents. Clients receive
    `kind` and `retryable` (see `sidecar.server.protocol`).
    """

    kind: ErrorKind = "internal"
    retryable: bool = False


class RequestError(SidecarError):
    """Raised if a request cannot be carried out."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BadParamsError(SidecarError, ValueError):
    """Raised if an argument is invalid or names something that does not exist."""

    kind = "badParams"


class VendorFormatError(BadParamsError):
    """Raised if a reply or usage object is not in a known vendor's format.

    The message names the invalid field but does not quote its value.
    """


class WorkStoppedError(SidecarError):
    """Raised on a worker thread whose result is no longer needed. Never shown to users."""


logger = logging.getLogger(__name__)

_MAX_PLACES = 6


def log_defect(exc: BaseException, job: str = "") -> None:
    """Log an unexpected exception. `job` is the name of the background job that failed."""
    places = []
    trace = exc.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    where = f"{job}: " if job else ""
    logger.error("%s%s at %s", where, type(exc).__name__, " > ".join(places[-_MAX_PLACES:]))
