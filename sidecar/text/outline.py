r"""Finds the parts of the text: Markdown sections, marked regions and top-level code blocks.

Lines end with `\n`, `\r\n` or `\r`, as in LSP. All functions take linear time.
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
    """A range of complete lines. Offsets are in characters.

    Attributes:
        end_line: The index of the first line after the part.
        end: The offset after the last character.
        level: The level of a section's heading, starting at 1.
        path: The titles of the headings that enclose a section, followed by the section's own
            title.
        limit: A marked region's token limit.
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
        """The heading path as it is written in budget rules, such as `Plan > Recent diffs`."""
        return " > ".join(self.path)


class TextLines:
    """A document's lines without their line endings, and each line's start offset."""

    def __init__(self, text: str) -> None:
        self.text = text
        if "\r" not in text:
            self.texts = text.split("\n")
            ends: Iterable[int] = repeat(1)
        else:
            self.texts = _LINE_END.split(text)
            ends = (len(end) for end in _LINE_END.findall(text))
        # The last entry of `starts` is the end of the text.
        lengths = map(add, map(len, self.texts), chain(ends, repeat(0)))
        self.starts = list(accumulate(lengths, initial=0))
        self.starts[-1] = len(text)

    def __len__(self) -> int:
        return len(self.texts)

    def part(
        self, kind: PartKind, title: str, start_line: int, end_line: int, level: int = 1
    ) -> Part:
        """Return the part from line `start_line` up to, but not including, line `end_line`."""
        start, end = self.starts[start_line], self.starts[end_line]
        return Part(kind, title[:TITLE_LENGTH], start_line, end_line, start, end, level)


MARK_START = "token-budget:"
IGNORE_MARK = "token-budget: ignore"
FIRST_LINES = 10
HEAD_CHARACTERS = 65_536
"""Maximum number of characters to search for a mark at the start of a text."""

_MARK = re.compile(r"(?<![\w-])token-budget:[ \t]*(?:(\d[\d_,]*)|(end|ignore))(?![\w-])")


_OPENERS = (
    *("<!--", "{/*", "//", "///", "//!", "/*", "/**", "/*!", "(*", "{#", "{#-", "--", "..", "#"),
    *("%", ";", "!", "REM", "rem", "dnl"),
)
"""Openers of comments, in any language."""
_LINE_OPENERS = ("*", '"', "'")
"""Openers that are only recognized at the start of a line, before a space."""
_CLOSERS = ("", "-->", "*/", "*/}", "*)", "#}", "-#}")
_QUOTES = frozenset("\"'`")
_QUOTED = re.compile(r"""(["'`])(?:\\.|(?!\1)[^\\])*\1""")
"""A quoted text of one line, in most languages."""
_MARKUP_SPAN = re.compile(r"`+|<!--|-->|\{/\*|\*/\}")
_COMMENT_ENDS = {"<!--": "-->", "{/*": "*/}"}
_REFERENCE_COMMENT = re.compile(r" {0,3}\[[^\]]*\]:[ \t]*<?#>?[ \t]+[(\"'](?P<text>.*)")


def find_marked_regions(lines: TextLines, name: str = "") -> list[Part]:
    """Return the marked regions in the text, sorted by their first lines.

    Regions include their marks and may be nested. A region without an end mark extends to the end
    of the text.
    """
    if MARK_START not in lines.text:
        return []
    regions: list[Part] = []
    open_at: list[tuple[int, int]] = []
    for number, mark in _find_marks(lines.texts, name):
        limit, word = int(re.sub(r"\D", "", mark[1] or "")[:18] or 0), mark[2]
        if limit:
            open_at.append((number, limit))
        elif word == "end" and open_at:
            regions.append(_region(lines, *open_at.pop(), number + 1))
    regions += [_region(lines, number, limit, len(lines)) for number, limit in open_at]
    return sorted(regions, key=lambda part: (part.start_line, -part.end_line))


