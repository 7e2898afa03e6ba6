"""Tests which session of a workspace is displayed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from sidecar.agents.events import StoredSession
from sidecar.context.conversation import Conversation
from sidecar.context.protocol import ContextUsage, SessionInfo
from sidecar.workspace.services import Services
from sidecar.workspace.shown_session import PROTOCOL
from sidecar.workspace.state import State
from tests.unit.context_fakes import FakeCounter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("mine", "agents", "shown"),
    [
        (29, 0, "mine"),  # A client's conversation is displayed for half an hour.
        (31, 0, "agents"),
        (31, 40, "mine"),  # Later, the most recently updated session is displayed.
        (0, 5, "mine"),
        (None, 40, "agents"),
        (40, None, "mine"),
        (None, None, None),
    ],
)
def test_shown_session_is_chosen_by_age(
    tmp_path: Path, mine: int | None, agents: int | None, shown: str | None
) -> None:
    """Each parameter is the number of minutes since a session was updated."""
    services = Services(state=State(tmp_path))
    sessions = services.sessions(services.roots.default)
    now = datetime.now(UTC)
    if mine is not None:
        own = Conversation("mine", FakeCounter())
        own.updated_at = now - timedelta(minutes=mine)
        sessions.put(own)
    if agents is not None:
        at = now - timedelta(minutes=agents)
        one = StoredSession(id="agents", source="Claude Code", updated_at=at, model="gpt-5")
        sessions.set_agent_sessions([one])
    found = sessions.find(None)
    name = found.id if isinstance(found, StoredSession) else found and found.id
    assert name == shown
    services.workers.close()


@pytest.mark.parametrize(
    ("minutes", "until"),
    [
        (5, timedelta(minutes=30)),  # Later, the agent's session is displayed.
        (40, timedelta(hours=24)),  # Later, the session is too old to be displayed.
    ],
)
def test_remote_conversation_is_shown_like_a_local_one(
    tmp_path: Path, minutes: int, until: timedelta
) -> None:
    services = Services(state=State(tmp_path))
    sessions = services.sessions(services.roots.default)
    updated_at = datetime.now(UTC) - timedelta(minutes=minutes)
    info = SessionInfo.of("theirs", PROTOCOL, updated_at)
    sessions.set_remote_conversations([ContextUsage(model="gpt-5", session=info)])
    session = sessions.find(None)
    assert isinstance(session, StoredSession)
    assert sessions.next_switch_at() == session.updated_at + until
    services.workers.close()
