"""Parses TOML with limits, and finds the positions of errors and keys.

Python's `tomllib` does not return positions, takes minutes to parse a key with 20,000 parts, and
quotes the text in error messages. This module checks limits before parsing, rewrites the
messages, and finds positions with a scanner of its own. No TOML library returns them: tomlkit keeps
the layout, but not where a key is.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from sidecar.errors import SidecarError

KeyPath = tuple[str | int, ...]

MAX_ENTRIES = 10_000  # keys, parts of dotted keys, list items, and tables
MAX_LINES = 50_000
MAX_DEPTH = 32  # levels of nested brackets
MAX_PARTS = 32  # parts of a dotted key

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3,5})?+'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?+"
    r'|"(?:[^"\\\n]|\\.)*+"?+'
    r"|'[^'\n]*+'?+"
    r"|#[^\n]*+"
    r"|[\[\]{}=,.\n]"
    r"|[^\s\[\]{}=,.\"'#]++"
)
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY = re.compile(r"[ \t]*\[{0,2}[ \t]*([A-Za-z-]+)")
_QUOTING = {
    "Cannot declare": "duplicate table; move its keys into the first one",
    "Duplicate inline table key": "duplicate key",
    "Illegal character": "illegal character",
    "Found invalid character": "illegal character",
    "Invalid hex value": "invalid escape sequence",
}
"""Replacements for `tomllib` messages that quote the input, keyed by the start of the message."""


class InvalidTomlError(SidecarError, ValueError):
    """The text is not valid TOML or exceeds a limit. The message never quotes the text.

    `line` is 1-based. `column` is None if the error applies to the whole line. `key` is what stands
    where the line's key is expected, or an empty string.
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
    check_limits(text)
    try:
        return _load(text)
    except (ValueError, RecursionError) as error:
        raise _create_error(str(error), text.replace("\r\n", "\n").split("\n")) from None


def _load(text: str) -> dict[str, Any]:
    from tomllib import loads  # imported lazily, as many projects have no configuration

    return loads(text)


def check_limits(text: str) -> None:
    """Check that the text is small enough to be parsed quickly.

    Raises:
        InvalidTomlError: The text exceeds a limit.
    """
    entries = lines = depth = parts = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark not in "[]{}=,.\n":
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
    found = _KEY.match(lines[line - 1])
    return InvalidTomlError(f"invalid TOML: {reason}", line, column, found[1] if found else "")


def _without_quotes(message: str) -> str:
    for beginning, replacement in _QUOTING.items():
        if message.startswith(beginning):
            return replacement
    return message[:1].lower() + message[1:]


def _line_with_text(lines: list[str], line: int) -> int:
    while line > 1 and not lines[line - 1].strip():
        line -= 1
    return line


class ValueSpan(NamedTuple):
    """The position of a value, key or header.

    Offsets are in characters, and `end` is exclusive. `line` and `column` are 1-based.
    """

    line: int
    start: int
    end: int
    column: int


def find_spans(text: str) -> tuple[Mapping[KeyPath, ValueSpan], Mapping[KeyPath, ValueSpan]]:
    """Return the spans of values, headers and list entries, and of all parts of keys.

    They are found by paths such as `("budget", 0, "model")`.
    """
    scanner = _Scanner(text)
    with suppress(IndexError, RecursionError, ValueError):  # invalid TOML
        scanner.document()
    return scanner.spans, scanner.keys


def set_key(text: str, table: str, key: str, value: str | None) -> str:
    """Return TOML text in which a table's key has this value. The rest of the text stays.

    Args:
        text: A valid document.
        table: The name of a table at the top level.
        key: A key in this table.
        value: The new value, or None to remove the key.

    Raises:
        ValueError: The table is written as `table = {…}` or `table.key = …`.
    """
    changed, wanted = _with_key(text, table, key, value), parse(text)
    inner = dict(wanted.get(table, {})) | ({} if value is None else {key: value})
    if value is None:
        inner.pop(key, None)
    try:
        is_right = {table: {}, **parse(changed)} == {**wanted, table: inner}
    except InvalidTomlError:
        is_right = False
    if not is_right:
        raise ValueError(f"write the settings in [{table}] below a line [{table}], and try again")
    return changed


