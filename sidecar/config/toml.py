"""Parses TOML with limits, and finds the positions of errors and keys.

Python's `tomllib` does not return positions, takes minutes to parse a key with 20,000 parts, and
quotes the text in error messages. This module checks limits before parsing, rewrites the
messages, and determines positions with a separate scanner.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from sidecar.config.settings import setting_names
from sidecar.errors import SidecarError

KeyPath = tuple[str | int, ...]

MAX_ENTRIES = 10_000  # keys, parts of dotted keys, list items, and tables
MAX_LINES = 50_000
MAX_DEPTH = 32  # levels of nested brackets
MAX_PARTS = 32  # parts of a dotted key

_LIMIT_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3,5})?+'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?+"
    r'|"(?:[^"\\\n]|\\.)*+"?+'
    r"|'[^'\n]*+'?+"
    r"|#[^\n]*+"
    r"|[\[\]{}=,.\n]"
)
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = re.compile(r"[ \t]*\[{0,2}[ \t]*([A-Za-z-]+)")
_QUOTING = {
    "Cannot declare": "duplicate table",
    "Duplicate inline table key": "duplicate key",
    "Illegal character": "illegal character",
    "Found invalid character": "illegal character",
    "Invalid hex value": "invalid escape sequence",
}
"""Replacements for `tomllib` messages that quote the input, keyed by the start of the message."""
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^\s,\]}#][^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


class InvalidTomlError(SidecarError, ValueError):
    """The text is not valid TOML or exceeds a limit. The message never quotes the text.

    `line` is 1-based. `column` is None if the error applies to the whole line. `key` is the
    setting on this line, or an empty string.
    """

    kind = "config"

    def __init__(self, message: str, line: int, column: int | None, key: str = "") -> None:
        super().__init__(message)
        self.line, self.column, self.key = line, column, key


def parse(text: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        InvalidTomlError: The text is invalid or exceeds a limit.
    """
    from tomllib import loads  # imported lazily, as many projects have no configuration

    check_limits(text)
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise _create_error(str(error), text.replace("\r\n", "\n").split("\n")) from None


def check_limits(text: str) -> None:
    """Check that the text is small enough to be parsed quickly.

    Raises:
        InvalidTomlError: The text exceeds a limit.
    """
    entries = lines = depth = parts = 0
    for token in _LIMIT_TOKEN.finditer(text):
        mark = token[0]
        if mark[0] in "\"'#":
            continue
        parts = parts + 1 if mark == "." else 0
        if mark == "\n":
            lines += 1
        elif mark in "]}":
            depth = max(0, depth - 1)
        else:
            entries += 1
            depth += mark in "[{"
        if parts >= MAX_PARTS:
            problem = f"a key has more than {MAX_PARTS} parts"
        elif lines > MAX_LINES:
            problem = f"has more than {MAX_LINES:,} lines"
        elif depth > MAX_DEPTH:
            problem = f"is nested more than {MAX_DEPTH} levels deep"
        elif entries > MAX_ENTRIES:
            problem = f"has more than {MAX_ENTRIES:,} entries"
        else:
            continue
        at = token.start()
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise InvalidTomlError(problem, line, column)


def _create_error(message: str, lines: list[str]) -> InvalidTomlError:
    place = _PLACE.search(message)
    column = None
    if place is None:  # if a number is too large, Python does not report its position
        line = max(range(len(lines)), key=lambda index: len(lines[index])) + 1
        reason = "number too large"
    else:
        reason = _without_quotes(message[: place.start()])
        at = int(place[1]) if place[1] else len(lines)
        line = _line_with_text(lines, at)
        column = int(place[2]) if place[2] and line == at else None
    key = _setting_at_start(lines[line - 1])
    return InvalidTomlError(f"invalid TOML: {reason}", line, column, key)


def _without_quotes(message: str) -> str:
    for beginning, replacement in _QUOTING.items():
        if message.startswith(beginning):
            return replacement
    return message[:1].lower() + message[1:]


def _setting_at_start(line: str) -> str:
    found = _KEY.match(line)
    return found[1] if found and found[1] in setting_names() else ""


def _line_with_text(lines: list[str], line: int) -> int:
    while line > 1 and not lines[line - 1].strip():
        line -= 1
    return line


