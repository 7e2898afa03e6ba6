"""What readers hand on: frozen values of counts, ids, models and times. Never message text."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from sidecar.messages.usage import Usage

Quality = Literal["exact", "lower bound", "estimate"]
"""How far the size of a session can be trusted: a `lower bound` leaves calls or tokens out."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""Of a turn that is under way: tools may run for minutes without a line."""
_QUIET_AFTER = timedelta(minutes=1)
"""Of a store that does not say whether a turn is under way."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """What one call of the main conversation sent and got."""

    prompt: int
    """Tokens of all input, whether a cache held it or not."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """Tokens, by the agent's own word."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full a session's window is. A null means that it is not known, and `note` says why."""

    tokens: int | None = None
    limit: int | None = None
    """By the agent's own word; the catalogue stands in for it elsewhere."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Half of the band of `tokens`; 0 where they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of an agent, as its newest lines show it."""

    id: str
    source: str
    """The agent's name."""
    path: str
    """The store that it was read from."""
    cwd: str | None
    """The folder that the agent works in; None where the store does not say."""
    updated_at: datetime
    model: str | None = None
    title: str | None = None
    """The agent's own title field, never made from a turn."""
    occupancy: Occupancy = Occupancy()
    parent: str | None = None
    """The session that it was forked from."""
    active: bool | None = None
    """Whether a turn is under way; None where the store does not say."""
    ended: bool = False
    rank: int = 0
    """Of several stores of one session the highest is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """What the session does, as far as its store says; a turn that fell silent is idle."""
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"
