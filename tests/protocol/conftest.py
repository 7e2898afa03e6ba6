"""Fixtures: an in-process client beside a fresh server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sidecar.server.server import create_server
from tests.protocol.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def bare() -> AsyncIterator[Client]:
    """A client that has not initialized yet."""
    client = Client(create_server())
    yield client
    await client.aclose()
    assert client.unread == [], "messages of the server that no test took"


@pytest.fixture
async def client(bare: Client) -> Client:
    """An initialized client."""
    await bare.initialize()
    return bare


@pytest.fixture
async def talker(client: Client) -> Client:
    """A client that does not look at the status."""
    client.ignore("status/update")
    return client
