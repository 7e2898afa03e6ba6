"""What a glob is made of: read from left to right into runs of fixed length between stars. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_CLASSES = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "blank": "  \t\t",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "  \t\r",
    "upper": "AZ",
    "xdigit": "09AFaf",
}


class InvalidGlobError(Exception):
    """The pattern is one that git passes over: it matches nothing."""


class _Set(NamedTuple):
    """`[...]` or `?`: the characters between `low` and `high` of a range, or those outside all."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool

    def expression(self) -> str:
        """As in a regular expression. A range whose ends are in the wrong order is empty."""
        ranges = (f"{re.escape(low)}-{re.escape(high)}" for low, high in self.ranges if low <= high)
        inside = "".join(ranges)
        if not inside:
            return r"[\s\S]" if self.negated else r"[^\s\S]"
        return f"[{'^' if self.negated else ''}{inside}]"


class FixedRun:
    """Characters and sets in a row: an expression that repeats nothing, so it is never tried anew.

    It takes no longer than its own length times that of the text.
    """

    def __init__(self, elements: Sequence[str | _Set]) -> None:
        self._length = len(elements)
        self.pattern = re.compile(
            "".join(
                re.escape(element) if isinstance(element, str) else element.expression()
                for element in elements
            )
        )

    def __len__(self) -> int:
        return self._length


Run = str | FixedRun
Segment = tuple[Run, ...]
_ANY = _Set((), negated=True)
STAR: Segment = ("", "")


class GlobReader:
    """Reads a glob from left to right. `git`: backslashes escape, `/` ends a segment."""

    def __init__(self, text: str, *, git: bool) -> None:
        self.text, self.at, self._git = text, 0, git

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    def segment(self) -> Segment:
        """Up to the next slash, or to the end, as runs between stars. Raises `InvalidGlobError`."""
        runs: list[list[str | _Set]] = [[]]
        while not self.ended:
            character = self.text[self.at]
            if self._git and (character == "/" or self.text.startswith("\\/", self.at)):
                self.at += character == "\\"
                break
            if character != "*":
                runs[-1].append(self._element(character))
                continue
            while self.text.startswith("*", self.at):
                self.at += 1
            runs.append([])
        return tuple(_joined(run) for run in runs)

    def _element(self, character: str) -> str | _Set:
        self.at += 1
        if character == "?":
            return _ANY
        if character == "[":
            return self._bracket()
        if character == "\\" and self._git:
            return self._take()
        return character

    def _bracket(self) -> str | _Set:
        start = self.at
        negated = self.text[self.at : self.at + 1] in (("!", "^") if self._git else ("!",))
        self.at += negated
        try:
            return _Set(tuple(self._ranges()), negated)
        except InvalidGlobError:
            if self._git:
                raise
            self.at = start
            return "["

    def _ranges(self) -> list[tuple[str, str]]:
        """What stands in brackets, as wildmatch of git reads it; a first `]` means itself."""
        found: list[tuple[str, str]] = []
        before = ""
        while True:
            character = self._take()
            if character == "]" and found:
                return found
            named = self._class() if character == "[" and self._git else None
            if named is not None:
                found += named
                before = ""
            elif character == "-" and before and not self.text.startswith("]", self.at):
                found.append((before, self._escaped(self._take())))
                before = ""
            else:
                before = self._escaped(character)
                found.append((before, before))

    def _class(self) -> list[tuple[str, str]] | None:
        """`[:alpha:]`, of which the first bracket is read; None when it is none."""
        end = self.text.find("]", self.at)
        if not self.text.startswith(":", self.at):
            return None
        if end < 0:
            raise InvalidGlobError
        name = self.text[self.at + 1 : end]
        if not name.endswith(":"):
            return None
        ends = _CLASSES.get(name[:-1])
        if ends is None:
            raise InvalidGlobError
        self.at = end + 1
        return list(zip(ends[::2], ends[1::2], strict=True))

    def _escaped(self, character: str) -> str:
        return self._take() if character == "\\" and self._git else character

    def _take(self) -> str:
        if self.ended:
            raise InvalidGlobError
        self.at += 1
        return self.text[self.at - 1]


def _joined(run: list[str | _Set]) -> Run:
    characters = [element for element in run if isinstance(element, str)]
    return "".join(characters) if len(characters) == len(run) else FixedRun(run)
