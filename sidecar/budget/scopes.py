"""A budget's text taken apart: what a fix must keep, and what it may shorten. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sidecar.budget.finding import Finding

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_UNDERLINE = re.compile(r"^ {0,3}(?:=+|-+)[ \t]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
_LINE_END = re.compile(r"\r\n|\r|\n")
_LAST_LINE_END = re.compile(r"(?:\r\n|\r|\n)\Z")
_END_MARK = re.compile(r"token-budget:[ \t]*end(?![\w-])")
_TAIL_SEARCHED = 10_000


class TextEdit(msgspec.Struct, frozen=True):
    """`text` in place of the characters from `start` to `end`."""

    start: int
    end: int
    text: str


class Parts(msgspec.Struct, frozen=True):
    """A scope as what stays before (a heading, a mark), what may go, and what stays after."""

    start: int
    head: str
    body: str
    tail: str

    @property
    def body_start(self) -> int:
        """Where the body begins in the document."""
        return self.start + len(self.head)


def parts_of(text: str, finding: Finding) -> Parts:
    """A file keeps its final line end, a section its heading and the blank lines that end it, a
    region both of its marks."""
    scope = text[finding.scope_start : finding.scope_end]
    head = _head(scope, finding)
    rest = scope[len(head) :]
    tail = _tail(rest, finding)
    return Parts(finding.scope_start, head, rest[: len(rest) - len(tail)], tail)


def minimal_edit(start: int, old: str, new: str) -> TextEdit:
    """The smallest single edit that makes `old`, which stands at `start`, into `new`.

    It never begins or ends between `\\r` and `\\n`, where no editor can point.
    """
    before = _common(old, new)
    if old[before - 1 : before + 1] == "\r\n" or new[before - 1 : before + 1] == "\r\n":
        before -= 1
    left = min(len(old), len(new)) - before
    after = min(_common(old[::-1], new[::-1]), left)
    if after and old[len(old) - after - 1 : len(old) - after + 1] == "\r\n":
        after -= 1
    return TextEdit(start + before, start + len(old) - after, new[before : len(new) - after])


def line_end_of(text: str) -> str:
    """The line end that a text uses first; `\\n` where it has one line."""
    found = _LINE_END.search(text)
    return found.group() if found else "\n"


def first_line(text: str, start: int = 0) -> str:
    """The line that begins at `start`, its end included."""
    found = _LINE.match(text, start)
    return found.group() if found else ""


def _head(scope: str, finding: Finding) -> str:
    if finding.kind == "file":
        return ""
    line = first_line(scope)
    if finding.kind == "region" or line.lstrip(" ").startswith("#"):
        return line
    underline = _UNDERLINE.search(scope, len(line))
    return scope[: underline.end()] if underline else line


def _tail(rest: str, finding: Finding) -> str:
    last = rest[-_TAIL_SEARCHED:]
    if finding.kind == "section":
        blank = _LINE_END.search(last, len(last.rstrip(" \t\r\n")))
        return last[blank.start() :] if blank else ""
    if finding.kind == "region":
        lines = last.rstrip("\r\n")
        begin = max(lines.rfind("\n"), lines.rfind("\r")) + 1
        if _END_MARK.search(lines, begin):
            return last[begin:]
    found = _LAST_LINE_END.search(last)
    return found.group() if found else ""


def _common(one: str, other: str) -> int:
    """The length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
