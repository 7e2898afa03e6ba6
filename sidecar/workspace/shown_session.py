"""Chooses which session a workspace shows.

A session that the user has selected takes precedence (`SessionRegistry.select`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from sidecar.agents.events import StoredSession

if TYPE_CHECKING:
    from sidecar.context.conversation import Conversation

Session: TypeAlias = "Conversation | StoredSession"

PROTOCOL = "protocol"
"""The `source` value for conversations from clients."""
PROTOCOL_OUTRANKS = timedelta(minutes=30)
"""How long a client's conversation takes precedence over newer agent sessions."""
RECENT = timedelta(hours=24)
"""How long a session from an agent or another server is shown after its last update."""


def choose_session(conversation: Session | None, agents: StoredSession | None) -> Session | None:
    """Choose between a client's conversation and an agent's session.

    The conversation takes precedence for 30 minutes after its last update. After that, the
    session that was updated last is chosen.

    Args:
        conversation: A client's newest conversation, possibly on another server.
        agents: An agent's newest session.
    """
    if conversation is None or agents is None:
        return conversation or agents
    outranked_until = datetime.now(UTC) - PROTOCOL_OUTRANKS
    is_first = conversation.updated_at >= min(agents.updated_at, outranked_until)
    return conversation if is_first else agents


def next_switch_at(shown: Session) -> datetime | None:
    """Return the time when the shown session loses its precedence or becomes too old to show.

    Returns None if this time has passed.
    """
    is_stored = isinstance(shown, StoredSession)
    periods = [RECENT] if is_stored else []
    if not is_stored or shown.source == PROTOCOL:
        periods.append(PROTOCOL_OUTRANKS)
    ends = (shown.updated_at + period for period in periods)
    return min((at for at in ends if at > datetime.now(UTC)), default=None)


def is_recent(session: Session) -> bool:
    """Return whether a session that is not selected is recent enough to be shown."""
    return not isinstance(session, StoredSession) or (
        session.updated_at >= datetime.now(UTC) - RECENT
    )
