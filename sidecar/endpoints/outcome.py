"""The results of asking an endpoint: a count, or the reason why there is none."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from sidecar.errors import SidecarError
from sidecar.text.printable import printable

BIG_BYTES = 128 * 1024
LARGEST_CHARACTERS = 500_000
"""Longer texts are never sent."""
AbilityStatus: TypeAlias = Literal[
    "supported", "unsupported", "auth", "loading", "unreachable", "lying", "unknown"
]
"""`unsupported`: 404, an unexpected shape, or an error in a 200. `auth`: the key is missing or
refused. `loading`: a 503 that says so. `unreachable`: 5xx, 429, a reset or a timeout. `lying`:
the counts cannot be true. `unknown`: not asked yet, or the server has another model loaded."""

MissKind: TypeAlias = Literal[
    AbilityStatus, "off", "undeclared", "too-large", "special-tokens", "late", "closed"
]
"""Why there is no count, besides the statuses of `AbilityStatus`.

`off`: `tokenize.use-endpoint` is off. `undeclared`: no endpoint names the model. `special-tokens`:
the server would interpret special tokens in the text. `late`: the time limit has passed, but the
request may still be running.
"""


class EndpointCount(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A number of tokens, as the model's server counts them."""

    tokens: int
    server: str
    """The kind of server, such as `llamacpp`."""
    endpoint: str
    model: str

    @property
    def name(self) -> str:
        """The tokenizer's name: server and model."""
        return f"{self.server}:{self.model}"


class Miss(msgspec.Struct, frozen=True):
    """The reason why there is no count. It contains neither text nor key."""

    reason: str
    kind: MissKind


_STEPS: dict[MissKind, str] = {
    "off": "set use-endpoint = true under [tokenize] in your own configuration",
    "undeclared": "choose a model that one of your servers has, or add this one to the models of "
    "an [[endpoint]] in your own configuration",
    "unsupported": "counts are estimates; a tokenizer.json in [[tokenizer]] makes them exact",
    "auth": "put the key into an environment variable and name it in api-key-env",
    "loading": "it is retried automatically",
    "unreachable": "start the server or correct its url; it is retried automatically",
    "lying": "counts are estimates; check for a proxy in front of the server",
    "unknown": "load the model there, or choose one that the server has",
}


URL_IN_DOUBT = f"is its url right? If it is, {_STEPS['unsupported']}"
"""The next step if no known model server answers."""


def explain(kind: MissKind, reason: str, step: str = "") -> str:
    """Append the next step to a reason: `step`, or the usual one for this kind of failure."""
    step = step or _STEPS.get(kind, "")
    return f"{reason}: {step}" if step else reason


def undeclared_reason(model: str) -> str:
    """Return the reason for a model that no endpoint names."""
    return explain("undeclared", printable(f"no endpoint is configured for {model}"))


ENDPOINTS_OFF = explain("off", "endpoints are disabled")
WINDOW_ONLY = explain("off", "only the context window is requested (endpoint-window)")
NO_ENDPOINT = (
    "no usable [[endpoint]] is configured: `token-sidecar config init --user` writes a sample, "
    "`token-sidecar config check` reports problems"
)


class Capability(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The capabilities of an endpoint for a model."""

    endpoint: str
    model: str
    server: str | None
    text: AbilityStatus
    chat: AbilityStatus
    limit: int | None
    """The allocated context window, in tokens."""
    checked_at: str | None
    """RFC 3339 in UTC; null before the first request."""
    reason: str | None = None
    """Why texts or chats are not counted, with the next step; null if both are."""


class EndpointError(SidecarError):
    """An endpoint gave no count. `Endpoints` turns it into a `Miss`."""

    kind = "endpoint"

    def __init__(self, status: AbilityStatus, reason: str, step: str = "") -> None:
        """Args:
        status: The kind of failure.
        reason: The reason, for the user.
        step: What to do, if that is more than `status` implies.
        """
        super().__init__(reason)
        self.status: AbilityStatus = status
        self.reason, self.step = printable(reason), printable(step)

    @property
    def is_request_specific(self) -> bool:
        """Whether another request may succeed, because this one was malformed or too large."""
        return self.status == "unsupported" and "HTTP 4" in self.reason


class RequestAbandonedError(EndpointError):
    """The caller stopped waiting, so the request was not sent."""

    def __init__(self) -> None:
        super().__init__("unknown", "the request was not sent: its caller stopped waiting")

    @property
    def is_request_specific(self) -> bool:
        return True


class EndpointTimeoutError(EndpointError):
    """A request exceeded its time limit."""

    def __init__(self, reason: str, sent_bytes: int) -> None:
        super().__init__("unreachable", reason)
        self.sent_bytes = sent_bytes

    @property
    def is_request_specific(self) -> bool:
        """Whether the request was so large that even a healthy server may be slow."""
        return self.sent_bytes > BIG_BYTES