def has_ignore_mark(text: str, name: str = "") -> bool:
    """Return whether a mark in the first ten lines exempts a file from budgets.

    A mark is a comment. In Markdown, text that only mentions it is not a mark.

    Args:
        text: The text.
        name: The file's name or URI, which tells whether it is Markdown.
    """
    text = text[:HEAD_CHARACTERS]
    if MARK_START not in text:
        return False
    head = re.split(r"\r\n|\n|\r", text, maxsplit=FIRST_LINES)[:FIRST_LINES]
    return any(mark[2] == "ignore" for _, mark in _find_marks(head, name))


def find_ignored_sections(lines: TextLines, sections: Sequence[Part], name: str = "") -> list[Part]:
    """Return the sections with a mark that exempts them from budgets."""
    if MARK_START not in lines.text:
        return []
    marked = [number for number, mark in _find_marks(lines.texts, name) if mark[2] == "ignore"]
    owners = [_innermost(sections, number) for number in marked]
    return [owner for owner in owners if owner is not None]


def _find_marks(lines: Sequence[str], name: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the marks and the indices of their lines."""
    if is_markdown(name):
        start = _front_matter_end(lines)
        yield from _find_marks_in_markdown(lines, start)
        lines = lines[:start]
    for number, line in enumerate(lines):
        if MARK_START in line and (mark := _mark_in_comment(line)) is not None:
            yield number, mark


def _mark_in_comment(line: str) -> re.Match[str] | None:
    """Return the mark in a comment of any language, or one that is alone on its line."""
    mark = _MARK.search(line)
    if mark is None:
        return None
    before = line[: mark.start()]
    code = before.rstrip(" \t")
    if not code:
        return mark if line[mark.end() :].strip() in _CLOSERS else None
    if code.strip() in _LINE_OPENERS and code != before:
        return mark
    opener = max(filter(code.endswith, _OPENERS), key=len, default="")
    if opener and mark[2] == "end":
        return mark  # it may follow the last text of the region
    code = code.removesuffix(opener)
    code = code.rstrip(opener[-1:]) if opener else code
    is_quote_open = not _QUOTES.isdisjoint(_QUOTED.sub("", code))
    is_comment = opener and (not code or code[-1].isspace()) and not is_quote_open
    return mark if is_comment else None


def _find_marks_in_markdown(
    lines: Sequence[str], start: int
) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the marks at the start of comments, which are not in code blocks or code spans.

    A region may also be marked in the syntax of another language, because that exempts nothing.
    """
    comment, fence, is_blank = "", "", True
    for number in range(start, len(lines)):
        line = lines[number]
        bare = line.lstrip(" \t>")
        if fence:
            closing = bare.rstrip(" \t")
            fence = "" if closing.startswith(fence) and not closing.strip(fence[0]) else fence
            continue
        if not comment and (opening := _FENCE.match(bare)) is not None:
            fence = opening["mark"]
            continue
        is_code = is_blank and not comment and _INDENTED.match(line) is not None
        is_blank = not bare or is_code
        if is_code:
            continue
        comments, comment = _comments_in(line, comment)
        marks = [mark for text in comments if (mark := _MARK.match(text.strip())) is not None]
        if not marks and MARK_START in line and (mark := _mark_in_comment(line)) is not None:
            marks = [mark] if mark[2] != "ignore" else []
        yield from ((number, mark) for mark in marks)


def _comments_in(line: str, comment: str) -> tuple[list[str], str]:
    """Return the text of a Markdown line's comments, and the opener of one that is still open.

    Args:
        line: The line.
        comment: The opener of the comment that contains the start of the line, or nothing.
    """
    if not comment and (reference := _REFERENCE_COMMENT.match(line)) is not None:
        return [reference["text"]], ""
    spans = list(_MARKUP_SPAN.finditer(line))
    last_ticks = {span[0]: index for index, span in enumerate(spans) if span[0][0] == "`"}
    found, begin, ticks = [], 0, ""
    for index, span in enumerate(spans):
        if ticks:
            ticks = "" if span[0] == ticks else ticks
        elif comment:
            if span[0] == _COMMENT_ENDS[comment]:
                found.append(line[begin : span.start()])
                comment = ""
        elif span[0] in _COMMENT_ENDS:
            comment, begin = span[0], span.end()
        elif last_ticks.get(span[0], 0) > index:
            ticks = span[0]
    if comment:
        found.append(line[begin:])
    return found, comment


def _region(lines: TextLines, start: int, limit: int, end: int) -> Part:
    name = f"lines {start + 1} to {end}" if end > start + 1 else f"line {end}"
    part = lines.part("region", name, start, end)
    return replace(part, limit=limit)


def _innermost(sections: Sequence[Part], line: int) -> Part | None:
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
"""A line that starts with one of these characters might not be ordinary paragraph text."""

_SPACES = re.compile(r"\s+")
_STEP = re.compile(r"(?<!\s)\s++>\s++")
"""Separates the headings in a path. The pattern is possessive, so matching takes linear time."""

Heading = tuple[int, int, str]
"""The first line, level and title of a heading."""


def find_sections(lines: TextLines) -> Iterator[Part]:
    """Yield each heading's section.

    A section ends before the next heading of the same or a higher level.
    """
    scan = _HeadingScan(lines)
    number = _front_matter_end(lines.texts)
    while number < len(lines):
        number = scan.read_line(number)
    ends = _section_ends(scan.headings, len(lines))
    parents: list[Heading] = []
    for heading, end in zip(scan.headings, ends, strict=True):
        line, level, title = heading
        while parents and parents[-1][1] >= level:
            parents.pop()
        parents.append(heading)
        part = lines.part("section", title, line, end, level)
        yield replace(part, path=tuple(parent[2] for parent in parents))


def normalize_heading_path(written: str) -> str:
    """Convert the heading path in a budget rule to the form of `Part.path_text`."""
    return " > ".join(_plain_title(part) for part in _STEP.split(written.strip()))


def has_path(part: Part, path: str) -> bool:
    """Return whether a section's path ends with `path`, which must be normalized."""
    own = part.path_text
    return own == path or own.endswith(f" > {path}")


def _section_ends(headings: list[Heading], end: int) -> list[int]:
    ends = [end] * len(headings)
    open_at: list[int] = []
    for index, (line, level, _) in enumerate(headings):
        while open_at and headings[open_at[-1]][1] >= level:
            ends[open_at.pop()] = line
        open_at.append(index)
    return ends


class _HeadingScan:
    def __init__(self, lines: TextLines) -> None:
        self.headings: list[Heading] = []
        self._lines = lines
        self._paragraph: int | None = None
        """The first line of the current paragraph, which becomes a heading if it is underlined."""
        self._lazy = False
        """Whether the next line may be a lazy continuation of a paragraph in a quote or list."""
        self._item = 0
        """The indent of the text in the current list item, or 0 outside of lists."""

    def read_line(self, number: int) -> int:
        """Read a line, a whole fenced block or a whole comment, and return the index of the next
        line.
        """
        line = self._lines.texts[number]
        bare = line.lstrip(" \t")
        if not bare:
            self._paragraph, self._lazy = None, False
            return number + 1
        if not self._item and bare[0] not in _SPECIAL:
            if self._paragraph is None and not self._lazy and not _INDENTED.match(line):
                self._paragraph = number
            return number + 1
        return self._read_special(number, line, bare[0])

    def _read_special(self, number: int, line: str, first: str) -> int:
        inside = self._item if _indent_width(line) >= self._item else 0
        if not self._lazy:
            self._item = inside
        if (fence := _match_fence(line, inside)) is not None:
            return self._read_fence(number, fence, inside)
        if inside:
            self._lazy = _ATX.match(line, inside) is None
            return number + 1
        if first == "<" and _COMMENT.match(line):
            self._end_block()
            return _comment_end(self._lines, number)
        self._read_block(number, line, first)
        return number + 1

    def _read_block(self, number: int, line: str, first: str) -> None:
        if first == "#" and (atx := _ATX.match(line)):
            self.headings.append(
                (number, len(atx[1]), _plain_title(_without_closing_hashes(line[atx.end() :])))
            )
            self._end_block()
        elif first in "=-" and self._paragraph is not None and (under := _SETEXT.match(line)):
            title = " ".join(self._lines.texts[self._paragraph : number])
            level = 1 if under[1][0] == "=" else 2
            self.headings.append((self._paragraph, level, _plain_title(title)))
            self._end_block()
        elif first in "-*_" and _BREAK.match(line):
            self._end_block()
        elif container := _CONTAINER.match(line):
            self._end_block()
            self._lazy, self._item = True, _item_indent(container)
        elif self._paragraph is None and not self._lazy and not _INDENTED.match(line):
            self._paragraph = number

    def _read_fence(self, number: int, opening: re.Match[str], inside: int) -> int:
        item = inside or (len(opening["lead"]) if opening["lead"].strip() else 0)
        end = _fence_end(self._lines, number, opening["mark"], item)
        self._end_block()
        self._item = item
        return end

    def _end_block(self) -> None:
        self._paragraph, self._lazy, self._item = None, False, 0


def _indent_width(line: str) -> int:
    lead = line[: len(line) - len(line.lstrip(" \t"))]
    return len(lead.expandtabs(4)) if "\t" in lead else len(lead)


def _item_indent(container: re.Match[str]) -> int:
    marker = container["marker"]
    if marker == ">":
        return 0
    after = len(container["blank"])
    return len(container["lead"]) + len(marker) + (after if 1 <= after <= 4 else 1)


def _match_fence(line: str, item: int) -> re.Match[str] | None:
    if "```" not in line and "~~~" not in line:
        return None
    return _FENCE.match(line[item:])


def _fence_end(lines: TextLines, number: int, mark: str, item: int) -> int:
    for at in range(number + 1, len(lines)):
        line = lines.texts[at]
        bare = line.strip(" \t")
        if bare and _indent_width(line) < item:
            return at
        if bare.startswith(mark) and not bare.strip(mark[0]) and _indent_width(line) < item + 4:
            return at + 1
    return len(lines)


def _comment_end(lines: TextLines, number: int) -> int:
    for at in range(number, len(lines)):
        start = lines.texts[at].find("<!--") + 4 if at == number else 0
        if "-->" in lines.texts[at][start:]:
            return at + 1
    return len(lines)


def _front_matter_end(lines: Sequence[str]) -> int:
    if lines[0].rstrip() != "---":
        return 0
    for at in range(1, len(lines)):
        if lines[at].rstrip() in ("---", "..."):
            return at + 1
    return 0


def _without_closing_hashes(written: str) -> str:
    words = written.strip(" \t")
    bare = words.rstrip("#")
    return bare if not bare or bare[-1] in " \t" else words


def _plain_title(written: str) -> str:
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
    """Return whether a file is Markdown, judging by its language or by the suffix of its name or
    URI.
    """
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    return language_id in _MARKDOWN_LANGUAGES or suffix in _MARKDOWN_SUFFIXES


def find_parts(text: str, name: str = "", language_id: str = "") -> tuple[Part, ...]:
    """Return the sections of a Markdown document, or the top-level blocks of any other document."""
    if is_markdown(name, language_id):
        return tuple(find_sections(TextLines(text)))
    return tuple(find_blocks(TextLines(text)))


def find_blocks(lines: TextLines) -> Iterator[Part]:
    """Yield the top-level code blocks in any language, judging by indentation.

    A block starts at an unindented line that follows a blank line or a block with an indented body.
    A closing bracket belongs to the block that it closes. As a result, consecutive imports are one
    block, and a decorator or comment belongs to the definition below it. The title of a block is
    the last line before its body.
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
