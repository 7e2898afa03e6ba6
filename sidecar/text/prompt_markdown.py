"""Reads prompt files as coding agents do: front matter, HTML comments and `@path` imports.

Offsets are in characters. All functions take linear time, because a repository may be hostile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from textwrap import dedent
from typing import NamedTuple

from sidecar.text.outline import BlockScan, TextLines

Value = str | bool | tuple[str, ...]
"""A value in front matter: text, a truth value, or a list of texts."""


class Span(NamedTuple):
    """A range of characters."""

    start: int
    end: int


_FRONT_MATTER = re.compile(
    r"\ufeff?---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.M | re.S
)
_KEY = re.compile(r"([\w.-]+)[ \t]*:(?:[ \t]+|$)(.*)")
_NESTED_KEY = re.compile(
    r"""("[^"\n]*+"|'[^'\n]*+'|[^\s"'#{\[-][^"'#:\n]*+(?::[^"'#:\s][^"'#:\n]*+)*+)"""
    r"[ \t]*+:(?:[ \t]+|$)(.*)"
)
_DEEPEST = 16
_ITEM = re.compile(r"[ \t]*-(?:[ \t]+(.*)|$)")
_COMMENT_END = re.compile(r"(?:^|\s)#.*$")
_FLOW_ITEM = re.compile(r"""[ \t]*("(?:[^"\\]|\\.)*+"|'[^']*+'|[^,\]]*+)[ \t]*(?:,|\]|$)""")
_RESERVED = tuple("*&!%@`,]}")
"""The characters with which a YAML text without quotes does not start."""
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def front_matter_end(text: str) -> int:
    """Return where the text after the YAML front matter starts. It is 0 if there is none."""
    found = _FRONT_MATTER.match(text) if text[:4].lstrip("\ufeff").startswith("---") else None
    return found.end() if found else 0


def read_front_matter(text: str) -> Mapping[str, Value]:
    """Return the values at the top level of a Markdown file's YAML front matter."""
    found = _FRONT_MATTER.match(text) if front_matter_end(text) else None
    return read_yaml(found[1]) if found else {}


def is_valid_front_matter(text: str) -> bool:
    """Return whether the front matter of a Markdown file, if any, is valid YAML.

    Only the mistakes are found that people make in values: a list or a text without an end, a colon
    in a text without quotes, and a pattern without them, such as `*.ts`.
    """
    found = _FRONT_MATTER.match(text) if front_matter_end(text) else None
    return found is None or not any(map(_is_invalid, _yaml_items(found[1])))


def _is_invalid(item: tuple[str, str, list[str]]) -> bool:
    _, head, inner = item
    head = head.strip()
    if head[:1] in ("|", ">"):
        return False
    if head[:1] in ("'", '"', "[", "{"):
        whole = _COMMENT_END.sub("", "\n".join((head, *inner))).rstrip()
        return len(whole) < 2 or whole[-1] != {"[": "]", "{": "}"}.get(head[0], head[0])
    return head[:1] in _RESERVED or ": " in _COMMENT_END.sub("", head)


def read_yaml(text: str) -> dict[str, Value]:
    """Return the values at the top level of a YAML document that are scalars or lists of them.

    This is the part of YAML that front matter uses: plain, quoted and block scalars, and lists.
    """
    return {key: _yaml_value(head, inner) for key, head, inner in _yaml_items(text)}


def read_nested_yaml(text: str) -> object:
    """Return a YAML document as dicts, lists and values as in `read_yaml`.

    Inner mappings and lists of mappings are read in the form with indented lines, but not in braces
    or with anchors. What is nested more than 16 levels deep is read as text.
    """
    return _nested_value("", text.splitlines())


def _nested_value(head: str, inner: list[str], level: int = 0) -> object:
    """Return the value of a key by what follows on its line, and the lines up to the next key."""
    if level > _DEEPEST or _COMMENT_END.sub("", head).strip():
        return _yaml_value(head, inner)
    lines = [one for one in inner if one.strip() and not one.lstrip().startswith(("#", "---"))]
    lines = dedent("\n".join(lines)).splitlines()
    if lines and lines[0].startswith("- "):
        items: list[list[str]] = []
        for line in lines:
            if line.startswith("-"):
                items.append([" " + line[1:]])
            else:
                items[-1].append(line)
        return [_nested_value("", item, level + 1) for item in items]
    if not lines or not _NESTED_KEY.match(lines[0]):
        return _yaml_value("", lines)
    return {
        key.strip("\"' \t"): _nested_value(head, inner, level + 1)
        for key, head, inner in _yaml_items("\n".join(lines), _NESTED_KEY)
    }


