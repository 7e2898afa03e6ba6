"""The window of a model: its limit, what of it is usable, and how full it is (contract)."""

from __future__ import annotations

from typing import Literal

import msgspec

LimitSource = Literal["request", "transcript", "endpoint", "catalogue", "settings", "default"]

DEFAULT_LIMIT = 16_384
DEFAULT_RESERVE = 500


class Limit(msgspec.Struct, frozen=True):
    """A window in tokens, and who said so."""

    tokens: int
    source: LimitSource


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
        """Whether `tokens` are more than the usable window."""
        return tokens > self.usable

    def available(self, tokens: int) -> int:
        """What is left of the usable window in tokens; negative when over."""
        return self.usable - tokens


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
) -> Limit:
    """The window in force: the first that is known, capped by a smaller setting of the user's.

    `setting` is `context.limit` or the environment's CONTEXT_MAX_TOKENS. All in tokens.
    """
    ranked: tuple[tuple[int | None, LimitSource], ...] = (
        (request, "request"),
        (transcript, "transcript"),
        (endpoint, "endpoint"),
        (catalogue, "catalogue"),
    )
    known = next((Limit(tokens, source) for tokens, source in ranked if tokens), None)
    if setting and (known is None or setting < known.tokens):
        return Limit(setting, "settings")
    return known or Limit(DEFAULT_LIMIT, "default")
