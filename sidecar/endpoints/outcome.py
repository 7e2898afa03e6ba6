"""What asking an endpoint comes to: a count, or a miss that says why."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal[
    "supported", "unsupported", "auth", "loading", "unreachable", "lying", "unknown"
]
"""`unsupported`: 404, a wrong shape, an error in a 200. `auth`: the key is missing or refused.
`loading`: 503 that says so. `unreachable`: 5xx, 429, a reset, a time-out. `lying`: the counts
cannot be true. `unknown`: not asked yet, or the server has another model loaded."""

MissKind: TypeAlias = Literal[
    Status, "off", "undeclared", "too-large", "special-tokens", "late", "closed"
]
"""`off`: the setting `tokenize.use-endpoint`. `undeclared`: no endpoint of the user's names the
model. `special-tokens`: the text holds what this server would take for special tokens. `late`:
the caller's time was up. The request may still be under way."""


class EndpointCount(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A number of tokens as the model's own server counts them."""

    tokens: int
    server: str
    """The kind of server, such as `llamacpp`."""
    endpoint: str
    model: str


class Miss(msgspec.Struct, frozen=True):
    """No count, and why; the reason is made to be shown, and holds no text and no key."""

    reason: str
    kind: MissKind


class Capability(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What one endpoint can do for one model (contract: `capabilities/list`)."""

    endpoint: str
    model: str
    server: str | None
    text: Status
    chat: Status
    limit: int | None
    """The window that is allocated, in tokens."""
    checked_at: str | None
    """RFC 3339 in UTC; null where nothing was sent yet."""


class Fault(Exception):  # noqa: N818 - it never leaves this room: there it is a Miss
    """Something went wrong with an endpoint: inside this room what a Miss is outside."""

    def __init__(self, kind: Status, reason: str) -> None:
        super().__init__(reason)
        self.kind: Status = kind
        self.reason = reason


class TooSlow(Fault):
    """A request ran out of its time."""

    def __init__(self, reason: str, sent: int) -> None:
        super().__init__("unreachable", reason)
        self.sent = sent
        """Bytes of the request's body: what is big may be slow at a server that is well."""
