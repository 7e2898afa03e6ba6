"""Context windows: their size, the usable part, and how full they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

LimitSource = Literal["request", "transcript", "endpoint", "catalogue", "settings", "default"]
Severity = Literal["ok", "warning", "error"]

DEFAULT_LIMIT = 16_384
DEFAULT_RESERVE = 500


class Limit(msgspec.Struct, frozen=True):
    """A context window in tokens, and where its size comes from."""

    tokens: int
    source: LimitSource
    prompt: int | None = None
    """The largest prompt in tokens, if it is smaller than the window."""


class NamedLimits(msgspec.Struct, frozen=True):
    """Context windows in tokens that are neither from the catalogue nor from the settings."""

    request: int | None = None
    """Named by the client for its session."""
    transcript: int | None = None
    """Named by the agent in its files or its status line."""
    endpoint: int | None = None
    """Named by the model's server."""


class Window(msgspec.Struct, frozen=True):
    """A context window and the reserve for the reply, which is not usable for prompts."""

    limit: Limit
    reserve: int = DEFAULT_RESERVE

    @property
    def usable(self) -> int:
        """Tokens available to a prompt; at least 1."""
        return usable(self.limit.tokens, self.reserve)

    def percent(self, tokens: int) -> int:
        """Return the used share of the usable window in whole percent, 0 to 100."""
        return percent(tokens, self.limit.tokens, self.reserve)

    def over(self, tokens: int) -> bool:
        """Return whether `tokens` exceed the usable window or the largest prompt."""
        return tokens > self.prompt_limit

    def available(self, tokens: int) -> int:
        """Return the remaining tokens of the usable window; negative if it is exceeded."""
        return (self.prompt_limit if self.over(tokens) else self.usable) - tokens

    @property
    def prompt_limit(self) -> int:
        """The largest prompt in tokens."""
        return min(self.usable, self.limit.prompt or self.usable)


def usable(limit: int, reserve: int = DEFAULT_RESERVE) -> int:
    """Return how many tokens of a window a prompt may use. The reserve is at most a quarter."""
    return max(1, limit - min(reserve, limit // 4))


def percent(tokens: int, limit: int, reserve: int = DEFAULT_RESERVE) -> int:
    """Return the used share of the usable window in whole percent, rounded down, at most 100."""
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
    """Return the window in force: the first known one, limited by a smaller user setting.

    All arguments are in tokens. `setting` is `context.limit` or CONTEXT_MAX_TOKENS. `prompt` is
    the vendor's largest prompt, which does not apply to a window that a client or server names.
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
    """Return `warning` from the first threshold on, and `error` from the last."""
    if tokens is None or not usable or not warn_at:
        return "ok"
    if tokens >= usable * max(warn_at):
        return "error"
    return "warning" if tokens >= usable * min(warn_at) else "ok"
