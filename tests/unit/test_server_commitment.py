"""Tests that a committed request is completed even if the client cancels it."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.errors import WorkStoppedError
from sidecar.server.protocol import Commitment, cancel, create_request_commitment


@pytest.mark.parametrize("is_committed", [True, False])
async def test_only_a_committed_request_survives_its_cancellation(is_committed: bool) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        commitment = create_request_commitment()
        if is_committed:
            commitment.commit()
        started.set()
        await gate.wait()
        return "done"

    task = asyncio.ensure_future(work())
    await started.wait()
    cancel(task)
    gate.set()
    [result] = await asyncio.gather(task, return_exceptions=True)
    assert (result == "done") is is_committed


def test_cancelled_request_cannot_be_committed() -> None:
    commitment = Commitment()
    assert commitment.cancel()
    with pytest.raises(WorkStoppedError):
        commitment.commit()
