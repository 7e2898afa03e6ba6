"""Calibration entries by key, and the samples that are not yet in the shared file.

Servers and the command line share one file. Samples that a process took since it last wrote are
applied again on top of what the file holds now, so that no process loses another's samples and all
count alike. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

MOST_KEPT = 512
"""Keys; the ones updated least recently go first."""
MOST_UNWRITTEN = 1_024
"""Samples kept while the file cannot be written; the oldest go first."""


class _Update(NamedTuple, Generic[T]):
    """An update of one key's entry, which may be missing."""

    number: int
    key: str
    apply: Callable[[T | None], T]


class CalibrationTable(Generic[T]):
    """Immutable entries by key; other threads may read them at any time."""

    def __init__(self, entries: dict[str, T] | None = None) -> None:
        """`entries`: the one updated last stands last."""
        self.entries = newest(entries or {})
        self._unwritten: list[_Update[T]] = []

    def copy(self) -> CalibrationTable[T]:
        """Return the same entries and unwritten updates, to change apart from these."""
        made = CalibrationTable(self.entries)
        made._unwritten = self._unwritten
        return made

    def learn(self, number: int, key: str, apply: Callable[[T | None], T]) -> None:
        """Update a key's entry. Numbers rise."""
        update = _Update(number, key, apply)
        self._unwritten = [*self._unwritten, update][-MOST_UNWRITTEN:]
        self.entries = newest(_after(self.entries, update))

    def merge(self, theirs: dict[str, T]) -> bool:
        """Take over the file's entries and apply the unwritten updates again; whether that changed
        anything. Entries that the file has dropped stay as they are here."""
        merged = {key: one for key, one in self.entries.items() if key not in theirs} | theirs
        for update in self._unwritten:
            if update.key in theirs:
                merged = _after(merged, update)
            else:
                merged[update.key] = merged.pop(update.key, None) or update.apply(None)
        before, self.entries = self.entries, newest(merged)
        return before != self.entries

    def written(self, number: int) -> None:
        """Forget the updates up to `number`: they are in the file."""
        self._unwritten = [update for update in self._unwritten if update.number > number]


def _after(entries: dict[str, T], update: _Update[T]) -> dict[str, T]:
    others = {key: one for key, one in entries.items() if key != update.key}
    return {**others, update.key: update.apply(entries.get(update.key))}


def newest(entries: dict[str, T]) -> dict[str, T]:
    """The entries that were updated last."""
    return dict(list(entries.items())[-MOST_KEPT:])
