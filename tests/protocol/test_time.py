"""Tests status changes that are caused by time alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sidecar.agents.session_events import StoredSession
from sidecar.workspace import sessions
from tests.protocol.client import Client


@pytest.fixture
def midnight_is_near(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a time zone in which the day ends in a few seconds."""
    # In the time zone with this offset from UTC, in seconds, midnight is four seconds away.
    east = -int(time.time() + 4) % 86_400
    west = -east if east <= 43_200 else 86_400 - east
    hours, rest = divmod(abs(west), 3_600)
    zone = f"XST{'-' if west < 0 else '+'}{hours}:{rest // 60:02}:{rest % 60:02}"
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot change the zone of a process")
async def test_todays_costs_are_reset_at_midnight(midnight_is_near: None, client: Client) -> None:
    call = {"model": "gpt-4o", "usage": {"prompt_tokens": 400_000, "completion_tokens": 0}}
    await client.request("cost/record", call)
    shown = await client.take("status/update", lambda status: bool(status["cost"]))
    assert shown["cost"]["text"] == "$1.00 today"
    shown = await client.take(
        "status/update", lambda status: status["cost"]["costUsd"] == 0, seconds=20
    )
    assert shown["cost"]["text"] == "$0.00 today"
    assert "| Today | $0.00 in all workspaces |" in shown["cost"]["tooltip"]
    assert "| This workspace | $1.00 in total |" in shown["cost"]["tooltip"]
    client.ignore("status/update")


async def test_agents_session_is_shown_once_the_plugins_conversation_is_old(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PROTOCOL_OUTRANKS", timedelta(seconds=2))
    turn = {"role": "user", "content": "some words"}
    own = await client.request("context/append", {"session": "mine", "turns": [turn]})
    services = client.server.services
    agents = StoredSession(
        id="a1", source="codex", updated_at=datetime.now(UTC), model="gpt-5", tokens=5_000
    )
    services.sessions(services.roots.default).set_agent_sessions([agents])

    def shows(tokens: int) -> Any:
        return lambda status: bool(status["context"]) and status["context"]["tokens"] == tokens

    await client.take("status/update", shows(own["tokens"]))
    await client.take("status/update", shows(5_000), seconds=20)
    client.ignore("status/update")
