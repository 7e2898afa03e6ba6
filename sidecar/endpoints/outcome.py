"""What asking an endpoint comes to: a count, or a miss that says why."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from sidecar.text.printable import printable

BIG_BYTES = 128 * 1024
LARGEST_CHARACTERS = 500_000
"""A text above this size is never sent."""
AbilityStatus: TypeAlias = Literal[
    "supported", "unsupported", "auth", "loading", "unreachable", "lying", "unknown"
]
"""`unsupported`: 404, a wrong shape, an error in a 200. `auth`: the key is missing or refused.
`loading`: 503 that says so. `unreachable`: 5xx, 429, a reset, a time-out. `lying`: the counts
cannot be true. `unknown`: not asked yet, or the server has another model loaded."""

MissKind: TypeAlias = Literal[
    AbilityStatus, "off", "undeclared", "too-large", "special-tokens", "late", "closed"
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

    @property
    def name(self) -> str:
        """What counted: the server, and the model there."""
        return f"{self.server}:{self.model}"


class Miss(msgspec.Struct, frozen=True):
    """No count, and why; the reason is made to be shown, and holds no text and no key."""

    reason: str
    kind: MissKind


_STEPS: dict[MissKind, str] = {
    "off": "set use-endpoint = true under [tokenize] in your own configuration",
    "undeclared": "choose a model that a server of yours has, or add this one to the models of an "
    "[[endpoint]] of your own configuration",
    "unsupported": "numbers are estimates; a tokenizer.json in [[tokenizer]] makes them exact",
    "auth": "put the key into an environment variable, and name that as api-key-env",
    "loading": "it is asked again by itself",
    "unreachable": "start the server or correct its url; it is asked again by itself",
    "lying": "numbers are estimates; look at what stands between here and the server",
    "unknown": "load the model there, or choose one that the server has",
}


URL_IN_DOUBT = f"is its url right? If it is, {_STEPS['unsupported']}"
"""The next step where nothing answers that is known of a model server."""


def sentence(kind: MissKind, reason: str, step: str = "") -> str:
    """Why a server does not count, and what can be done about it: `step`, else its kind's."""
    step = step or _STEPS.get(kind, "")
    return f"{reason}: {step}" if step else reason


def undeclared(model: str) -> str:
    """What is said where servers are declared, and none for this model."""
    return sentence("undeclared", printable(f"no endpoint is declared for {model}"))


OFF = sentence("off", "endpoints are off")
WINDOWS_ALONE = sentence("off", "the window alone is asked for, as endpoint-window says")
NO_ENDPOINT = (
    "no [[endpoint]] is declared that can be used: `token-sidecar config init --user` writes a "
    "sample, `token-sidecar config check` says what is wrong"
)


class Capability(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What one endpoint can do for one model (contract: `capabilities/list`)."""

    endpoint: str
    model: str
    server: str | None
    text: AbilityStatus
    chat: AbilityStatus
    limit: int | None
    """The window that is allocated, in tokens."""
    checked_at: str | None
    """RFC 3339 in UTC; null where nothing was sent yet."""
    reason: str | None = None
    """Why texts or chats are not counted, and the next step; null where both are."""


class Fault(Exception):  # noqa: N818 - it never leaves this room: there it is a Miss
    """Something went wrong with an endpoint: inside this room what a Miss is outside."""

    def __init__(self, kind: AbilityStatus, reason: str, step: str = "") -> None:
        """`step`: what can be done about it, where that is more than its kind tells."""
        super().__init__(reason)
        self.kind: AbilityStatus = kind
        self.reason, self.step = printable(reason), printable(step)

    @property
    def is_of_this_request(self) -> bool:
        """Whether the next one may fare better: what was sent was wrong or big, not the server."""
        return self.kind == "unsupported" and "HTTP 4" in self.reason


class Unwanted(Fault):
    """Nobody waited any more for what was not sent yet: it never was."""

    def __init__(self) -> None:
        super().__init__("unknown", "it was not sent: nobody waited for it any more")

    @property
    def is_of_this_request(self) -> bool:
        """It says nothing of the server."""
        return True


class TooSlow(Fault):
    """A request ran out of its time."""

    def __init__(self, reason: str, sent: int) -> None:
        super().__init__("unreachable", reason)
        self.sent = sent
        """Bytes of the request's body: what is big may be slow at a server that is well."""

    @property
    def is_of_this_request(self) -> bool:
        """One that is big and runs out of time shows nothing about the server."""
        return self.sent > BIG_BYTES
