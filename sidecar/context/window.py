"""The window of a model: its limit, what of it is usable, and how full it is (contract)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

LimitSource = Literal["request", "transcript", "endpoint", "catalogue", "settings", "default"]
Severity = Literal["ok", "warning", "error"]

DEFAULT_LIMIT = 16_384
DEFAULT_RESERVE = 500


class Limit(msgspec.Struct, frozen=True):
    """A window in tokens, and its source."""

    tokens: int
    source: LimitSource
    prompt: int | None = None
    """What a prompt may hold, where that is less than the window: the rest is the reply's."""


class NamedLimits(msgspec.Struct, frozen=True):
    """Who beside the catalogue and the settings names a model's window, in tokens."""

    request: int | None = None
    """The client, for its session."""
    transcript: int | None = None
    """The agent, in its session's file or to its status line."""
    endpoint: int | None = None
    """The server that has the model, when asked or when it refused a prompt."""


class Window(msgspec.Struct, frozen=True):
    """A limit with the reply's reserve taken off: what percent and `over` are measured by."""

    limit: Limit
    reserve: int = DEFAULT_RESERVE

    @property
    def usable(self) -> int:
        """Tokens that a prompt may take; at least 1."""
        return usable(self.limit.tokens, self.reserve)

    def percent(self, tokens: int) -> int:
        """Whole percent of the usable window, 0 to 100."""
        return percent(tokens, self.limit.tokens, self.reserve)

    def over(self, tokens: int) -> bool:
        """Whether `tokens` are more than the usable window, or than a prompt may hold."""
        return tokens > self.prompt_limit

    def available(self, tokens: int) -> int:
        """What is left of the usable window in tokens; negative when over."""
        return (self.prompt_limit if self.over(tokens) else self.usable) - tokens

    @property
    def prompt_limit(self) -> int:
        """The most tokens that a prompt may hold."""
        return min(self.usable, self.limit.prompt or self.usable)


def usable(limit: int, reserve: int = DEFAULT_RESERVE) -> int:
    """Tokens of a window that are left to the prompt: the reserve takes a quarter at most."""
    return max(1, limit - min(reserve, limit // 4))


def percent(tokens: int, limit: int, reserve: int = DEFAULT_RESERVE) -> int:
    """Whole percent of the usable window, rounded down, 100 at most."""
    return min(100, 100 * tokens // usable(limit, reserve))


def resolve_limit(
    *,
    request: int | None = None,
    transcript: int | None = None,
    endpoint: int | None = None,
    catalogue: int | None = None,
    setting: int | None = None,
    prompt: int | None = None,
) -> Limit:
    """The window in force: the first that is known, capped by a smaller setting of the user's.

    `setting` is `context.limit` or the environment's CONTEXT_MAX_TOKENS, `prompt` what the maker
    lets a prompt hold; a window that the client or a server names is their word. All in tokens.
    """
    ranked: tuple[tuple[int | None, LimitSource], ...] = (
        (request, "request"),
        (transcript, "transcript"),
        (endpoint, "endpoint"),
        (catalogue, "catalogue"),
    )
    known = next((Limit(tokens, source) for tokens, source in ranked if tokens), None)
    if setting and (known is None or setting < known.tokens):
        known = Limit(setting, "settings")
    if known is None:
        return Limit(DEFAULT_LIMIT, "default")
    if prompt and known.source not in ("request", "endpoint") and prompt < known.tokens:
        return Limit(known.tokens, known.source, prompt)
    return known


def level(tokens: int, usable: int, warn_at: Sequence[float]) -> int:
    """Return how many thresholds (shares of the usable window) are reached."""
    return sum(tokens >= usable * share for share in warn_at)


def severity(tokens: int | None, usable: int | None, warn_at: Sequence[float]) -> Severity:
    """Return `warning` from the first threshold on, `error` from the last."""
    if tokens is None or not usable or not warn_at:
        return "ok"
    if tokens >= usable * max(warn_at):
        return "error"
    return "warning" if tokens >= usable * min(warn_at) else "ok"
