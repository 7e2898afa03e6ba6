"""Edits JSON files without changing their comments and formatting."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from sidecar.errors import SidecarError

_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<mark>[{}\[\],:])'
    r"|(?P<scalar>[^\s{}\[\],:\"/]+)",
    re.DOTALL,
)
_DEFAULT_INDENT = "  "


class JsonEditError(SidecarError):
    """The text is not a JSON object."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class _Member(NamedTuple):
    key: str
    start: int
    value_start: int
    end: int
    comma: int | None = None
    """The position of the comma after the value."""


class _Object(NamedTuple):
    start: int
    members: list[_Member]
    end: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [
            _Token(match.lastgroup or "", match.group(), match.start(), match.end())
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "comment"
        ]
        self._next = 0

    def take(self, expected: str = "") -> _Token:
        if self._next >= len(self._tokens):
            raise JsonEditError("unexpected end of file")
        token = self._tokens[self._next]
        if expected and token.text != expected:
            raise JsonEditError(f"expected {expected}")
        self._next += 1
        return token

    def object_at(self, start: int) -> _Object:
        """Parse the object that starts at a position in the text."""
        self._next = next(
            (number for number, token in enumerate(self._tokens) if token.start >= start), 0
        )
        return self.read_object()

    def read_object(self) -> _Object:
        start, members = self.take("{").start, list[_Member]()
        while True:
            token = self.take()
            if token.text == "}":
                return _Object(start, members, token.end)
            if token.text == "," and members:
                members[-1] = members[-1]._replace(comma=token.start)
                continue
            if token.kind != "string":
                raise JsonEditError("keys must be strings")
            self.take(":")
            value_start, end = self._read_value()
            members.append(_Member(json.loads(token.text), token.start, value_start, end))

    def _read_value(self) -> tuple[int, int]:
        token = self.take()
        if token.text == "{":
            self._next -= 1
            found = self.read_object()
            return found.start, found.end
        if token.text == "[":
            while True:
                closing = self.take()
                if closing.text == "]":
                    return token.start, closing.end
                if closing.text != ",":
                    self._next -= 1
                    self._read_value()
        return token.start, token.end


def set_member(text: str, group: str, key: str, value: Any) -> str:
    """Return the JSON text with `group.key` set to a value. An empty string is treated as `{}`.

    Raises:
        JsonEditError: The text or the value of `group` is not an object.
    """
    text = text if text.strip() else "{}\n"
    root = _Parser(text).read_object()
    indent = _indent_of(text, root)
    found = _member(root, group)
    if found is None:
        added = {key: value}
        return _insert(text, root, f'"{group}": {_dump(added, indent, 1)}', indent, 1)
    inner = _Parser(text).object_at(found.value_start)
    known = _member(inner, key)
    written = _dump(value, indent, 2)
    if known is not None:
        return text[: known.value_start] + written + text[known.end :]
    return _insert(text, inner, f"{json.dumps(key)}: {written}", indent, 2)


def remove_member(text: str, group: str, key: str) -> str:
    """Return the JSON text without `group.key`. If `group` becomes empty, it is removed too.

    Raises:
        JsonEditError: The text or the value of `group` is not an object.
    """
    if not text.strip():
        return text
    root = _Parser(text).read_object()
    found = _member(root, group)
    if found is None:
        return text
    inner = _Parser(text).object_at(found.value_start)
    if _member(inner, key) is None:
        return text
    if len(inner.members) == 1:
        return _cut(text, root, group)
    return _cut(text, inner, key)


def _member(parsed: _Object, key: str) -> _Member | None:
    return next((member for member in parsed.members if member.key == key), None)


def _insert(text: str, parsed: _Object, member: str, indent: str, level: int) -> str:
    rest = text[parsed.start + 1 :]
    if parsed.members:
        return f"{text[: parsed.start + 1]}\n{indent * level}{member},{rest}"
    end = f"\n{indent * (level - 1)}"
    return f"{text[: parsed.start + 1]}\n{indent * level}{member}{end}{rest.lstrip()}"


def _cut(text: str, parsed: _Object, key: str) -> str:
    number = next(n for n, member in enumerate(parsed.members) if member.key == key)
    member, before = parsed.members[number], parsed.members[max(0, number - 1)]
    start, end = member.start, member.end
    if member.comma is not None:
        end = member.comma + 1
    elif number and before.comma is not None:
        text = text[: before.comma] + text[before.comma + 1 :]
        start, end = start - 1, end - 1
    line = len(text[:start].rstrip(" \t"))
    if line and text[line - 1] == "\n":
        start = line - 1
    return text[:start] + text[end:]


def _dump(value: Any, indent: str, level: int) -> str:
    lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")
    return f"\n{indent * level}".join(lines)


def _indent_of(text: str, root: _Object) -> str:
    if not root.members:
        return _DEFAULT_INDENT
    line = text[: root.members[0].start].rpartition("\n")[2]
    return line if line and not line.strip() else _DEFAULT_INDENT
