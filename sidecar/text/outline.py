r"""Finds the parts of the text: Markdown sections, marked regions and top-level code blocks.

`BlockScan` is the one scanner of Markdown, also for what agents do with prompt files.
Lines end with `\n`, `\r\n` or `\r`, as in LSP. All functions take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, repeat
from operator import add
from typing import Literal, NamedTuple

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
    comment, code_end = "", 0
    for block in BlockScan([_QUOTE.sub("", line) for line in lines], start).blocks():
        for number in range(block.start, block.end):
            line = lines[number]
            # An indented line after a blank one may be code in a list item, too.
            is_after_blank = number in (start, code_end) or not lines[number - 1].strip(" \t>")
            is_code = block.kind == "code" or (is_after_blank and _INDENTED.match(line) is not None)
            if is_code and not comment:
                code_end = number + 1
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
_COMMENT_END = re.compile(r"-->")
_INDENTED = re.compile(r" {0,3}\t| {4}")
_QUOTE = re.compile(r"^(?: {0,3}> ?)+")
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
    headings = list(_find_headings(lines))
    ends = _section_ends(headings, len(lines))
    parents: list[Heading] = []
    for heading, end in zip(headings, ends, strict=True):
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


def _find_headings(lines: TextLines) -> Iterator[Heading]:
    for block in BlockScan(lines.texts, _front_matter_end(lines.texts)).blocks():
        line = lines.texts[block.start]
        if block.paragraph is not None:
            title = " ".join(lines.texts[block.paragraph : block.start])
            yield block.paragraph, 1 if "=" in line else 2, _plain_title(title)
        elif block.kind == "heading" and (atx := _ATX.match(line)) is not None:
            title = _without_closing_hashes(line[atx.end() :])
            yield block.start, len(atx[1]), _plain_title(title)


BlockKind = Literal["text", "heading", "code", "html", "comment"]


class Block(NamedTuple):
    """Lines of a Markdown text: a whole fenced code block, HTML block or comment, or one line."""

    kind: BlockKind
    start: int
    """The index of the first line."""
    end: int
    """The index of the line after the last one."""
    paragraph: int | None = None
    """The first line of the paragraph that this line makes a heading, by underlining it."""


class BlockScan:
    """Tells which block each line of a Markdown text is part of, as CommonMark defines it.

    Of the blocks inside lists and quotes, it recognizes only fenced code in lists.
    """

    def __init__(self, lines: Sequence[str], start: int = 0) -> None:
        self._lines, self._start = lines, start
        self._paragraph: int | None = None
        """The first line of the current paragraph, which becomes a heading if it is underlined."""
        self._lazy = False
        """Whether the next line may be a lazy continuation of a paragraph in a quote or list."""
        self._item = 0
        """The indent of the text in the current list item, or 0 outside of lists."""

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order. Blank lines are left out, except in code and comments."""
        number, lines = self._start, self._lines
        while number < len(lines):
            line = lines[number]
            bare = line.lstrip(" \t")
            if not bare:
                self._paragraph, self._lazy = None, False
                number += 1
                continue
            if self._item or bare[0] in _SPECIAL:
                block = self._read_special(number, line, bare[0])
            else:
                block = self._read_text(number, line)
            yield block
            number = block.end

    def _read_text(self, number: int, line: str) -> Block:
        if self._paragraph is None and not self._lazy:
            if _INDENTED.match(line):
                return Block("code", number, number + 1)
            self._paragraph = number
        return Block("text", number, number + 1)

    def _read_special(self, number: int, line: str, first: str) -> Block:
        inside = self._item if _indent_width(line) >= self._item else 0
        if not self._lazy:
            self._item = inside
        if (fence := _match_fence(line, inside)) is not None:
            return self._read_fence(number, fence, inside)
        if inside:
            self._lazy = _ATX.match(line, inside) is None
            return Block("text", number, number + 1)
        if first == "<" and (html := self._read_html(number, line)) is not None:
            self._end_block()
            return html
        return self._read_block(number, line, first)

    def _read_block(self, number: int, line: str, first: str) -> Block:
        if first == "#" and _ATX.match(line):
            self._end_block()
            return Block("heading", number, number + 1)
        if first in "=-" and self._paragraph is not None and _SETEXT.match(line):
            paragraph = self._paragraph
            self._end_block()
            return Block("heading", number, number + 1, paragraph)
        if first in "-*_" and _BREAK.match(line):
            self._end_block()
        elif container := _CONTAINER.match(line):
            self._end_block()
            # Only a paragraph continues without the marks of its quote or list.
            self._lazy, self._item = container.end() < len(line), _item_indent(container)
        else:
            return self._read_text(number, line)
        return Block("text", number, number + 1)

    def _read_fence(self, number: int, opening: re.Match[str], inside: int) -> Block:
        item = inside or (len(opening["lead"]) if opening["lead"].strip() else 0)
        end = _fence_end(self._lines, number, opening["mark"], item)
        self._end_block()
        self._item = item
        return Block("code", number, end)

    def _read_html(self, number: int, line: str) -> Block | None:
        """Return the HTML block or the comment that starts with a line, or None if none starts."""
        if _COMMENT.match(line):
            end = self._end_of(_COMMENT_END, number, line.find("<!--") + 4)
            is_closed = "-->" in self._lines[end - 1]
            return Block("comment" if is_closed else "html", number, end)
        starts = _html_starts()
        for start, last in starts.ended:
            if start.match(line):
                return Block("html", number, self._end_of(last, number))
        is_tag = self._paragraph is None and not self._lazy and starts.tag.match(line) is not None
        if not is_tag and starts.block.match(line) is None:
            return None
        rest = range(number + 1, len(self._lines))
        blank = next((at for at in rest if not self._lines[at].strip()), len(self._lines))
        return Block("html", number, blank)

    def _end_of(self, last: re.Pattern[str], number: int, offset: int = 0) -> int:
        """Return the line after the one that ends a block, or the end of the text.

        Args:
            last: What the last line contains.
            number: The first line to search.
            offset: Where to begin in this line.
        """
        for at in range(number, len(self._lines)):
            if last.search(self._lines[at], offset if at == number else 0):
                return at + 1
        return len(self._lines)

    def _end_block(self) -> None:
        self._paragraph, self._lazy, self._item = None, False, 0


