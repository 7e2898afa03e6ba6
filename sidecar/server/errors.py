"""JSON-RPC errors for exceptions: code, message, `data.kind` and `data.retryable`."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from typing import Any

from pygls.exceptions import JsonRpcException

from sidecar.defects import log_defect
from sidecar.errors import SidecarError
from sidecar.text.printable import message as printable

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_NOT_INITIALIZED = -32002
REQUEST_FAILED = -32803
REQUEST_CANCELLED = -32800

_BAD_PARAMS = ("badParams", "unknownDocument")


def error_body(exc: BaseException) -> dict[str, Any]:
    """Return the `error` member for an exception. Defects are logged by type and place only."""
    if isinstance(exc, SidecarError):
        code = INVALID_PARAMS if exc.kind in _BAD_PARAMS else REQUEST_FAILED
        return make_error(code, str(exc), exc.kind, retryable=exc.retryable)
    if isinstance(exc, asyncio.CancelledError | CancelledError):
        return make_error(REQUEST_CANCELLED, "the request was cancelled", None, retryable=True)
    if isinstance(exc, JsonRpcException):
        return make_error(exc.code or REQUEST_FAILED, exc.message or "failed", "badParams")
    log_defect(exc)
    return make_error(
        REQUEST_FAILED, f"internal error ({type(exc).__name__}); see the server's log", "internal"
    )


def make_error(
    code: int, message: str, kind: str | None, *, retryable: bool = False
) -> dict[str, Any]:
    """Return a JSON-RPC error object, without data if `kind` is None."""
    body: dict[str, Any] = {"code": code, "message": printable(message)}
    if kind is not None:
        body["data"] = {"kind": kind, "retryable": retryable}
    return body
