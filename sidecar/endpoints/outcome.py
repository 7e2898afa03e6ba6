"""The result of a request to an endpoint: a count, or the reason why there is no count."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from sidecar.errors import SidecarError
from sidecar.text.printable import printable

LARGEST_CHARACTERS = 500_000
"""Maximum number of characters of text to send to an endpoint."""
TOO_LONG = f"the text is longer than {LARGEST_CHARACTERS:,} characters"
AbilityStatus: TypeAlias = Literal[
    "supported", "unsupported", "auth", "loading", "unreachable", "lying", "unknown"
]
"""Whether an endpoint can count. `unsupported`: HTTP 404, an unexpected response, or an error in a
response with HTTP 200. `auth`: the key is missing or was refused. `loading`: the server is
loading the model. `unreachable`: HTTP 5xx or 429, a connection reset or a timeout. `lying`: the
counts cannot be correct. `unknown`: not probed yet, or another model is loaded.
"""

MissKind: TypeAlias = Literal[
    AbilityStatus,
    "off",
    "undeclared",
    "too-large",
    "special-tokens",
    "late",
    "interrupted",
    "closed",
]
"""Reasons why there is no count. They supplement the values of `AbilityStatus`.

`off`: `tokenize.use-endpoint` is off. `undeclared`: no endpoint declares the model. `too-large`:
the text is too long. `special-tokens`: the server would interpret special tokens in the text.
`late`: the time limit has passed, but the request may still be running. `interrupted`: the text
changed or the caller stopped waiting before the answer. `closed`: the server is shutting down.
"""


class EndpointCount(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A token count for text or a chat, made by the model's server."""

    tokens: int
    server: str
    """The server software, such as `llamacpp`."""
    endpoint: str
    model: str

    @property
    def name(self) -> str:
        """The tokenizer's name, which combines the server's and the model's names."""
        return f"{self.server}:{self.model}"


class Miss(msgspec.Struct, frozen=True):
    """The reason why there is no count. It contains neither the text nor the key."""

    reason: str
    kind: MissKind


_STEPS: dict[MissKind, str] = {
    "off": "set use-endpoint = true under [tokenize] in your own configuration",
    "undeclared": "choose a model that one of your servers has, or add this model to an "
    "[[endpoint]] in your own configuration",
    "unsupported": "counts are estimates; a tokenizer.json in [[tokenizer]] makes them exact",
    "auth": "store the key in an environment variable, and set api-key-env to its name",
    "loading": "the request is retried automatically",
    "unreachable": "start the server or correct its url; the request is retried automatically",
    "lying": "counts are estimates; check for a proxy in front of the server",
    "unknown": "load the model on the server, or choose a model that the server has",
}


URL_IN_DOUBT = f"check its url; if the url is correct, {_STEPS['unsupported']}"
"""Advice to show if no known model server was found at a URL."""


def explain(kind: MissKind, reason: str, step: str = "") -> str:
    """Append advice to a reason: either `step` or the usual advice for this kind of failure."""
    step = step or _STEPS.get(kind, "")
    return f"{reason}: {step}" if step else reason


def undeclared_reason(model: str) -> str:
    """Explain that a count is missing because no endpoint is configured for the model."""
    return explain("undeclared", printable(f"no endpoint is configured for {model}"))


ENDPOINTS_OFF = explain("off", "endpoints are disabled")
WINDOW_ONLY = explain("off", "endpoints are used only for context windows (endpoint-window)")
NO_ENDPOINT = (
    "no usable [[endpoint]] is configured: `token-sidecar config init --user` writes a sample, "
    "and `token-sidecar config check` reports problems"
)


class Capability(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An endpoint's capabilities for one model."""

    endpoint: str
    model: str
    server: str | None
    text: AbilityStatus
    chat: AbilityStatus
    limit: int | None
    """The size of the context window that the server allocates, in tokens; null if unknown."""
    checked_at: str | None
    """The time of the last probe (RFC 3339, UTC); null before the first probe."""
    reason: str | None = None
    """Why the endpoint cannot count text or chats, and what to do; null if it can count both."""


class EndpointError(SidecarError):
    """An endpoint did not return a count. `Endpoints` converts this error to a `Miss`."""

    kind = "endpoint"

    def __init__(
        self,
        status: AbilityStatus,
        reason: str,
        step: str = "",
        *,
        is_request_specific: bool = False,
    ) -> None:
        """Create an error.

        Args:
            status: The kind of failure.
            reason: The reason, as shown to the user.
            step: Advice that replaces the usual advice for the status.
            is_request_specific: Whether the failure affects only this request.
        """
        super().__init__(reason)
        self.status: AbilityStatus = status
        self.reason, self.step = printable(reason), printable(step)
        self.is_request_specific = is_request_specific


class ModelAsleepError(EndpointError):
    """The server has unloaded the idle model. Counting would load it again."""

    def __init__(self, model: str) -> None:
        super().__init__("unknown", f"{model} is asleep", "send it a prompt to wake it")


class RequestAbandonedError(EndpointError):
    """The request was not sent, because its caller stopped waiting."""

    def __init__(self) -> None:
        reason = "the request was not sent, because the caller stopped waiting"
        super().__init__("unknown", reason, is_request_specific=True)
