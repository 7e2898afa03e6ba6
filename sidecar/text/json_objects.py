"""Finds, adds and removes members of JSON objects in text. Comments are allowed and kept."""

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

    def items_at(self, start: int) -> list[tuple[int, int]]:
        """Return where the items of the list that starts at a position start and end."""
        numbered = enumerate(self._tokens, 1)
        self._next = next(number for number, token in numbered if token.start >= start)
        items = list[tuple[int, int]]()
        while (token := self.take()).text != "]":
            if token.text != ",":
                self._next -= 1
                items.append(self._read_value())
        return items

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
        NotAnObjectError: The text or the value of `group` is not an object.
    """
    text = text if text.strip() else "{}\n"
    root, inner, known = _locate(text, group, key)
    indent = _indent_of(text, root)
    if inner is None:
        added = {key: value}
        return _insert(text, root, f'"{group}": {_dump(added, indent, 1)}', indent, 1)
    written = _dump(value, indent, 2)
    if known is not None:
        return text[: known.value_start] + written + text[known.end :]
    return _insert(text, inner, f"{json.dumps(key)}: {written}", indent, 2)


def _locate(text: str, group: str, key: str) -> tuple[JsonObject, JsonObject | None, Member | None]:
    """Return the whole object, and the object `group` and its member `key` if they exist."""
    root = parse_object(text)
    found = root.find(group)
    inner = parse_object(text, found.value_start) if found else None
    return root, inner, inner.find(key) if inner else None


def remove_member(text: str, group: str, key: str) -> str:
    """Return the JSON text without `group.key`. If `group` becomes empty, it is removed too.

    Raises:
        NotAnObjectError: The text or the value of `group` is not an object.
    """
    if not has_member(text, group, key):
        return text
    root, inner, _ = _locate(text, group, key)
    return _cut(text, inner, key) if inner and len(inner.members) > 1 else _cut(text, root, group)


def add_item(text: str, group: str, key: str, value: Any) -> str:
    """Return the JSON text with a value at the start of the list `group.key`.

    The list and the group are created if they are missing.

    Raises:
        NotAnObjectError: The text or the value of `group` is not an object, or the value of `key`
            is not a list.
    """
    if not has_member(text, group, key):
        return set_member(text, group, key, [value])
    start, items = _items(text, group, key)
    indent = _indent_of(text, parse_object(text))
    rest = text[start + 1 :]
    end = "," if items else f"\n{indent * 2}"
    added = f"\n{indent * 3}{_dump(value, indent, 3)}{end}"
    return text[: start + 1] + added + (rest if items else rest.lstrip())


def remove_items(text: str, group: str, key: str, containing: str) -> str:
    """Return the JSON text without the items of the list `group.key` that contain a text.

    If the list becomes empty, it is removed too, as is the group. Raises NotAnObjectError.
    """
    if not has_member(text, group, key):
        return text
    _, items = _items(text, group, key)
    ours = [containing in text[start:end] for start, end in items]
    if all(ours):
        return remove_member(text, group, key)
    for number in reversed(range(len(items))):
        if not ours[number]:
            continue
        if number + 1 < len(items):  # up to the next item
            text = text[: items[number][0]] + text[items[number + 1][0] :]
        else:
            text = text[: items[number - 1][1]] + text[items[number][1] :]
    return text


def _items(text: str, group: str, key: str) -> tuple[int, list[tuple[int, int]]]:
    """Return where the list `group.key` starts, and where its items start and end."""
    _, _, member = _locate(text, group, key)
    if member is None or text[member.value_start] != "[":
        raise NotAnObjectError(f"{group}.{key} is not a list")
    return member.value_start, _Parser(text).items_at(member.value_start)


def has_member(text: str, group: str, key: str) -> bool:
    """Return whether an object has the member `group.key`. Raises NotAnObjectError."""
    return bool(text.strip()) and _locate(text, group, key)[2] is not None


def is_bare(text: str) -> bool:
    """Return whether a text is blank or an object without members and comments."""
    return "".join(text.split()) in ("", "{}")


def _insert(text: str, parsed: JsonObject, member: str, indent: str, level: int) -> str:
    rest = text[parsed.start + 1 :]
    if parsed.members:
        return f"{text[: parsed.start + 1]}\n{indent * level}{member},{rest}"
    if rest.lstrip().startswith("}"):
        rest = f"\n{indent * (level - 1)}{rest.lstrip()}"
    return f"{text[: parsed.start + 1]}\n{indent * level}{member}{rest}"


def _cut(text: str, parsed: JsonObject, key: str) -> str:
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


def _indent_of(text: str, root: JsonObject) -> str:
    if not root.members:
        return _DEFAULT_INDENT
    line = text[: root.members[0].start].rpartition("\n")[2]
    return line if line and not line.strip() else _DEFAULT_INDENT
