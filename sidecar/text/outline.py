"""The parts of a text that people see: Markdown sections, marked regions, top-level blocks of code.

Lines are LSP's: they end on `\\n`, `\\r\\n` or `\\r` only. All of it takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import add
from typing import Literal

import msgspec
from msgspec.structs import replace

PartKind = Literal["section", "region", "block"]

TITLE_LENGTH = 60
_LINE_END = re.compile(r"\r\n|\n|\r")


class Part(msgspec.Struct, frozen=True):
    """A run of whole lines: `end_line` and `end` are the first after it, offsets are characters.

    `path` is the titles of the headings around a section, its own last; `limit` the number that a
    region names.
    """

    kind: PartKind
    title: str
    start_line: int
    end_line: int
    start: int
    end: int
    level: int = 1
    path: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def path_text(self) -> str:
        """The heading path as rules write it: `Plan > Recent diffs`."""
        return " > ".join(self.path)


class Lines:
    """A text cut into LSP lines: the offset of each line's start, and its text without its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        if "\r" not in text:
            self.texts = text.split("\n")
            ends: Iterable[int] = repeat(1)
        else:
            self.texts = _LINE_END.split(text)
            ends = (len(end) for end in _LINE_END.findall(text))
        # One start per line, then the end of the text as the start of the line after the last.
        lengths = map(add, map(len, self.texts), chain(ends, repeat(0)))
        self.starts = list(accumulate(lengths, initial=0))
        self.starts[-1] = len(text)

    def __len__(self) -> int:
        return len(self.texts)

    def part(
        self, kind: PartKind, title: str, start_line: int, end_line: int, level: int = 1
    ) -> Part:
        """Return the part from `start_line` to before `end_line`."""
        start, end = self.starts[start_line], self.starts[end_line]
        return Part(kind, title[:TITLE_LENGTH], start_line, end_line, start, end, level)


MARK_START = "token-budget:"
IGNORE_MARK = "token-budget: ignore"
FIRST_LINES = 10

_MARK = re.compile(r"(?<![\w-])token-budget:[ \t]*(?:(\d[\d_,]*)|(end|ignore))(?![\w-])")


def find_marked_regions(lines: Lines) -> list[Part]:
    """Return regions in the order of their first lines; both marked lines belong to the region.

    Regions may be nested; one without an end continues to the end of the text.
    """
    if MARK_START not in lines.text:
        return []
    found: list[Part] = []
    open_at: list[tuple[int, int]] = []
    for number, limit, word in _marks(lines):
        if limit:
            open_at.append((number, limit))
        elif word == "end" and open_at:
            found.append(_region(lines, *open_at.pop(), number + 1))
    found += [_region(lines, number, limit, len(lines)) for number, limit in open_at]
    return sorted(found, key=lambda part: (part.start_line, -part.end_line))


def has_ignore_mark(text: str) -> bool:
    """Return whether one of the first ten lines exempts this file from budgets."""
    if IGNORE_MARK.split()[0] not in text:
        return False
    head = re.split(r"\r\n|\n|\r", text, maxsplit=FIRST_LINES)[:FIRST_LINES]
    return any(mark[2] == "ignore" for line in head for mark in _MARK.finditer(line))


def find_ignored_sections(lines: Lines, sections: Sequence[Part]) -> list[Part]:
    """Return sections with a mark below their heading that exempts them from budgets."""
    if MARK_START not in lines.text:
        return []
    marked = [number for number, _, word in _marks(lines) if word == "ignore"]
    owners = [_innermost(sections, number) for number in marked]
    return [owner for owner in owners if owner is not None]


def _marks(lines: Lines) -> Iterator[tuple[int, int, str]]:
    """Yield the line, number (0: none) and word of each mark."""
    for number, line in enumerate(lines.texts):
        if MARK_START not in line:
            continue
        for mark in _MARK.finditer(line):
            digits = re.sub(r"\D", "", mark[1] or "")
            yield number, int(digits[:18] or 0), mark[2] or ""


def _region(lines: Lines, start: int, limit: int, end: int) -> Part:
    name = f"lines {start + 1} to {end}" if end > start + 1 else f"line {end}"
    part = lines.part("region", name, start, end)
    return replace(part, limit=limit)


def _innermost(sections: Sequence[Part], line: int) -> Part | None:
    """Return the innermost section that contains a line."""
    owner = None
    for section in sections:
        if section.start_line > line:
            break
        if section.end_line > line:
            owner = section
    return owner


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


def find_sections(lines: Lines) -> Iterator[Part]:
    """Yield each heading with everything below it, up to the next heading of its level
    or higher.
    """
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


def normalize_heading_path(written: str) -> str:
    """Return a rule's heading path in the form of `Part.path_text`."""
    return " > ".join(_title(part) for part in _STEP.split(written.strip()))


def has_path(part: Part, path: str) -> bool:
    """Return whether a section's path ends with `path` (from `normalize_heading_path`)."""
    own = part.path_text
    return own == path or own.endswith(f" > {path}")


def _ends(found: list[Heading], last: int) -> list[int]:
    """Return the line after each heading's section."""
    ends = [last] * len(found)
    open_at: list[int] = []
    for index, (line, level, _) in enumerate(found):
        while open_at and found[open_at[-1]][1] >= level:
            ends[open_at.pop()] = line
        open_at.append(index)
    return ends


