"""What was learned, by key, and which lessons of it no other process can know of yet.

Servers and the command line share one file. What a process has learned since it last wrote is
learned again on top of what the file holds by then, so that nobody's lessons are lost and all who
have read it count alike. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

MOST_KEPT = 512
"""Keys; those that were learned for least recently go first."""
MOST_UNWRITTEN = 1_024
"""Lessons that wait to be written, where that fails; the oldest go first."""


class _Lesson(NamedTuple, Generic[T]):
    """What the known entry of a key, if any, becomes."""

    number: int
    key: str
    teach: Callable[[T | None], T]


class Shelf(Generic[T]):
    """Entries of one form. They are replaced and never changed, as other threads read them."""

    def __init__(self, entries: dict[str, T] | None = None) -> None:
        """`entries`: what was learned for last stands last."""
        self.entries = newest(entries or {})
        self._unwritten: list[_Lesson[T]] = []

    def copy(self) -> Shelf[T]:
        """The same entries and unwritten lessons, apart from these."""
        made = Shelf(self.entries)
        made._unwritten = self._unwritten
        return made

    def learn(self, number: int, key: str, teach: Callable[[T | None], T]) -> None:
        """Take a lesson for a key. Numbers rise."""
        lesson = _Lesson(number, key, teach)
        self._unwritten = [*self._unwritten, lesson][-MOST_UNWRITTEN:]
        self.entries = newest(_after(self.entries, lesson))

    def take(self, theirs: dict[str, T]) -> bool:
        """Have what is written hold, and on top of it what was learned here since. Whether that
        is anything new. What was not written for its number stays as it is known here."""
        merged = {key: one for key, one in self.entries.items() if key not in theirs} | theirs
        for lesson in self._unwritten:
            if lesson.key in theirs:
                merged = _after(merged, lesson)
            else:
                merged[lesson.key] = merged.pop(lesson.key, None) or lesson.teach(None)
        before, self.entries = self.entries, newest(merged)
        return before != self.entries

    def written(self, number: int) -> None:
        """All lessons up to one are in the file."""
        self._unwritten = [lesson for lesson in self._unwritten if lesson.number > number]


def _after(entries: dict[str, T], lesson: _Lesson[T]) -> dict[str, T]:
    others = {key: one for key, one in entries.items() if key != lesson.key}
    return {**others, lesson.key: lesson.teach(entries.get(lesson.key))}


def newest(entries: dict[str, T]) -> dict[str, T]:
    """The entries that were learned for last."""
    return dict(list(entries.items())[-MOST_KEPT:])
