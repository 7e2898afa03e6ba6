"""Frames of the LSP base protocol: headers, a blank line, `Content-Length` bytes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A larger frame is skipped: the process must not be made to hold any amount that a peer names."""

MAX_HEADER_BYTES = 16 * 1024

_LENGTH = re.compile(rb"Content-Length:[ \t]*(\d{1,18})[ \t]*", re.IGNORECASE)


@dataclass(frozen=True)
class BadFrame:
    """Bytes that are no frame, or one too large; `reason` says which, without quoting them."""

    reason: str


@dataclass
class Framer:
    """Turns a stream of bytes into bodies; garbage between frames is skipped and reported once."""

    max_bytes: int = MAX_FRAME_BYTES
    _buffer: bytearray = field(default_factory=bytearray)
    _length: int | None = None
    _skip: int = 0
    _lost: bool = False

    def feed(self, data: bytes) -> list[bytes | BadFrame]:
        """All that became complete with `data`, in order."""
        self._buffer += data
        out: list[bytes | BadFrame] = []
        while (item := self._next()) is not None:
            out.append(item)
        return out

    def _next(self) -> bytes | BadFrame | None:
        self._drop_skipped()
        if self._length is None and not self._skip:
            bad = self._read_headers()
            if bad is not None:
                return bad
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = bytes(memoryview(self._buffer)[: self._length])
        del self._buffer[: self._length]
        self._length = None
        return body

    def _drop_skipped(self) -> None:
        dropped = min(self._skip, len(self._buffer))
        del self._buffer[:dropped]
        self._skip -= dropped

    def _read_headers(self) -> BadFrame | None:
        """Read lines up to the blank one; sets the length, or tells what is wrong."""
        length: int | None = None
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                self._unread(length)
                return self._overlong()
            line = bytes(self._buffer[:end]).rstrip(b"\r")
            del self._buffer[: end + 1]
            if match := _LENGTH.fullmatch(line):
                length = int(match[1])
            elif line and length is None and not _is_header(line) and not self._lost:
                self._lost = True
                return BadFrame("bytes that are no header were skipped")
            elif not line and length is not None:
                return self._start_body(length)

    def _unread(self, length: int | None) -> None:
        # The rest of the headers has not come yet: keep what is known for the next call.
        if length is not None:
            self._buffer[:0] = b"Content-Length: %d\r\n" % length

    def _overlong(self) -> BadFrame | None:
        if len(self._buffer) <= MAX_HEADER_BYTES:
            return None
        self._buffer.clear()
        return BadFrame("a header line without an end was skipped")

    def _start_body(self, length: int) -> BadFrame | None:
        self._lost = False
        if length <= self.max_bytes:
            self._length = length
            return None
        self._skip = length
        self._drop_skipped()
        return BadFrame(f"a frame of {length} bytes was skipped: the most is {self.max_bytes}")


def _is_header(line: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z-]{1,64}:[ -~]*", line) is not None
