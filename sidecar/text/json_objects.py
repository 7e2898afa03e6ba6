"""Finds the positions of members in JSON objects. Comments are allowed."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from sidecar.errors import SidecarError

_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<mark>[{}\[\],:])'
    r"|(?P<scalar>[^\s{}\[\],:\"/]+)",
    re.DOTALL,
)


class NotAnObjectError(SidecarError):
    """The text is not a JSON object."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Member(NamedTuple):
    """A member of an object. Positions are in characters."""

    key: str
    start: int
    value_start: int
    end: int
    comma: int | None = None
    """The position of the comma after the value."""


class JsonObject(NamedTuple):
    """An object. Positions are in characters."""

    start: int
    members: list[Member]
    end: int

    def find(self, key: str) -> Member | None:
        """Return the member with this key, or None if there is none."""
        return next((member for member in self.members if member.key == key), None)


def parse_object(text: str, start: int = 0) -> JsonObject:
    """Parse the object that starts at a position in JSON with comments.

    Raises:
        NotAnObjectError: The text is not an object.
    """
    try:
        return _Parser(text).object_at(start)
    except (RecursionError, ValueError):  # too many levels, or an invalid escape sequence
        raise NotAnObjectError("cannot be parsed") from None


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
            raise NotAnObjectError("unexpected end of file")
        token = self._tokens[self._next]
        if expected and token.text != expected:
            raise NotAnObjectError(f"expected {expected}")
        self._next += 1
        return token

    def object_at(self, start: int) -> JsonObject:
        """Parse the object that starts at a position in the text."""
        self._next = next(
            (number for number, token in enumerate(self._tokens) if token.start >= start), 0
        )
        return self.read_object()

    def read_object(self) -> JsonObject:
        start, members = self.take("{").start, list[Member]()
        while True:
            token = self.take()
            if token.text == "}":
                return JsonObject(start, members, token.end)
            if token.text == "," and members:
                members[-1] = members[-1]._replace(comma=token.start)
                continue
            if token.kind != "string":
                raise NotAnObjectError("keys must be strings")
            self.take(":")
            value_start, end = self._read_value()
            members.append(Member(json.loads(token.text), token.start, value_start, end))

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
