"""Tests that the server shows calls recorded by another process."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.project import file_watcher
from sidecar.server.features.costs import CostSums
from sidecar.server.server import create_server
from tests.protocol.client import Client


async def test_first_call_in_a_new_state_folder_is_shown_without_a_poll(
    bare: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher used to check for a missing ledger only every two seconds."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 1_000.0)
    await bare.initialize()
    await bare.server.services.load_prices()
    followed = bare.feature(CostSums)._followed._followed
    while (
        "ledger" not in followed
        or not followed["ledger"][1]._stamps
        or (bare.server.scheduler.is_due(("ledger",)))
    ):
        # The delay between the watcher's first report and the resulting job is shorter than this.
        await asyncio.sleep(0.5)
    other = Client(create_server())
    await other.initialize()
    other.ignore("status/update")
    call = {"model": "gpt-4o", "usage": {"prompt_tokens": 400_000, "completion_tokens": 0}}
    await other.request("cost/record", call)
    await bare.take(
        "status/update", lambda status: bool(status["cost"] and status["cost"]["costUsd"])
    )
    bare.ignore("status/update")
    await other.aclose()