def _with_key(text: str, table: str, key: str, value: str | None) -> str:
    spans, keys = find_spans(text)
    span, name = spans.get((table, key)), keys.get((table, key))
    written = None if value is None else f'"{_escaped(value)}"'
    if span is not None and name is not None:
        if written is not None:
            return text[: span.start] + written + text[span.end :]
        end = text.find("\n", span.end) + 1
        start = text.rfind("\n", 0, name.start) + 1
        return text[:start] + (text[end:] if end else "")
    if written is None:
        return text
    line, header = f"{key} = {written}\n", spans.get((table,))
    if header is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{table}]\n{line}"
    end = text.find("\n", header.end) + 1
    return text[:end] + line + text[end:] if end else f"{text}\n{line}"


def _escaped(value: str) -> str:
    """Return a value as the content of a TOML string in double quotes."""
    import json

    return json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def find_span(spans: Mapping[KeyPath, ValueSpan], path: KeyPath) -> ValueSpan | None:
    """Return the span of a path or of its nearest known parent, or None if neither is known."""
    for length in range(len(path), 0, -1):
        span = spans.get(path[:length]) or spans.get((*path[:length], 0))
        if span is not None:
            return span
    return None


class _Scanner:
    """Finds the positions in valid TOML. In invalid TOML, stops with any of several errors."""

    def __init__(self, text: str) -> None:
        self.spans: dict[KeyPath, ValueSpan] = {}
        self.keys: dict[KeyPath, ValueSpan] = {}
        self._tokens = [token for token in _TOKEN.finditer(text) if token[0][0] != "#"]
        self._at = 0
        self._lists: dict[KeyPath, int] = {}
        self._ends = [found.start() for found in re.finditer("\n", text)]

    def document(self) -> None:
        table: KeyPath = ()
        while self._at < len(self._tokens):
            if self._tokens[self._at][0] == "[":
                table = self._read_header()
            elif not self._take("\n"):
                self._read_pair(table)

    def _read_header(self) -> KeyPath:
        first = self._at
        self._at += 1
        many = self._take("[")
        path = self._read_key(())
        self._expect("]")
        if many:
            self._expect("]")
            self._lists[path] = self._lists.get(path, -1) + 1
            path = (*path, self._lists[path])
        self._store(self.spans, path, first)
        return path

    def _read_pair(self, table: KeyPath) -> None:
        path = self._read_key(table)
        self._expect("=")
        self._read_value(path)

    def _read_key(self, path: KeyPath) -> KeyPath:
        """Read a key in the table at `path`, and return its full path.

        In a list of tables, the path includes the index of the last entry.
        """
        while True:
            key = self._tokens[self._at][0]
            if key[0] in "\"'":
                (key,) = _load(f"{key} = 0")
            path = (*path, key)
            self._at += 1
            self._store(self.keys, path, self._at - 1)
            if not self._take("."):
                return path
            if path in self._lists:
                path = (*path, self._lists[path])

    def _read_value(self, path: KeyPath) -> None:
        first, index = self._at, 0
        if self._take("["):
            while not self._take("]"):
                if not self._take("\n") and not self._take(","):
                    self._read_value((*path, index))
                    index += 1
        elif self._take("{"):
            while not self._take("}"):
                if not self._take("\n") and not self._take(","):
                    self._read_pair(path)
        else:  # a string, or the parts of a number or time
            self._at += 1
            while self._at < len(self._tokens) and self._tokens[self._at][0] not in ",]}\n":
                self._at += 1
        self._store(self.spans, path, first)

    def _take(self, mark: str) -> bool:
        """Skip the next token if it is `mark`. Returns whether it was."""
        is_mark = self._at < len(self._tokens) and self._tokens[self._at][0] == mark
        self._at += is_mark
        return is_mark

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise ValueError(mark)

    def _store(self, spans: dict[KeyPath, ValueSpan], path: KeyPath, first: int) -> None:
        start, end = self._tokens[first].start(), self._tokens[self._at - 1].end()
        above = bisect_left(self._ends, start)
        column = start - (self._ends[above - 1] if above else -1)
        spans.setdefault(path, ValueSpan(above + 1, start, end, column))
