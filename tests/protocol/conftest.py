"""Fixtures for clients of a server in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sidecar.server.server import create_server
from tests.protocol.client import Client

DELAYS = (
    "sidecar.server.features.costs.DELAY_SECONDS",
    "sidecar.server.features.count_updates.SAVE_SECONDS",
    "sidecar.server.features.count_updates.DELAY_SECONDS",
    "sidecar.server.features.count_updates.SHARING_DELAY_SECONDS",
    "sidecar.server.features.diagnostics.DEBOUNCE_SECONDS",
    "sidecar.server.features.diagnostics.CHECK_SECONDS",
    "sidecar.server.features.status_updates.DEBOUNCE_SECONDS",
    "sidecar.server.server.WATCH_SECONDS",
    "sidecar.workspace.agent_sessions.SHOWN_SECONDS",
    "sidecar.server.features.costs.SUM_SECONDS",
)
"""Delays that only save work."""


@pytest.fixture(autouse=True)
def no_delays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do everything at once, unless the test is marked `real_delays`."""
    if request.node.get_closest_marker("real_delays") is None:
        for name in DELAYS:
            monkeypatch.setattr(name, 0.0)


@pytest.fixture
async def bare() -> AsyncIterator[Client]:
    """A client that is not initialized."""
    client = Client(create_server())
    yield client
    await client.aclose()
    assert client.unread == [], "the test left notifications unread"


@pytest.fixture
async def client(bare: Client) -> Client:
    """An initialized client."""
    await bare.initialize()
    return bare


@pytest.fixture
async def talker(client: Client) -> Client:
    """An initialized client that ignores status updates."""
    client.ignore("status/update")
    return client
