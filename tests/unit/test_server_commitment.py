"""What cannot be taken back is finished though the client gives up; what has not begun is not."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.errors import WorkStoppedError
from sidecar.server.commitment import Commitment, cancel, commitment


@pytest.mark.parametrize("made", [True, False])
async def test_only_what_was_committed_to_goes_on(made: bool) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        mine = commitment()
        if made:
            mine.make()
        begun.set()
        await gate.wait()
        return "done"

    task = asyncio.ensure_future(work())
    await begun.wait()
    cancel(task)
    gate.set()
    [found] = await asyncio.gather(task, return_exceptions=True)
    assert (found == "done") is made


def test_given_up_first_it_is_never_made() -> None:
    mine = Commitment()
    assert mine.give_up()
    with pytest.raises(WorkStoppedError):
        mine.make()
