"""Limits of a TOML text, checked before it is parsed: `tomllib` takes minutes for a key of
20,000 parts, and every entry costs memory, look-ups and messages later on. Linear and pure."""

from __future__ import annotations

import re

MAX_ENTRIES = 10_000  # keys, parts of dotted keys, list items and tables
MAX_LINES = 50_000
MAX_DEPTH = 32  # brackets within brackets
MAX_PARTS = 32  # of a dotted key

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!""))*+(?:"{3,5})?+'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?+"
    r'|"(?:[^"\\\n]|\\.)*+"?+'
    r"|'[^'\n]*+'?+"
    r"|#[^\n]*+"
    r"|[\[\]{}=,.\n]"
)


class TooMuchError(ValueError):
    """A text that is not read; `at` is the offset of what is too much."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


def check_limits(text: str) -> None:
    """Raises `TooMuchError` at the first thing that is over a limit.

    Up to its first mistake a text is cut into tokens as TOML does it; no parser goes further.
    """
    entries = lines = depth = parts = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark[0] in "\"'#":
            continue
        parts = parts + 1 if mark == "." else 0
        if parts >= MAX_PARTS:
            raise TooMuchError(f"a key has more than {MAX_PARTS} parts", token.start())
        if mark == "\n":
            lines += 1
            if lines > MAX_LINES:
                raise TooMuchError(f"has more than {MAX_LINES:,} lines", token.start())
        elif mark in "]}":
            depth = max(0, depth - 1)
            continue
        else:
            entries += 1
            depth += mark in "[{"
        if depth > MAX_DEPTH:
            raise TooMuchError(f"is nested more than {MAX_DEPTH} deep", token.start())
        if entries > MAX_ENTRIES:
            raise TooMuchError(f"has more than {MAX_ENTRIES:,} entries", token.start())
