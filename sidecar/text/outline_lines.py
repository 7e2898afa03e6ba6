"""A text as LSP lines, and the runs of them that an outline is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate, chain, repeat
from operator import add
from typing import Literal

import msgspec

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
        # One start a line, then the end of the text, which stands in for the line after the last.
        lengths = map(add, map(len, self.texts), chain(ends, repeat(0)))
        self.starts = list(accumulate(lengths, initial=0))
        self.starts[-1] = len(text)

    def __len__(self) -> int:
        return len(self.texts)

    def part(
        self, kind: PartKind, title: str, start_line: int, end_line: int, level: int = 1
    ) -> Part:
        """The lines from `start_line` up to, not with, `end_line`."""
        start, end = self.starts[start_line], self.starts[end_line]
        return Part(kind, title[:TITLE_LENGTH], start_line, end_line, start, end, level)
