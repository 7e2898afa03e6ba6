"""Marks in comments: regions with a budget of their own, and what is to be ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from sidecar.text.outline_lines import Lines, Part

WORD = "token-budget:"
IGNORE = "token-budget: ignore"
FIRST_LINES = 10

_MARK = re.compile(r"(?<![\w-])token-budget:[ \t]*(?:(\d[\d_,]*)|(end|ignore))(?![\w-])")


def regions(lines: Lines) -> list[Part]:
    """Regions in the order of their first lines; both marked lines belong to the region.

    They may stand in one another; one without an end goes to the end of the text.
    """
    if WORD not in lines.text:
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


def ignores_file(text: str) -> bool:
    """Whether one of the first ten lines says that this file has no budget."""
    if IGNORE.split()[0] not in text:
        return False
    head = re.split(r"\r\n|\n|\r", text, maxsplit=FIRST_LINES)[:FIRST_LINES]
    return any(mark[2] == "ignore" for line in head for mark in _MARK.finditer(line))


def ignored(lines: Lines, sections: Sequence[Part]) -> list[Part]:
    """Sections that say under their heading, before the next one, that they have no budget."""
    if WORD not in lines.text:
        return []
    marked = [number for number, _, word in _marks(lines) if word == "ignore"]
    owners = [_innermost(sections, number) for number in marked]
    return [owner for owner in owners if owner is not None]


def _marks(lines: Lines) -> Iterator[tuple[int, int, str]]:
    """Line, number (0: none) and word of each mark."""
    for number, line in enumerate(lines.texts):
        if WORD not in line:
            continue
        for mark in _MARK.finditer(line):
            digits = re.sub(r"\D", "", mark[1] or "")
            yield number, int(digits[:18] or 0), mark[2] or ""


def _region(lines: Lines, start: int, limit: int, end: int) -> Part:
    name = f"lines {start + 1} to {end}" if end > start + 1 else f"line {end}"
    part = lines.part("region", name, start, end)
    return replace(part, limit=limit)


def _innermost(sections: Sequence[Part], line: int) -> Part | None:
    """The section that a line stands in directly: the last one that begins above it."""
    owner = None
    for section in sections:
        if section.start_line > line:
            break
        if section.end_line > line:
            owner = section
    return owner
