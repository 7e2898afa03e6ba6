"""Tests that the stdio loop limits buffered output and handles non-blocking pipes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest

from sidecar.server import stdio
from sidecar.server.stdio import MAX_UNREAD_BYTES, Frames, Writer
from sidecar.tasks import Scheduler

BODY = b"{}"
FRAME = b"Content-Length: 2\r\n\r\n" + BODY


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """Return stdin's read and write ends, followed by stdout's."""
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        os.close(end)


async def until(look: Callable[[], object]) -> None:
    while not look():
        await asyncio.sleep(0.01)


async def test_input_is_not_read_while_the_client_reads_nothing(
    pipes: tuple[int, int, int, int],
) -> None:
    taken, sent, unread, written = pipes
    writer = Writer(written)
    frames: list[Frames] = []
    loop = asyncio.get_running_loop()
    stdio.read_on_loop(Scheduler(), taken, frames.append, writer)
    os.write(sent, FRAME)
    await until(lambda: frames)
    writer.write(b"x" * (MAX_UNREAD_BYTES + 1_000_000))
    os.write(sent, FRAME)
    await asyncio.sleep(0.3)
    assert frames == [[BODY]]
    left = MAX_UNREAD_BYTES + 1_000_000
    while left:
        left -= len(await asyncio.to_thread(os.read, unread, 1 << 20))
    await until(lambda: len(frames) == 2)
    assert not writer.full
    loop.remove_reader(taken)
    writer.close()


async def test_spurious_wake_up_is_not_the_end_of_input(pipes: tuple[int, int, int, int]) -> None:
    taken, sent, _, written = pipes
    os.set_blocking(taken, False)
    twin = os.dup(taken)  # both become readable, but the first handler reads all data
    frames: list[Frames] = []
    loop = asyncio.get_running_loop()
    for end in (taken, twin):
        assert stdio.read_on_loop(Scheduler(), end, frames.append, Writer(written))
    for count in range(1, 4):
        os.write(sent, FRAME)
        while len(frames) < count:
            await asyncio.sleep(0.01)
    assert frames == [[BODY]] * 3
    for end in (taken, twin):
        assert loop.remove_reader(end)
    os.close(twin)


async def test_full_non_blocking_pipe_is_written_later(pipes: tuple[int, int, int, int]) -> None:
    _, _, unread, written = pipes
    os.set_blocking(written, False)
    writer = Writer(written)
    sent = [b"a" * 3_000, b"b" * 1_000_000, b"c" * 100]
    for data in sent:
        writer.write(data)
    read = b""
    while len(read) < sum(map(len, sent)):
        read += await asyncio.to_thread(os.read, unread, 1 << 20)
    assert read == b"".join(sent)
    writer.close()