class Span(msgspec.Struct, frozen=True):
    """The position of a value, key or header.

    Offsets are in characters, and `end` is exclusive. `line` and `column` are 1-based.
    """

    line: int
    start: int
    end: int
    column: int


class _BrokenError(SidecarError):
    """The text is invalid at the scanner's position."""


def find_value_spans(text: str) -> Mapping[KeyPath, Span]:
    """Return the spans of values, headers and list entries.

    The keys are paths such as `("budget", 0, "model")`.
    """
    return find_spans(text)[0]


def find_spans(text: str) -> tuple[Mapping[KeyPath, Span], Mapping[KeyPath, Span]]:
    """Return the spans of all values, and of all key parts, including those in headers."""
    scanner = _Scanner(text)
    with suppress(_BrokenError, RecursionError, ValueError, OverflowError):  # invalid escapes
        scanner.document()
    return scanner.spans, scanner.keys


def find_span(spans: Mapping[KeyPath, Span], path: KeyPath) -> Span | None:
    """Return the span of a path or of its nearest known parent, or None if neither is known."""
    for length in range(len(path), 0, -1):
        span = spans.get(path[:length]) or spans.get((*path[:length], 0))
        if span is not None:
            return span
    return None


def find_line(spans: Mapping[KeyPath, Span], path: KeyPath) -> int | None:
    """Return the line of a path or of its nearest known parent, or None if neither is known."""
    span = find_span(spans, path)
    return span.line if span else None


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.spans: dict[KeyPath, Span] = {}
        self.keys: dict[KeyPath, Span] = {}
        self._lists: dict[KeyPath, int] = {}
        self._ends = [found.start() for found in re.finditer("\n", text)]

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return
            if self.text[self.at] == "[":
                table = self._read_header()
            else:
                self._read_pair(table)

    def _read_header(self) -> KeyPath:
        start = self.at
        many = self.text.startswith("[[", start)
        self.at += 2 if many else 1
        path = self._read_key()
        self._expect("]]" if many else "]")
        if many:
            index = self._lists.get(path, -1) + 1
            self._lists[path] = index
            path = (*path, index)
        self._store_span(path, start, self.at)
        return path

    def _read_pair(self, table: KeyPath) -> None:
        path = self._read_key(table)
        self._expect("=")
        self._skip(_SPACE)
        self._read_value(path)

    def _read_value(self, path: KeyPath) -> None:
        start = self.at
        opening = self.text[start : start + 1]
        if opening == "[":
            self._read_list(path)
        elif opening == "{":
            self._read_inline_table(path)
        elif opening in ("'", '"'):
            self._match(_STRING)
        else:
            self.at = start + len(self._match(_SCALAR).rstrip())
        self._store_span(path, start, self.at)

    def _read_list(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while not self._skip_closing("]"):
            self._read_value((*path, index))
            index += 1
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1

    def _read_inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while not self._skip_closing("}"):
            self._read_pair(path)
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1

    def _skip_closing(self, bracket: str) -> bool:
        self._skip(_BLANK)
        if not self.text.startswith(bracket, self.at):
            return False
        self.at += 1
        return True

    def _read_key(self, path: KeyPath = ()) -> KeyPath:
        """Parse a key in the table at `path`, and return its full path.

        In a list of tables, the path includes the index of the last entry.
        """
        while True:
            self._skip(_SPACE)
            start = self.at
            path = (*path, self._read_key_part())
            self.keys.setdefault(path, self._span_of(start, self.at))
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return path
            self.at += 1
            if path in self._lists:
                path = (*path, self._lists[path])

    def _read_key_part(self) -> str:
        if self.text[self.at : self.at + 1] not in ("'", '"'):
            return self._match(_BARE)
        quoted = self._match(_STRING)
        return quoted[1:-1] if quoted[0] == "'" else _ESCAPE.sub(_unescape, quoted[1:-1])

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _BrokenError
        self.at = found.end()
        return found.group()

    def _expect(self, literal: str) -> None:
        if not self.text.startswith(literal, self.at):
            raise _BrokenError
        self.at += len(literal)

    def _store_span(self, path: KeyPath, start: int, end: int) -> None:
        self.spans.setdefault(path, self._span_of(start, end))

    def _span_of(self, start: int, end: int) -> Span:
        above = bisect_left(self._ends, start)
        return Span(above + 1, start, end, start - (self._ends[above - 1] if above else -1))


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if code[0] in "uU" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
