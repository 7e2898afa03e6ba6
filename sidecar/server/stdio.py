"""The stdio loop: the event loop reads (or a thread feeds it), a writer never makes it wait.

pygls reads through the pool that its handlers use, and its writes block the loop (measured: a
trivial request takes 2 to 3 times as long, and seconds when the pool is full), so both are ours.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import sys
import threading
from typing import TYPE_CHECKING

from sidecar.server.framing import BadFrame, Framer

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.server.server import SidecarServer

# A pipe that select() calls writable takes this much without blocking (POSIX PIPE_BUF).
_SURE_BYTES = 4096 if sys.platform != "win32" else 0
_READ_BYTES = 1 << 18


class Writer:
    """Writes frames in order; whatever the pipe would not take at once goes through a thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._lock = threading.Lock()
        self._closed = False

    def write(self, data: bytes) -> None:
        """Called on the event loop only."""
        if self._closed:
            return
        with self._lock:
            idle = self._waiting == 0
        if idle and len(data) <= _SURE_BYTES and select.select([], [self._fd], [], 0)[1]:
            self._write_all(data)
            return
        with self._lock:
            self._waiting += 1
        self._start()
        self._queue.put(data)

    def close(self) -> None:
        """Write what is queued (a second at most), then take no more."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(1.0)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drain, name="stdout", daemon=True)
            self._thread.start()

    def _drain(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
            with self._lock:
                self._waiting -= 1

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._closed = True  # the client has gone; the reader sees its end of file


def take_stdio() -> tuple[int, int]:
    """The protocol's own descriptors; a stray `print` from here on lands on stderr."""
    stdin, stdout = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stdin, stdout


Frames = list[bytes | BadFrame] | None
"""Frames that became complete together; None at the end of input."""


def _read(fd: int, deliver: Callable[[Frames], None]) -> None:
    """Read until the end of input, in a thread of its own."""
    framer = Framer()
    try:
        while data := os.read(fd, _READ_BYTES):
            if frames := framer.feed(data):
                deliver(frames)
    except OSError:
        pass
    deliver(None)


def _read_on_loop(
    loop: asyncio.AbstractEventLoop, fd: int, receive: Callable[[Frames], None]
) -> bool:
    """Have the event loop read whenever there is something: one wake-up less for each message.

    False where the loop cannot watch such a descriptor (Windows; a plain file).
    """
    framer = Framer()

    def readable() -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(fd)
        receive(framer.feed(data) if data else None)

    try:
        loop.add_reader(fd, readable)
    except (NotImplementedError, OSError):
        return False
    return True


async def _run(server: SidecarServer, stdin: int, writer: Writer) -> int:
    loop = asyncio.get_running_loop()
    protocol = server.protocol
    protocol.set_writer(writer)
    done = protocol.start(loop)

    def receive(frames: Frames) -> None:
        if frames is None:
            protocol.end(1)
            return
        for frame in frames:
            protocol.receive(frame)

    def deliver(frames: Frames) -> None:
        try:
            loop.call_soon_threadsafe(receive, frames)
        except RuntimeError:
            return  # the loop has closed: nobody is left to tell

    if not _read_on_loop(loop, stdin, receive):
        threading.Thread(target=_read, args=(stdin, deliver), name="stdin", daemon=True).start()
    code = await done
    await server.services.aclose()
    return code


def run_stdio(server: SidecarServer) -> int:
    """Serve on stdio until `exit` or the end of input; the exit code that LSP prescribes."""
    stdin, stdout = take_stdio()
    writer = Writer(stdout)
    try:
        return asyncio.run(_run(server, stdin, writer))
    except KeyboardInterrupt:
        return 1
    finally:
        writer.close()
        server.close()
