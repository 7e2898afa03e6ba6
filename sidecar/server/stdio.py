"""Reads and writes LSP frames on stdio without blocking the event loop.

This replaces pygls' event loop integration, in which reads wait for a free worker thread and writes
block. Simple requests take two to three times as long with pygls.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.operating_system import SURE_WRITE_BYTES, is_writable
from sidecar.tasks import Scheduler

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A frame larger than this ends the session, which prevents clients from exhausting memory."""

MAX_DEPTH = 200
"""Maximum nesting depth of objects and arrays, low enough for recursive parsing."""

MAX_HEADER_BYTES = 16 * 1024

MAX_LENGTH_LINE = 128
"""Number of bytes to search for a header at the end of an invalid line."""

_LENGTH = re.compile(rb"Content-Length:[ \t]*(\d+)[ \t]*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class InvalidFrame:
    """Bytes that are not a frame, or a frame that is too large."""

    reason: str
    fatal: bool = False
    """Whether the server must stop reading after this frame."""


@dataclass
class Framer:
    """Splits a byte stream into message bodies.

    Garbage between frames is skipped and reported once.
    """

    max_bytes: int = MAX_FRAME_BYTES
    _buffer: bytearray = field(default_factory=bytearray)
    _length: int | None = None
    _is_skipping: bool = False
    _has_ended: bool = False

    def feed(self, data: bytes) -> list[bytes | InvalidFrame]:
        """Return the frames completed by `data`, in order. The last frame may be fatal."""
        self._buffer += data
        out: list[bytes | InvalidFrame] = []
        while not self._has_ended and (item := self._next_frame()) is not None:
            out.append(item)
        if self._has_ended:
            self._buffer.clear()
        return out

    def _next_frame(self) -> bytes | InvalidFrame | None:
        if self._length is None and (bad := self._read_headers()) is not None:
            return bad
        if self._length is None or len(self._buffer) < self._length:
            return None
        length, self._length = self._length, None
        body = bytes(memoryview(self._buffer)[:length])
        del self._buffer[:length]
        return body

    def _read_headers(self) -> InvalidFrame | None:
        length: int | None = None
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                self._restore_header(length)
                return self._check_header_size()
            line = bytes(self._buffer[:end]).rstrip(b"\r")
            del self._buffer[: end + 1]
            if not line and length is not None:
                return self._start_body(length)
            # A body longer than announced leaves garbage in front of the next header.
            if match := _LENGTH.match(line) or _LENGTH.search(line[-MAX_LENGTH_LINE:]):
                length = self._parse_length(match[1])
                line = line[: -len(match[0])]
            if line and not _is_header(line) and not self._is_skipping:
                self._is_skipping = True
                self._restore_header(length)
                return InvalidFrame("skipped bytes that are not a header")

    def _parse_length(self, digits: bytes) -> int:
        digits = digits.lstrip(b"0") or b"0"
        return int(digits) if len(digits) < 19 else self.max_bytes + 1

    def _restore_header(self, length: int | None) -> None:
        # Put the header back, because it is still incomplete.
        if length is not None:
            self._buffer[:0] = b"Content-Length: %d\r\n" % length

    def _check_header_size(self) -> InvalidFrame | None:
        if len(self._buffer) <= MAX_HEADER_BYTES:
            return None
        del self._buffer[:-MAX_LENGTH_LINE]
        if self._is_skipping:
            return None
        self._is_skipping = True
        return InvalidFrame("skipped a header line that is too long")

    def _start_body(self, length: int) -> InvalidFrame | None:
        self._is_skipping = False
        if length <= self.max_bytes:
            self._length = length
            return None
        self._has_ended = True
        return InvalidFrame(f"a frame is larger than {self.max_bytes:,} bytes", fatal=True)


def _is_header(line: bytes) -> bool:
    is_well_formed = re.fullmatch(rb"[A-Za-z-]{1,64}:[ -~]*", line) is not None
    return is_well_formed and not line.lower().startswith(b"content-length")


MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""If the client leaves more than this many bytes unread, the server stops reading input."""
ROOM_SECONDS = 0.05
_READ_BYTES = 1 << 18


class Writer:
    """Writes frames in order. A thread takes over when the pipe is full."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting = 0  # number of bytes in the queue
        self._lock = threading.Lock()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether reading must pause because the client has left too much output unread."""
        return self._waiting > MAX_UNREAD_BYTES and not self._closed

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        with self._lock:
            idle = self._waiting == 0
        if idle and len(data) <= SURE_WRITE_BYTES and is_writable(self._fd):
            self._write_all(data)
            return
        with self._lock:
            self._waiting += len(data)
        if self._thread is None:
            self._thread = threading.Thread(target=self._drain_queue, name="stdout", daemon=True)
            self._thread.start()
        self._queue.put(data)

    def close(self) -> None:
        """Write the queued frames for up to a second, and drop the rest."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(1.0)

    def _drain_queue(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
            with self._lock:
                self._waiting -= len(data)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:  # the client made the pipe non-blocking
                    is_writable(self._fd, ROOM_SECONDS)
        except OSError:
            self._closed = True  # the client has exited; the reader will notice


def redirect_stdio() -> tuple[int, int]:
    """Reserve stdin and stdout for messages, and return their descriptors.

    All other code reads from /dev/null and writes to stderr.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stdin, stdout


Frames = list[bytes | InvalidFrame] | None
"""The frames completed by one read, or None at the end of the input."""


def read_on_thread(fd: int, deliver: Callable[[Frames], None], writer: Writer) -> None:
    """Read stdin until it ends. Runs on a separate thread and blocks."""
    framer = Framer()
    try:
        while data := os.read(fd, _READ_BYTES):
            while writer.full:
                time.sleep(ROOM_SECONDS)
            if frames := framer.feed(data):
                deliver(frames)
    except OSError:
        pass
    deliver(None)


def read_on_loop(
    scheduler: Scheduler, fd: int, receive: Callable[[Frames], None], writer: Writer
) -> bool:
    """Read stdin on the event loop, which is faster than using a thread.

    Returns False on Windows and for files, because the event loop cannot watch them.
    """
    loop, framer = asyncio.get_running_loop(), Framer()

    def resume() -> None:
        if writer.full:
            scheduler.schedule(("stdin", fd), ROOM_SECONDS, resume)
        else:
            loop.add_reader(fd, readable)

    def readable() -> None:
        if writer.full:
            loop.remove_reader(fd)
            resume()
            return
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return  # the pipe is empty, and the client has made it non-blocking
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
