"""What a generated corpus holds: every call once, and each session's context."""

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
    """Tokens of one call, in parts that do not overlap."""

    fresh: int = 0
    read: int = 0
    write: int = 0
    write_1h: int = 0
    """Of `write`."""
    output: int = 0
    reasoning: int = 0
    """Of `output`."""

    @property
    def prompt(self) -> int:
        """All input."""
        return self.fresh + self.read + self.write


@dataclass
class Truth:
    """What a right reader says of a corpus."""

    calls: dict[str, tuple[str, Tokens]] = field(default_factory=dict)
    """By the provider's id: the session that made a call, and its tokens."""
    context: dict[str, int | None] = field(default_factory=dict)
    """By session: the occupancy in tokens; None where it is not known."""
    window: dict[str, int | None] = field(default_factory=dict)
    """By session: the window in tokens, by the agent's own word."""

    @property
    def total(self) -> Tokens:
        """All calls together."""
        return Tokens(*(sum(column) for column in zip(*(t for _, t in self.calls.values()))))  # noqa: B905


class Clock:
    """Times that only go on, and everything else that is drawn at random, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = START + timedelta(hours=seed)

    def tick(self) -> str:
        """The next moment, as agents write it."""
        self.now += timedelta(milliseconds=self.rng.randrange(200, 9_000))
        return stamp(self.now)

    def id(self, length: int = 24) -> str:
        """A random id of hexadecimal digits."""
        return f"{self.rng.getrandbits(4 * length):0{length}x}"

    def uuid(self) -> str:
        """A random id in the usual form."""
        digits = self.id(32)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def text(self, length: int) -> str:
        """About `length` characters of text with quotes and characters outside ASCII."""
        start = self.rng.randrange(len(WORDS))
        return (WORDS * (2 + length // len(WORDS)))[start : start + length]


def stamp(at: datetime) -> str:
    """A time as agents write it."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


def append(path: Path, *records: Any, spaces: bool = False) -> None:
    """Records as lines at the end of a file, as an agent would append them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (", ", ": ") if spaces else (",", ":")
    with path.open("a", encoding="utf-8", newline="\n") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, separators=separators) + "\n")
