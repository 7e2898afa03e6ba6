"""Decides how large a context window is, and how much of it is usable and used.

The published limits and their sources are in `limits.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal

import msgspec

from sidecar import typed
from sidecar.models.names import claude_version, first_inside, first_match, is_misspelled

LimitSource = Literal["request", "transcript", "endpoint", "catalogue", "settings", "default"]
Severity = Literal["ok", "warning", "error"]

DEFAULT_LIMIT = 16_384
DEFAULT_RESERVE = 500


class Limit(msgspec.Struct, frozen=True):
    """A context window's size in tokens, and where it comes from."""

    tokens: int
    source: LimitSource
    prompt: int | None = None
    """The maximum prompt size in tokens, if it is smaller than the window."""


class NamedLimits(msgspec.Struct, frozen=True):
    """Context window sizes in tokens, as reported by clients, agents and endpoints."""

    request: int | None = None
    """The size that the client set for its session."""
    transcript: int | None = None
    """The size that the agent wrote to its files or passed to its status line command."""
    endpoint: int | None = None
    """The size reported by the model's server."""


class Window(msgspec.Struct, frozen=True):
    """A context window and the part reserved for the reply."""

    limit: Limit
    reserve: int = DEFAULT_RESERVE

    @property
    def usable(self) -> int:
        """The maximum prompt size in tokens; at least 1."""
        room = usable(self.limit.tokens, self.reserve)
        return min(room, self.limit.prompt or room)

    def percent(self, tokens: int) -> int:
        """Return how much of the usable window is used, as a whole percentage from 0 to 100."""
        return min(100, 100 * tokens // self.usable)

    def over(self, tokens: int) -> bool:
        """Return whether `tokens` exceeds the usable window."""
        return tokens > self.usable

    def available(self, tokens: int) -> int:
        """Return the number of free tokens in the usable window; negative if it is exceeded."""
        return self.usable - tokens


def usable(limit: int, reserve: int = DEFAULT_RESERVE) -> int:
    """Return how many tokens of a window a prompt can use.

    The rest is reserved for the reply, but never more than a quarter of the window.
    """
    return max(1, limit - min(reserve, limit // 4))


def resolve_limit(
    *,
    request: int | None = None,
    transcript: int | None = None,
    endpoint: int | None = None,
    catalogue: int | None = None,
    setting: int | None = None,
    prompt: int | None = None,
) -> Limit:
    """Return the first known window size, in the order of the arguments.

    If `setting` is smaller than this size, it is returned instead. All sizes are in tokens.

    Args:
        request: The size that the client set.
        transcript: The size that the agent wrote to its files.
        endpoint: The size reported by the model's server.
        catalogue: The size in the model catalogue.
        setting: The `context.limit` setting or the `CONTEXT_MAX_TOKENS` variable.
        prompt: The largest prompt that the vendor accepts. Ignored if the size comes from the
            client or the model's server.
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
    """Return how many thresholds are reached. Thresholds are fractions of the usable window."""
    return sum(tokens >= usable * share for share in warn_at)


def severity(tokens: int | None, usable: int | None, warn_at: Sequence[float]) -> Severity:
    """Return `error` if the last threshold is reached, `warning` if the first is, and `ok`
    otherwise.
    """
    if tokens is None or not usable or not warn_at:
        return "ok"
    if tokens >= usable * max(warn_at):
        return "error"
    return "warning" if tokens >= usable * min(warn_at) else "ok"


_CLAUDE_LINE = re.compile("opus|sonnet|haiku")

Table = Literal[
    "overruling", "windows", "windows-of-bases", "prompts", "replies", "claude-tool-prompts"
]  # fmt: skip
_WHOLE = 0
"""Marks models whose replies may use the rest of the context window."""


@cache
def _tables() -> dict[Table, dict[str, int]]:
    return typed.read_table("sidecar.models", "limits.toml", dict[Table, dict[str, int]])


def overruling_window(bare: str) -> int | None:
    """Return the context window that overrides the price list for a model, or None."""
    return first_match(_tables()["overruling"].items(), bare)


def published_window(bare: str) -> int | None:
    """Return a model's published context window in tokens, or None if it is unknown."""
    if is_misspelled(bare):
        return None
    found = first_match(_tables()["windows"].items(), bare)
    return first_inside(_tables()["windows-of-bases"].items(), bare) if found is None else found


@lru_cache(maxsize=4096)
def input_limit(bare: str) -> int | None:
    """Return a model's maximum prompt size in tokens if it is smaller than the window, or None."""
    return None if is_misspelled(bare) else first_match(_tables()["prompts"].items(), bare) or None


def max_output_of(bare: str) -> int | None:
    """Return a model's maximum reply size in tokens, or None if it is unknown."""
    tokens = None if is_misspelled(bare) else first_match(_tables()["replies"].items(), bare)
    return published_window(bare) if tokens == _WHOLE else tokens


def claude_tool_prompt(bare: str) -> int | None:
    """Return the tokens of the system prompt that Claude gets with tools, or None if unknown."""
    line, version = _CLAUDE_LINE.search(bare), claude_version(bare)
    if line is None or version is None:
        return None
    return _tables()["claude-tool-prompts"].get("{}-{}.{}".format(line[0], *version))
