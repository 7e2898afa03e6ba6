"""The frames of the LSP base protocol: headers, a blank line, and `Content-Length` bytes. No
I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A larger frame ends the session, so that no client can exhaust the memory."""

MAX_DEPTH = 200
"""Deepest nesting of objects and arrays in a body, so that parsing can recurse."""

MAX_HEADER_BYTES = 16 * 1024

MAX_LENGTH_LINE = 128
"""How many bytes at the end of a line are searched for a header after garbage."""

_PLAIN = re.compile(rb"Content-Length: ([0-9]{1,18})\r\n\r\n")
"""The form in which nearly all clients write the header."""
_LENGTH = re.compile(rb"Content-Length:[ \t]*(\d+)[ \t]*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class BadFrame:
    """Bytes that are not a frame, or a frame that is too large."""

    reason: str
    fatal: bool = False
    """Whether no later frame can be read."""


Body = bytes | bytearray


@dataclass
class Framer:
    """Splits a byte stream into bodies. Garbage between frames is skipped and reported once."""

    max_bytes: int = MAX_FRAME_BYTES
    _buffer: bytearray = field(default_factory=bytearray)
    _length: int | None = None
    _is_skipping: bool = False
    _has_ended: bool = False

    def feed(self, data: bytes) -> list[Body | BadFrame]:
        """Return the frames that `data` completes, in order, up to a fatal one."""
        self._buffer += data
        out: list[Body | BadFrame] = []
        while not self._has_ended and (item := self._next_frame()) is not None:
            out.append(item)
        if self._has_ended:
            self._buffer.clear()
        return out

    def _next_frame(self) -> Body | BadFrame | None:
        if self._length is None and (bad := self._read_headers()) is not None:
            return bad
        if self._length is None or len(self._buffer) < self._length:
            return None
        length, self._length = self._length, None
        if len(self._buffer) == length:  # avoid copying a long body
            body, self._buffer = self._buffer, bytearray()
            return body
        short = bytes(memoryview(self._buffer)[:length])
        del self._buffer[:length]
        return short

    def _read_headers(self) -> BadFrame | None:
        if plain := _PLAIN.match(self._buffer):
            length = int(plain[1])
            end = plain.end()
            del plain  # a match object would prevent resizing the buffer
            del self._buffer[:end]
            return self._start_body(length)
        return self._read_lines()

    def _read_lines(self) -> BadFrame | None:
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
            # The rest of a body that is longer than announced shares a line with the next header.
            if match := _LENGTH.match(line) or _LENGTH.search(line[-MAX_LENGTH_LINE:]):
                length = self._parse_length(match[1])
                line = line[: -len(match[0])]
            if line and not _is_header(line) and not self._is_skipping:
                self._is_skipping = True
                self._restore_header(length)
                return BadFrame("skipped bytes that are not a header")

    def _parse_length(self, digits: bytes) -> int:
        digits = digits.lstrip(b"0") or b"0"
        return int(digits) if len(digits) < 19 else self.max_bytes + 1

    def _restore_header(self, length: int | None) -> None:
        # The headers are incomplete: keep them for the next call.
        if length is not None:
            self._buffer[:0] = b"Content-Length: %d\r\n" % length

    def _check_header_size(self) -> BadFrame | None:
        if len(self._buffer) <= MAX_HEADER_BYTES:
            return None
        del self._buffer[:-MAX_LENGTH_LINE]
        if self._is_skipping:
            return None
        self._is_skipping = True
        return BadFrame("skipped a header line without an end")

    def _start_body(self, length: int) -> BadFrame | None:
        self._is_skipping = False
        if length <= self.max_bytes:
            self._length = length
            return None
        self._has_ended = True
        return BadFrame(f"a frame is larger than {self.max_bytes:,} bytes", fatal=True)


def _is_header(line: bytes) -> bool:
    is_well_formed = re.fullmatch(rb"[A-Za-z-]{1,64}:[ -~]*", line) is not None
    return is_well_formed and not line.lower().startswith(b"content-length")
