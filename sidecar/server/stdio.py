"""The stdio loop: a reader thread that feeds the event loop, a writer that never makes it wait.

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


def _read(fd: int, deliver: Callable[[list[bytes | BadFrame] | None], None]) -> None:
    framer = Framer()
    try:
        while data := os.read(fd, 1 << 18):
            if frames := framer.feed(data):
                deliver(frames)
    except OSError:
        pass
    deliver(None)


async def _run(server: SidecarServer, stdin: int, writer: Writer) -> int:
    loop = asyncio.get_running_loop()
    protocol = server.protocol
    protocol.set_writer(writer)
    done = protocol.start(loop)

    def receive(frames: list[bytes | BadFrame] | None) -> None:
        if frames is None:
            protocol.end(1)
            return
        for frame in frames:
            protocol.receive(frame)

    def deliver(frames: list[bytes | BadFrame] | None) -> None:
        try:
            loop.call_soon_threadsafe(receive, frames)
        except RuntimeError:
            return  # the loop has closed: nobody is left to tell

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
