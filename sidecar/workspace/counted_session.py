"""A session that is known by its counts only: an agent's own, or one of another process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from sidecar.context.usage import ContextUsage
from sidecar.counting.count import Method

PROTOCOL = "protocol"
"""The source of a conversation that a client feeds."""
RECENT = timedelta(hours=24)
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""When a session was updated that must not be taken for the current one."""


class CountedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent's own files say of its session, or another server of its conversation."""

    id: str
    source: str
    """The agent's name, or `PROTOCOL`."""
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
    usage: ContextUsage | None = None
    """Of a conversation of another process: all that its server says of it."""


def from_usage(usage: ContextUsage) -> CountedSession | None:
    """The conversation of another process whose size this is; None where it names none."""
    info = usage.session
    if info is None:
        return None
    try:
        updated_at = datetime.fromisoformat(info.updated_at)
    except ValueError:
        return None
    return CountedSession(
        id=info.id, source=PROTOCOL, updated_at=updated_at, model=usage.model, usage=usage
    )