def _scan(lines: Lines) -> list[Heading]:
    """Return all headings, in one pass."""
    scan = _Scan(lines)
    number = _after_front_matter(lines)
    while number < len(lines):
        number = scan.line(number)
    return scan.headings


class _Scan:
    """The state of the scan: what kind of block the next line is in."""

    def __init__(self, lines: Lines) -> None:
        self.headings: list[Heading] = []
        self._lines = lines
        self._paragraph: int | None = None  # its first line: an underline makes it a heading
        self._lazy = False  # paragraphs of quotes and lists continue without a marker
        self._item = 0  # text with this indent belongs to the list item above

    def line(self, number: int) -> int:
        """Scan one line, or a whole fence or comment, and return the number of the next line."""
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
        """Scan a line that may be more than a paragraph's text."""
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
        """Scan a line that may begin or end a paragraph, or be a heading."""
        if first == "#" and (atx := _ATX.match(line)):
            self.headings.append(
                (number, len(atx[1]), _title(_without_closing_hashes(line[atx.end() :])))
            )
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
    """Return the width of the indentation; a tab reaches to the next multiple of four."""
    lead = line[: len(line) - len(line.lstrip(" \t"))]
    return len(lead.expandtabs(4)) if "\t" in lead else len(lead)


def _content_at(container: re.Match[str]) -> int:
    """Return the column at which a list item continues; 0 for a quote."""
    marker = container["marker"]
    if marker == ">":
        return 0
    after = len(container["blank"])
    return len(container["lead"]) + len(marker) + (after if 1 <= after <= 4 else 1)


def _fence(line: str, item: int) -> re.Match[str] | None:
    """Match an opening fence, also one at the start of a list item or inside it."""
    if "```" not in line and "~~~" not in line:
        return None
    return _FENCE.match(line[item:])


def _fence_end(lines: Lines, number: int, mark: str, item: int) -> int:
    """Return the line after the closing fence, or after its list item; else the end of the text."""
    for at in range(number + 1, len(lines)):
        line = lines.texts[at]
        bare = line.strip(" \t")
        if bare and _indent(line) < item:
            return at
        if bare.startswith(mark) and not bare.strip(mark[0]) and _indent(line) < item + 4:
            return at + 1
    return len(lines)


def _comment_end(lines: Lines, number: int) -> int:
    """Return the line after an HTML comment that begins a line."""
    for at in range(number, len(lines)):
        start = lines.texts[at].find("<!--") + 4 if at == number else 0
        if "-->" in lines.texts[at][start:]:
            return at + 1
    return len(lines)


def _after_front_matter(lines: Lines) -> int:
    """Return the line after YAML front matter between two `---`, if any."""
    if lines.texts[0].rstrip() != "---":
        return 0
    for at in range(1, len(lines)):
        if lines.texts[at].rstrip() in ("---", "..."):
            return at + 1
    return 0


def _without_closing_hashes(written: str) -> str:
    """Return a heading's words without closing `#`s."""
    words = written.strip(" \t")
    bare = words.rstrip("#")
    return bare if not bare or bare[-1] in " \t" else words


def _title(written: str) -> str:
    """Return a heading's words without emphasis, code marks and repeated blanks."""
    return _SPACES.sub(" ", _MARKUP.sub("", written)).strip()


_CLOSER = re.compile(
    r"[)\]}]|(?:end|else|elif|elsif|except|finally|catch|rescue|ensure)\b|(?:fi|done|esac)\s*$"
)
_MARKDOWN_LANGUAGES = frozenset(
    {"markdown", "mdx", "quarto", "rmd", "prompt", "instructions", "chatagent", "skill"}
)
_MARKDOWN_SUFFIXES = frozenset(
    {".md", ".markdown", ".mdown", ".mkd", ".mdx", ".mdc", ".qmd", ".rmd", ".prompty"}
)


def is_markdown(name: str, language_id: str = "") -> bool:
    """Return whether a file (by its name or URI) or a language is Markdown."""
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    return language_id in _MARKDOWN_LANGUAGES or suffix in _MARKDOWN_SUFFIXES


def find_parts(text: str, name: str = "", language_id: str = "") -> tuple[Part, ...]:
    """Return Markdown sections, or another language's top-level blocks, in order."""

    if is_markdown(name, language_id):
        return tuple(find_sections(Lines(text)))
    return tuple(find_blocks(Lines(text)))


def find_blocks(lines: Lines) -> Iterator[Part]:
    """Yield top-level blocks by indentation, for any language.

    A block begins on an unindented line after a blank one, or after a block with an indented body;
    closing brackets belong to the block they close. So a run of imports is one block, and a
    decorator or comment belongs to what it precedes. The title is the last line before the body.
    """
    texts = lines.texts
    start: int | None = None
    title, body, blank, last = "", False, False, 0
    for number, line in enumerate(texts):
        if not line or line.isspace():
            blank = True
            continue
        indented = line[0] in " \t"
        closing = body and not indented and _CLOSER.match(line) is not None
        if start is None or not (indented or closing or not (blank or body)):
            if start is not None:
                yield lines.part("block", title, start, last + 1)
            start, title, body = number, line.strip(), False
        elif indented and not closing:
            body = True
        elif not body and not closing and line.strip() not in ("{", "("):
            title = line.strip()
        blank, last = False, number
    if start is not None:
        yield lines.part("block", title, start, last + 1)
