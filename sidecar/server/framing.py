"""Frames of the LSP base protocol: headers, a blank line, `Content-Length` bytes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A larger frame ends the session: a peer must not choose how much memory the process uses, and
skipping that much would leave the server unresponsive without any sign.
"""

MAX_DEPTH = 200
"""Maximum nesting of objects and arrays in a body, so that parsing may recurse."""

MAX_HEADER_BYTES = 16 * 1024

MAX_LENGTH_LINE = 128
"""Bytes at the end of a line that are searched for a length after other bytes."""

_PLAIN = re.compile(rb"Content-Length: ([0-9]{1,18})\r\n\r\n")
"""The header as nearly every client writes it."""
_LENGTH = re.compile(rb"Content-Length:[ \t]*(\d+)[ \t]*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class BadFrame:
    """Bytes that are not a frame, or a frame that is too large; `reason` quotes nothing of them."""

    reason: str
    fatal: bool = False
    """Whether nothing after it can be read."""


Body = bytes | bytearray


@dataclass
class Framer:
    """Splits a byte stream into bodies; garbage between frames is skipped and reported once."""

    max_bytes: int = MAX_FRAME_BYTES
    _buffer: bytearray = field(default_factory=bytearray)
    _length: int | None = None
    _lost: bool = False
    _ended: bool = False

    def feed(self, data: bytes) -> list[Body | BadFrame]:
        """Return everything that `data` completes, in order; nothing after a fatal frame."""
        self._buffer += data
        out: list[Body | BadFrame] = []
        while not self._ended and (item := self._next()) is not None:
            out.append(item)
        if self._ended:
            self._buffer.clear()
        return out

    def _next(self) -> Body | BadFrame | None:
        if self._length is None and (bad := self._read_headers()) is not None:
            return bad
        if self._length is None or len(self._buffer) < self._length:
            return None
        length, self._length = self._length, None
        if len(self._buffer) == length:  # passed on as it is, without copying a long body
            body, self._buffer = self._buffer, bytearray()
            return body
        short = bytes(memoryview(self._buffer)[:length])
        del self._buffer[:length]
        return short

    def _read_headers(self) -> BadFrame | None:
        """Read lines up to the blank one; set the length, or return what is wrong."""
        if plain := _PLAIN.match(self._buffer):
            length = int(plain[1])
            end = plain.end()
            del plain  # a match exports the buffer, which could then not be resized
            del self._buffer[:end]
            return self._start_body(length)
        return self._read_lines()

    def _read_lines(self) -> BadFrame | None:
        length: int | None = None
        while True:
            end = self._buffer.find(b"\n")
            if end < 0:
                self._unread(length)
                return self._overlong()
            line = bytes(self._buffer[:end]).rstrip(b"\r")
            del self._buffer[: end + 1]
            if not line and length is not None:
                return self._start_body(length)
            # The rest of a body longer than announced ends in the line of the next header.
            if match := _LENGTH.match(line) or _LENGTH.search(line[-MAX_LENGTH_LINE:]):
                length = self._number(match[1])
                line = line[: -len(match[0])]
            if line and not _is_header(line) and not self._lost:
                self._lost = True
                self._unread(length)
                return BadFrame("bytes that are no header were skipped")

    def _number(self, digits: bytes) -> int:
        """Parse a number; a very long one becomes a number above the limit."""
        digits = digits.lstrip(b"0") or b"0"
        return int(digits) if len(digits) < 19 else self.max_bytes + 1

    def _unread(self, length: int | None) -> None:
        # The headers are incomplete: keep them for the next call.
        if length is not None:
            self._buffer[:0] = b"Content-Length: %d\r\n" % length

    def _overlong(self) -> BadFrame | None:
        if len(self._buffer) <= MAX_HEADER_BYTES:
            return None
        del self._buffer[:-MAX_LENGTH_LINE]
        if self._lost:
            return None
        self._lost = True
        return BadFrame("a header line without an end was skipped")

    def _start_body(self, length: int) -> BadFrame | None:
        self._lost = False
        if length <= self.max_bytes:
            self._length = length
            return None
        self._ended = True
        return BadFrame(f"a frame is over the {self.max_bytes} bytes that are taken", fatal=True)


def _is_header(line: bytes) -> bool:
    known = re.fullmatch(rb"[A-Za-z-]{1,64}:[ -~]*", line) is not None
    return known and not line.lower().startswith(b"content-length")
