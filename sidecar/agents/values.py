"""Values that readers return: counts, ids, models and times, but no message text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from sidecar.messages.usage import Usage

Quality = Literal["exact", "lower bound", "estimate"]
"""How accurate a session's size is. A `lower bound` lacks calls or tokens."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""A running turn without new lines counts as idle after this time. Tools may run for minutes."""
_QUIET_AFTER = timedelta(minutes=1)
"""The same for stores that do not tell whether a turn is running."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """Tokens that one call of the main conversation sent and received."""

    prompt: int
    """Tokens of the whole input, including cached ones."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """The context window in tokens, as reported by the agent."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full a session's context window is. `note` explains unknown values."""

    tokens: int | None = None
    limit: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Error band (±%) of `tokens`; 0 if they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a coding agent."""

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
    """If several stores contain the session, the one with the highest rank is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """Return the session's state. A turn without new lines for a while counts as idle."""
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"
