"""Splits the text of a budget into what a fix must keep and what it may shorten. Does no I/O."""

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
    """Replaces the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


class Parts(msgspec.Struct, frozen=True):
    """A scope split into a fixed head (a heading or mark), a body, and a fixed tail."""

    start: int
    head: str
    body: str
    tail: str

    @property
    def body_start(self) -> int:
        """Offset of the body in the document."""
        return self.start + len(self.head)


def parts_of(text: str, finding: Finding) -> Parts:
    """Split a scope.

    A file keeps its final line end, a section its heading and trailing blank lines, and a region
    its two marks.
    """
    scope = text[finding.scope_start : finding.scope_end]
    head = _heading_of(scope, finding)
    rest = scope[len(head) :]
    tail = _end_mark_of(rest, finding)
    return Parts(finding.scope_start, head, rest[: len(rest) - len(tail)], tail)


def minimal_edit(start: int, old: str, new: str) -> TextEdit:
    """Return the smallest edit that turns `old`, which starts at `start`, into `new`.

    It never starts or ends between CR and LF, where editors have no position.
    """
    before = _common_prefix_length(old, new)
    if old[before - 1 : before + 1] == "\r\n" or new[before - 1 : before + 1] == "\r\n":
        before -= 1
    left = min(len(old), len(new)) - before
    after = min(_common_prefix_length(old[::-1], new[::-1]), left)
    if after and old[len(old) - after - 1 : len(old) - after + 1] == "\r\n":
        after -= 1
    return TextEdit(start + before, start + len(old) - after, new[before : len(new) - after])


def line_end_of(text: str) -> str:
    """Return the first line end of a text, or LF if it has a single line."""
    found = _LINE_END.search(text)
    return found.group() if found else "\n"


def first_line(text: str, start: int = 0) -> str:
    """Return the line at an offset, with its line end."""
    found = _LINE.match(text, start)
    return found.group() if found else ""


def _heading_of(scope: str, finding: Finding) -> str:
    if finding.kind == "file":
        return ""
    line = first_line(scope)
    if finding.kind == "region" or line.lstrip(" ").startswith("#"):
        return line
    underline = _UNDERLINE.search(scope, len(line))
    return scope[: underline.end()] if underline else line


def _end_mark_of(rest: str, finding: Finding) -> str:
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


def _common_prefix_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
