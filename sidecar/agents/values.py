"""Values that readers return. They hold counts, ids, models and times, but no message text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from sidecar.messages.usage import Usage

Quality = Literal["exact", "lower bound", "estimate"]
"""How reliable a session's size is. A `lower bound` misses calls or tokens."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""When a running turn without new lines counts as idle; tools may run for minutes."""
_QUIET_AFTER = timedelta(minutes=1)
"""The same if the store does not say whether a turn is running."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """Tokens that one call of the main conversation sent and received."""

    prompt: int
    """Tokens of the whole input, cached or not."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """Tokens, as reported by the agent."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full a session's context window is. `note` explains why a value is unknown (None)."""

    tokens: int | None = None
    limit: int | None = None
    """Context window as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Error band (±%) of `tokens`; 0 if they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of a coding agent."""

    id: str
    source: str
    """The agent's name."""
    path: str
    """The store that the session was read from."""
    cwd: str | None
    """The folder that the agent works in, if known."""
    updated_at: datetime
    model: str | None = None
    title: str | None = None
    """The title that the agent stored, never text of a message."""
    occupancy: Occupancy = Occupancy()
    parent: str | None = None
    """The session that this one was forked from."""
    active: bool | None = None
    """Whether a turn is running, if known."""
    ended: bool = False
    rank: int = 0
    """Of several stores with one session, the one with the highest rank is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """Return the session's state. A turn without new lines for a while counts as idle."""
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"
