"""Generates texts with characters beyond the basic plane: emoji, rare Han and styled letters.

Software contains hardly any of these characters, so the fit needs generated texts with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_BLOCKS = (
    (0x1F600, 0x1F64F),
    (0x1F600, 0x1F64F),
    (0x1F300, 0x1F5FF),
    (0x1F680, 0x1F6C5),
    (0x1F900, 0x1F9FF),
)
_USUAL = "🚀🎉🐛🔥💡📝🔧🧪👍🙏😀😂"
_WORDS = [
    "ship",
    "it",
    "tomorrow",
    "the",
    "build",
    "is",
    "green",
    "now",
    "thanks",
    "for",
    "looking",
    "at",
    "this",
    "we",
    "could",
    "not",
    "find",
    "why",
    "tests",
    "failed",
    "on",
    "Friday",
    "please",
    "have",
    "another",
    "look",
    "before",
    "lunch",
    "done",
    "merged",
    "great",
    "work",
    "all",
    "release",
    "notes",
    "fix",
    "crash",
    "when",
    "opening",
    "a",
    "new",
    "file",
    "faster",
    "start",
    "docs",
    "moved",
    "to",
    "the",
    "wiki",
]


def emoji_text(source: random.Random) -> str:
    """Return a chat, a changelog or a table with emoji."""
    share = source.choice((0.1, 0.4, 1.0))
    line = source.choice((_chat, _change, _row))
    return "\n".join(line(source, source.random() < share) for _ in range(160))


def rare_text(source: random.Random) -> str:
    """Return lines with rare Han characters or styled mathematical letters."""
    styled = source.random() < 0.5
    made = _styled if styled else _rare_han
    share = source.choice((0.1, 0.5, 1.0))
    lines = (
        f"{_said(source, 6)} {made(source) if source.random() < share else ''}" for _ in range(120)
    )
    return "\n".join(lines)


def _said(source: random.Random, most: int) -> str:
    return " ".join(source.choice(_WORDS) for _ in range(source.randrange(2, most + 2)))


def _emoji(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.5:
        return source.choice(_USUAL)
    if kind < 0.6:
        return "".join(chr(source.randrange(0x1F1E6, 0x1F200)) for _ in range(2))
    if kind < 0.7:
        return "\U0001f44d" + chr(source.randrange(0x1F3FB, 0x1F400))
    if kind < 0.75:
        return "\U0001f468\u200d\U0001f4bb"
    return chr(source.randint(*source.choice(_BLOCKS)))


def _chat(source: random.Random, has: bool) -> str:
    marks = "".join(_emoji(source) for _ in range(source.randrange(1, 4))) if has else ""
    return f"{source.choice(('ana', 'li', 'tom'))}: {_said(source, 12)} {marks}"


def _change(source: random.Random, has: bool) -> str:
    return f"- {_emoji(source) + ' ' if has else ''}{_said(source, 9)}"


def _row(source: random.Random, has: bool) -> str:
    return f"| {_said(source, 3)} | {_emoji(source) if has else 'no'} | {source.randrange(900)} |"


def _rare_han(source: random.Random) -> str:
    return "".join(chr(source.randrange(0x20000, 0x2A6D7)) for _ in range(source.randrange(1, 6)))


def _styled(source: random.Random) -> str:
    start = source.choice((0x1D5D4, 0x1D468, 0x1D670))
    return "".join(chr(start + source.randrange(52)) for _ in range(source.randrange(2, 9)))
