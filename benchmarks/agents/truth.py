"""Defines the expected calls and contexts of a generated history."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 9, 1, 8, tzinfo=UTC)
WORDS = (
    "the tokenizer reads a line and “counts” what it holds; def fold(state, data): return state\n"
)


class Tokens(NamedTuple):
    """The tokens of a call, in parts that do not overlap."""

    fresh: int = 0
    read: int = 0
    write: int = 0
    write_1h: int = 0
    """One-hour cache writes, which are part of `write`."""
    output: int = 0
    reasoning: int = 0
    """Reasoning tokens, which are part of `output`."""

    @property
    def prompt(self) -> int:
        """The whole input."""
        return self.fresh + self.read + self.write


@dataclass
class Truth:
    """The numbers that a reader should find in a history."""

    calls: dict[str, tuple[str, Tokens]] = field(default_factory=dict)
    """The session and tokens of each call, by the provider's id."""
    context: dict[str, int | None] = field(default_factory=dict)
    """The size of each session's context in tokens, or None if unknown."""
    window: dict[str, int | None] = field(default_factory=dict)
    """The context window of each session in tokens, as the agent reports it."""

    @property
    def total(self) -> Tokens:
        """The total of all calls."""
        return Tokens(*(sum(column) for column in zip(*(t for _, t in self.calls.values()))))  # noqa: B905


class Clock:
    """Generates increasing times and random values from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = START + timedelta(hours=seed)

    def tick(self) -> str:
        """Return the next time, in the form that agents write."""
        self.now += timedelta(milliseconds=self.rng.randrange(200, 9_000))
        return stamp(self.now)

    def id(self, length: int = 24) -> str:
        """Return a random id of hexadecimal digits."""
        return f"{self.rng.getrandbits(4 * length):0{length}x}"

    def uuid(self) -> str:
        """Return a random UUID."""
        digits = self.id(32)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def text(self, length: int) -> str:
        """Return about `length` characters of text, with quotes and characters outside ASCII."""
        start = self.rng.randrange(len(WORDS))
        return (WORDS * (2 + length // len(WORDS)))[start : start + length]


def stamp(at: datetime) -> str:
    """Return a time in the form that agents write."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def append(path: Path, *records: Any, spaces: bool = False) -> None:
    """Append records as lines to a file, as an agent does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (", ", ": ") if spaces else (",", ":")
    with path.open("a", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, separators=separators) + "\n")
