"""An agent's own session as its files have it: counts only, without the conversation's rooms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from sidecar.counting.count import Method

RECENT = timedelta(hours=24)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""When a session was updated that must not be taken for the current one."""


class CountedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is known by its counts only: what an agent's own files say of it."""

    id: str
    source: str
    """The agent's name."""
    updated_at: datetime
    title: str | None = None
    model: str | None = None
    tokens: int | None = None
    quality: Method = "exact"
    """How the tokens were counted."""
    error_percent: float = 0.0
    """Half of the band of the tokens."""
    limit: int | None = None
    """The window by the agent's own word, in tokens."""
    note: str | None = None
    """Why a number is missing or weak."""
    state: Literal["running", "idle", "ended"] = "idle"
    parent: str | None = None
    compacted: bool = False