def _yaml_items(text: str, keys: re.Pattern[str] = _KEY) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each key, what follows it on its line, and the lines up to the next key."""
    key, head, inner = "", "", list[str]()
    for line in (*text.splitlines(), "end: "):
        if found := keys.match(line):
            if key:
                yield key, head, inner
            key, head, inner = found[1], found[2], []
        else:
            inner.append(line)


def _yaml_value(head: str, inner: list[str]) -> Value:
    head = head.strip()
    if head[:1] in ("|", ">"):
        lines = [line.strip() for line in inner]
        return ("\n" if head[0] == "|" else " ").join(lines).strip()
    if not head or head[0] == "#":
        items = [found for line in inner if (found := _ITEM.match(line)) is not None]
        if items:
            return tuple(_scalar(found[1] or "") for found in items)
    whole = " ".join((head, *(line.strip() for line in inner))).strip()
    if whole.startswith("[") and "]" in whole:  # agents read a list without an end as text
        items = list(_FLOW_ITEM.finditer(whole, 1))
        return tuple(text for item in items if (text := _scalar(item[1])))
    if head[:1] in ("'", '"'):
        return _scalar(whole)
    plain = _scalar(whole)
    return _TRUTHS.get(plain.lower(), plain)


def _scalar(text: str) -> str:
    text = text.strip()
    quote = text[:1]
    if quote in ("'", '"') and (end := text.rfind(quote)) > 0:
        inner = text[1:end]
        return inner.replace("''", "'") if quote == "'" else inner.replace('\\"', '"')
    return _COMMENT_END.sub("", text).strip()


_COMMENT = re.compile(r"<!--.*?-->", re.S)


def find_block_comments(text: str) -> list[Span]:
    """Return the HTML comments that start a line outside of lists, quotes, code and HTML blocks.

    If nothing else is on a comment's lines, the line breaks after it are part of the range.
    """
    found: list[Span] = []
    if "<!--" not in text:
        return found
    lines = TextLines(text)
    for block in BlockScan(lines.texts).blocks():
        if block.kind != "comment":
            continue
        first, end = _span_of(lines, block.start, block.end)
        # After the last `-->`, each `<!--` would be searched for its end up to the line's end.
        last = text.rfind("-->", first, end) + 3
        comments = [Span(*match.span()) for match in _COMMENT.finditer(text, first, last)]
        starts = (first, *(comment.end for comment in comments))
        ends = (*(comment.start for comment in comments), end)
        if any(text[one:other].strip() for one, other in zip(starts, ends, strict=True)):
            found += comments
            continue
        while text[end : end + 1] == "\n":
            end += 1
        found.append(Span(first, end))
    return found


def _span_of(lines: TextLines, start: int, end: int) -> Span:
    """Return the range of some lines, without the line feed after the last one."""
    last = lines.starts[end]
    return Span(lines.starts[start], last - lines.text.endswith("\n", 0, last))


class Mention(NamedTuple):
    """A path after an `@` sign, which may be an import."""

    path: str
    start: int
    """The offset of the `@` sign."""
    end: int
    block: str
    """Where the mention is: `text`, `html` or `comment`."""
    before: str
    """The character before the `@` sign, unless it is white space."""


_PATH = re.compile(r"@(\S+)")
_PATH_WITH_ESCAPES = re.compile(r"@((?:[^\s\\]|\\ )+)")
_TICKS = re.compile(r"`+")


def find_mentions(
    text: str, *, after: str = "", trims: str = "", has_escapes: bool = False
) -> Iterator[Mention]:
    r"""Yield the `@path` mentions in a Markdown text. Code is ignored.

    Args:
        text: The text.
        after: The characters that may stand before the `@` sign, besides white space.
        trims: The characters that do not belong to the path at its end.
        has_escapes: Whether a path may contain spaces after a backslash.
    """
    if "@" not in text:
        return
    pattern = _PATH_WITH_ESCAPES if has_escapes else _PATH
    lines = TextLines(text)
    for block in BlockScan(lines.texts).blocks():
        if block.kind == "code":
            continue
        is_comment = block.kind == "comment"
        for number in (block.start,) if is_comment else range(block.start, block.end):
            span = _span_of(lines, number, block.end if is_comment else number + 1)
            part = _blank_code_spans(text[span.start : span.end])
            comment_end = part.rfind("-->") if is_comment else -1
            for match in pattern.finditer(part):
                before = part[match.start() - 1 : match.start()]
                if before and not before.isspace() and before not in after:
                    continue
                path = match[1].rstrip(trims) if trims else match[1]
                is_html = block.kind == "html" or match.start() <= comment_end
                start = span.start + match.start()
                end = start + 1 + len(path)
                if has_escapes:
                    path = path.replace("\\ ", " ")
                if path:
                    where = block.kind if is_html else "text"
                    yield Mention(path, start, end, where, before.strip())


def _blank_code_spans(line: str) -> str:
    if "`" not in line:
        return line
    runs = list(_TICKS.finditer(line))
    closing: dict[int, int] = {}
    latest: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = len(runs[index][0])
        if length in latest:
            closing[index] = latest[length]
        latest[length] = index
    parts, position, index = [], 0, 0
    while index < len(runs):
        end = closing.get(index)
        if end is not None:
            start = runs[index].start()
            parts += [line[position:start], "`" * (runs[end].end() - start)]
            position, index = runs[end].end(), end
        index += 1
    return "".join([*parts, line[position:]])