class _HtmlStarts(NamedTuple):
    ended: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    """The starts of blocks, and what their last lines contain."""
    block: re.Pattern[str]
    """The start of a block that ends at a blank line."""
    tag: re.Pattern[str]
    """A line with a single tag, which starts such a block, too, but not in a paragraph."""


@cache
def _html_starts() -> _HtmlStarts:
    """Return the patterns for HTML, which are compiled only for texts that have some."""
    raw = "script|pre|style|textarea"
    return _HtmlStarts(
        ended=(
            (
                re.compile(rf" {{0,3}}<(?:{raw})(?=[\s>]|$)", re.I),
                re.compile(rf"</(?:{raw})>", re.I),
            ),
            (re.compile(r" {0,3}<\?"), re.compile(r"\?>")),
            (re.compile(r" {0,3}<!\[CDATA\["), re.compile(r"\]\]>")),
            (re.compile(r" {0,3}<![a-z]", re.I), re.compile(r">")),
        ),
        block=re.compile(
            r" {0,3}</?(?:address|article|aside|base|basefont|blockquote|body|caption|center|col"
            r"|colgroup|dd|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form"
            r"|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|menuitem"
            r"|meta|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td"
            r"|tfoot|th|thead|title|tr|track|ul)(?=[\s/>]|$)",
            re.I,
        ),
        tag=re.compile(r" {0,3}</?[a-z][\w-]*(?:\s[^<>]*)?>\s*$", re.I),
    )


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


def _fence_end(lines: Sequence[str], number: int, mark: str, item: int) -> int:
    for at in range(number + 1, len(lines)):
        line = lines[at]
        bare = line.strip(" \t")
        if bare and _indent_width(line) < item:
            return at
        if bare.startswith(mark) and not bare.strip(mark[0]) and _indent_width(line) < item + 4:
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
