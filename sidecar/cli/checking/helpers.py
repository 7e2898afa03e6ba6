"""Copies of this process that take their share of the batches: threads alone cannot use two cores
well, since most of what is done around counting holds the interpreter.

Each process takes the number of the next batch from one pipe, so that none waits for another. A
batch whose helper did not answer for it, for whatever reason, is left to the caller. Helpers are
forked, on Linux only: they have all that was read so far, and elsewhere a fork is not safe or a new
process costs too much.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from sidecar.cli.checking.forking import cores, may_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HELPER_BYTES = 20_000_000
"""For so much text each a helper is worth its start, and what it copies of our memory."""
_MOST = 7
_NUMBER = struct.Struct("=I")
_HEADER = struct.Struct("=IQ")
MOST_BATCHES = 1_000
"""What any pipe holds the numbers of: the kernel gives a user with many pipes 4,096 bytes each."""

HelperAnswer = tuple[int, bytes]
"""The number of a batch, and what was made of it."""


def wanted(size: int) -> int:
    """How many helpers so many bytes are worth. None beside threads, which a fork would lose."""
    if not may_fork():
        return 0
    return max(0, min(cores() - 1, _MOST, size // HELPER_BYTES))


class Helpers:
    """They begin at once, as many as the system allows; `close` ends them, done or not."""

    def __init__(self, batches: int, work: Callable[[int], bytes], count: int) -> None:
        """`work` is done in the helpers, for the number of a batch."""
        self._numbers, feed = os.pipe()
        os.write(feed, b"".join(map(_NUMBER.pack, range(batches))))
        os.close(feed)
        self._answers: SimpleQueue[HelperAnswer | None] = SimpleQueue()
        self._pids: list[int] = []
        pipes: list[int] = []
        with suppress(OSError):  # no more processes or files: it goes on with those that there are
            pipes.extend(self._fork(work) for _ in range(count))
        self._running = sum(map(self._hear, self._pids, pipes))

    def claim(self) -> int | None:
        """The number of a batch that nobody else has, None when there are no more."""
        return _claimed(self._numbers)

    def answered(self, *, wait: bool = False) -> Iterator[HelperAnswer]:
        """What has come since; with `wait` all that is still to come."""
        while self._running and (wait or not self._answers.empty()):
            answer = self._answers.get()
            if answer is None:
                self._running -= 1
            else:
                yield answer

    def close(self) -> None:
        """End those that are still at it."""
        os.close(self._numbers)
        for pid in self._pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)

    def _fork(self, work: Callable[[int], bytes]) -> int:
        """Begin one; where its answers come from."""
        answers, into = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(answers)
            os.close(into)
            raise
        if pid == 0:
            os.close(answers)
            _help(self._numbers, into, work)
        os.close(into)
        self._pids.append(pid)
        return answers

    def _hear(self, pid: int, pipe: int) -> bool:
        """Begin to listen to one; it ends where no thread can be had for that."""
        try:
            threading.Thread(target=self._listen, args=(pipe,), daemon=True).start()
        except RuntimeError:
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)
            return False
        return True

    def _listen(self, pipe: int) -> None:
        with open(pipe, "rb") as stream:
            while len(header := stream.read(_HEADER.size)) == _HEADER.size:
                number, size = _HEADER.unpack(header)
                if len(data := stream.read(size)) == size:
                    self._answers.put((number, data))
        self._answers.put(None)


def _claimed(numbers: int) -> int | None:
    data = os.read(numbers, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None


def _help(numbers: int, into: int, work: Callable[[int], bytes]) -> NoReturn:
    """HelperAnswer for batches until there are no more, or nobody listens."""
    try:
        with open(into, "wb", closefd=False) as stream:
            while (number := _claimed(numbers)) is not None:
                data = work(number)
                stream.write(_HEADER.pack(number, len(data)) + data)
                stream.flush()
    finally:  # whatever went wrong is tried, and told, where it was begun
        os._exit(0)
