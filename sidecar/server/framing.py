"""Frames of the LSP base protocol: headers, a blank line, `Content-Length` bytes. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A larger frame ends the session: the process must not be made to hold what a peer names, and
skipping so much would leave it deaf, with nobody the wiser, until all of that has come."""

MAX_DEPTH = 200
"""How many objects and arrays of a body may lie in each other: what reads them may then recurse."""

MAX_HEADER_BYTES = 16 * 1024

MAX_LENGTH_LINE = 128
"""How many bytes at the end of a line are searched for a length that follows other bytes."""

_PLAIN = re.compile(rb"Content-Length: ([0-9]{1,18})\r\n\r\n")
"""The headers as nearly every client writes them."""
_LENGTH = re.compile(rb"Content-Length:[ \t]*(\d+)[ \t]*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class BadFrame:
    """Bytes that are no frame, or one too large; `reason` says which, without quoting them."""

    reason: str
    fatal: bool = False
    """Whether nothing after it can be taken."""


Body = bytes | bytearray


@dataclass
class Framer:
    """Turns a stream of bytes into bodies; garbage between frames is skipped and reported once."""

    max_bytes: int = MAX_FRAME_BYTES
    announced: Callable[[int], None] | None = None
    """Told the length of each body before it comes."""
    _buffer: bytearray = field(default_factory=bytearray)
    _length: int | None = None
    _lost: bool = False
    _ended: bool = False

    def feed(self, data: bytes) -> list[Body | BadFrame]:
        """All that became complete with `data`, in order; nothing after a frame that is fatal."""
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
        if len(self._buffer) == length:  # handed over whole: a long body is not copied
            body, self._buffer = self._buffer, bytearray()
            return body
        short = bytes(memoryview(self._buffer)[:length])
        del self._buffer[:length]
        return short

    def _read_headers(self) -> BadFrame | None:
        """Read lines up to the blank one; sets the length, or returns what is wrong."""
        if plain := _PLAIN.match(self._buffer):
            length = int(plain[1])
            end = plain.end()
            del plain  # a match holds the buffer, which could not be made shorter
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
            # What is left of a body that was longer than announced ends in the next header's line.
            if match := _LENGTH.match(line) or _LENGTH.search(line[-MAX_LENGTH_LINE:]):
                length = self._number(match[1])
                line = line[: -len(match[0])]
            if line and not _is_header(line) and not self._lost:
                self._lost = True
                self._unread(length)
                return BadFrame("bytes that are no header were skipped")

    def _number(self, digits: bytes) -> int:
        """The number; for one of very many digits, one that is over the cap too."""
        digits = digits.lstrip(b"0") or b"0"
        return int(digits) if len(digits) < 19 else self.max_bytes + 1

    def _unread(self, length: int | None) -> None:
        # The rest of the headers has not come yet: keep what is known for the next call.
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
            if self.announced is not None:
                self.announced(length)
            return None
        self._ended = True
        return BadFrame(f"a frame is over the {self.max_bytes} bytes that are taken", fatal=True)


def _is_header(line: bytes) -> bool:
    known = re.fullmatch(rb"[A-Za-z-]{1,64}:[ -~]*", line) is not None
    return known and not line.lower().startswith(b"content-length")
