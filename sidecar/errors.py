"""Errors for people: one base, by the kinds that the protocol documents."""

from __future__ import annotations

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
    "badParams": "the params have a wrong shape, or name something that cannot be; -32602",
    "unknownDocument": "the document is not open in this server, or out of step with it; -32602",
    "noText": "the session is known by counts only, so its text cannot be worked on; -32803",
    "endpoint": "a model server did not answer as it should; -32803",
    "config": "the configuration does not allow it, or is broken; -32803",
    "storage": "the ledger or another state file could not be read or written; -32803",
    "trust": "something that only the user's own settings may ask for; -32803",
    "internal": "a defect of this server; -32803",
}


class SidecarError(Exception):
    """The base of every error whose message is for people; it quotes no text of theirs.

    `kind` and `retryable` are what a client is answered with (`sidecar.server.errors`).
    """

    kind: ErrorKind = "internal"
    retryable: bool = False


class RequestError(SidecarError):
    """A request that cannot be done."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BadParamsError(SidecarError, ValueError):
    """Something that was given has a wrong shape, or names something that cannot be."""

    kind = "badParams"
