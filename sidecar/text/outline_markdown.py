"""Headings of Markdown, by the block rules of CommonMark that decide what is a heading.

Only headings of the document itself begin sections: those inside quotes, lists, fences, comments
and front matter do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from sidecar.text.outline_lines import Lines, Part

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|$)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE = re.compile(
    r"(?P<lead> {0,3}(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<mark>`{3,}(?=[^`]*$)|~{3,}).*$"
)
_CONTAINER = re.compile(
    r"(?P<lead> {0,3})(?P<marker>>|(?:[-*+]|\d{1,9}[.)])(?=[ \t]|$))(?P<blank>[ \t]*)"
)
_BREAK = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_COMMENT = re.compile(r" {0,3}<!--")
_INDENTED = re.compile(r" {0,3}\t| {4}")
_MARKUP = re.compile(r"[*`]+")
_SPECIAL = frozenset("#=-+*_<>`~0123456789")
"""What a line that is more than a paragraph's text begins with, after its indentation."""

_SPACES = re.compile(r"\s+")
_STEP = re.compile(r"(?<!\s)\s++>\s++")
"""Between two headings of a path. It begins where a run of blanks does and never tries it twice."""

Heading = tuple[int, int, str]
"""First line, level, title."""


def sections(lines: Lines) -> Iterator[Part]:
    """Every heading with all below it, up to the next heading of its level or a higher one."""
    found = _scan(lines)
    ends = _ends(found, len(lines))
    around: list[Heading] = []
    for heading, end in zip(found, ends, strict=True):
        line, level, title = heading
        while around and around[-1][1] >= level:
            around.pop()
        around.append(heading)
        part = lines.part("section", title, line, end, level)
        yield replace(part, path=tuple(outer[2] for outer in around))


def heading_path(written: str) -> str:
    """A heading path of a rule, in the form that `Part.path_text` has."""
    return " > ".join(_title(part) for part in _STEP.split(written.strip()))


def matches(part: Part, path: str) -> bool:
    """Whether a section is the one that `path` (from `heading_path`) names: its path ends so."""
    own = part.path_text
    return own == path or own.endswith(f" > {path}")


def _ends(found: list[Heading], last: int) -> list[int]:
    """The line after each heading's section."""
    ends = [last] * len(found)
    open_at: list[int] = []
    for index, (line, level, _) in enumerate(found):
        while open_at and found[open_at[-1]][1] >= level:
            ends[open_at.pop()] = line
        open_at.append(index)
    return ends


def _scan(lines: Lines) -> list[Heading]:
    """All headings, in one pass."""
    scan = _Scan(lines)
    number = _after_front_matter(lines)
    while number < len(lines):
        number = scan.line(number)
    return scan.headings


class _Scan:
    """Where in the blocks of a document the next line stands."""

    def __init__(self, lines: Lines) -> None:
        self.headings: list[Heading] = []
        self._lines = lines
        self._paragraph: int | None = None  # its first line: an underline makes it a heading
        self._lazy = False  # a quote's or list's paragraph goes on without marker or indent
        self._item = 0  # what is indented so far belongs to the list's item above

    def line(self, number: int) -> int:
        """Takes one line (or a whole fence or comment) in; gives the number of the next."""
        line = self._lines.texts[number]
        bare = line.lstrip(" \t")
        if not bare:
            self._paragraph, self._lazy = None, False
            return number + 1
        if not self._item and bare[0] not in _SPECIAL:
            if self._paragraph is None and not self._lazy and not _INDENTED.match(line):
                self._paragraph = number
            return number + 1
        return self._special(number, line, bare[0])

    def _special(self, number: int, line: str, first: str) -> int:
        """The same for a line that may be more than a paragraph's text."""
        inside = self._item if _indent(line) >= self._item else 0
        if not self._lazy:
            self._item = inside
        if (fence := _fence(line, inside)) is not None:
            return self._fence(number, fence, inside)
        if inside:
            self._lazy = _ATX.match(line, inside) is None
            return number + 1
        if first == "<" and _COMMENT.match(line):
            self._leave()
            return _comment_end(self._lines, number)
        self._block(number, line, first)
        return number + 1

    def _block(self, number: int, line: str, first: str) -> None:
        """A line that may begin or end a paragraph, or be a heading."""
        if first == "#" and (atx := _ATX.match(line)):
            self.headings.append((number, len(atx[1]), _title(_unclosed(line[atx.end() :]))))
            self._leave()
        elif first in "=-" and self._paragraph is not None and (under := _SETEXT.match(line)):
            title = " ".join(self._lines.texts[self._paragraph : number])
            level = 1 if under[1][0] == "=" else 2
            self.headings.append((self._paragraph, level, _title(title)))
            self._leave()
        elif first in "-*_" and _BREAK.match(line):
            self._leave()
        elif container := _CONTAINER.match(line):
            self._leave()
            self._lazy, self._item = True, _content_at(container)
        elif self._paragraph is None and not self._lazy and not _INDENTED.match(line):
            self._paragraph = number

    def _fence(self, number: int, opening: re.Match[str], inside: int) -> int:
        item = inside or (len(opening["lead"]) if opening["lead"].strip() else 0)
        end = _fence_end(self._lines, number, opening["mark"], item)
        self._leave()
        self._item = item
        return end

    def _leave(self) -> None:
        self._paragraph, self._lazy, self._item = None, False, 0


def _indent(line: str) -> int:
    """Blanks before the first character; a tab reaches to the next multiple of four."""
    lead = line[: len(line) - len(line.lstrip(" \t"))]
    return len(lead.expandtabs(4)) if "\t" in lead else len(lead)


def _content_at(container: re.Match[str]) -> int:
    """The column at which a list's item goes on; 0 for a quote."""
    marker = container["marker"]
    if marker == ">":
        return 0
    after = len(container["blank"])
    return len(container["lead"]) + len(marker) + (after if 1 <= after <= 4 else 1)


def _fence(line: str, item: int) -> re.Match[str] | None:
    """An opening fence, also one that begins a list's item or stands in it."""
    if "```" not in line and "~~~" not in line:
        return None
    return _FENCE.match(line[item:])


def _fence_end(lines: Lines, number: int, mark: str, item: int) -> int:
    """The line after the closing fence, or after the item it stands in; else the text's end."""
    for at in range(number + 1, len(lines)):
        line = lines.texts[at]
        bare = line.strip(" \t")
        if bare and _indent(line) < item:
            return at
        if bare.startswith(mark) and not bare.strip(mark[0]) and _indent(line) < item + 4:
            return at + 1
    return len(lines)


def _comment_end(lines: Lines, number: int) -> int:
    """The line after an HTML comment that begins a line."""
    for at in range(number, len(lines)):
        start = lines.texts[at].find("<!--") + 4 if at == number else 0
        if "-->" in lines.texts[at][start:]:
            return at + 1
    return len(lines)


def _after_front_matter(lines: Lines) -> int:
    """The line after the YAML between two `---` that may stand at the very start."""
    if lines.texts[0].rstrip() != "---":
        return 0
    for at in range(1, len(lines)):
        if lines.texts[at].rstrip() in ("---", "..."):
            return at + 1
    return 0


def _unclosed(written: str) -> str:
    """The words of a `#` heading without the `#`s that may close it."""
    words = written.strip(" \t")
    bare = words.rstrip("#")
    return bare if not bare or bare[-1] in " \t" else words


def _title(written: str) -> str:
    """A heading's words without emphasis, code marks and runs of blanks."""
    return _SPACES.sub(" ", _MARKUP.sub("", written)).strip()
