"""Fixtures for clients of a server in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sidecar.server.server import create_server
from tests.protocol.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
