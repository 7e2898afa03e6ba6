"""What readers of JSON lines share: where the files lie, their newest lines, and decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from sidecar.agents.folding import Fold, Folded, resumed_state
from sidecar.agents.homes import homes
from sidecar.agents.listing import below, entries, stat_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.tail import lines_backwards, lines_with, open_quietly
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, StoredSession, stored

if TYPE_CHECKING:
    from datetime import datetime
    from re import Pattern

    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

_TAIL = 16 << 20
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class Decoded(Generic[T]):
    """Lines, decoded one after the other; those that are broken are passed over and counted."""

    def __init__(self, lines: Iterable[bytes], decode: Callable[[bytes], T]) -> None:
        self._lines, self._decode = lines, decode
        self.line = b""
        """The line of the newest record."""
        self.skipped = 0

    def __iter__(self) -> Iterator[T]:
        for line in self._lines:
            try:
                one = self._decode(line)
            except msgspec.DecodeError:
                self.skipped += 1
                continue
            self.line = line
            yield one


def fold_entries(
    needle: bytes, decode: Callable[[bytes], T], call_of: Callable[[S, T], Call | None]
) -> Fold[S]:
    """How to read lines with `needle`, each of which may be a call, and which change no state."""

    def fold(state: S, data: bytes) -> Folded[S]:
        entries = Decoded(lines_with(data, needle), decode)
        made = (call_of(state, one) for one in entries)
        calls = [call for call in made if call is not None]
        return Folded(state, calls, entries.skipped)

    return fold


def lines_of(data: bytes, kinds: Pattern[bytes], within: int = 160) -> Iterator[bytes]:
    """The lines of `data` whose first `within` bytes match `kinds`."""
    start, search, find = 0, kinds.search, data.find
    while (end := find(b"\n", start)) >= 0:
        if search(data, start, min(end, start + within)):
            yield data[start:end]
        start = end + 1


def state_of(
    read: Callable[[Mark | None], Iterable[Batch]], before: Glance | None, start: S
) -> tuple[S, Mark | None]:
    """The state that a store leaves, read on from where the last glance came to, and its mark.

    The mark is what that glance kept in `memory`. Raises OSError.
    """
    mark: Mark | None = before.memory if before else None
    for batch in read(mark):
        mark = batch.mark
    return resumed_state(mark, start), mark


class LineFiles:
    """Stores that are files below an agent's folders: the listings of a `Reader`."""

    agent: str
    inner: str
    """Where they lie in the agent's homes."""
    suffixes: tuple[str, ...] = (".jsonl",)

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.reader.Reader`."""
        return tuple(str(home / self.inner) for home in homes(places, self.agent))

    def is_store(self, path: str) -> bool:
        """Whether a file below the folders is a store, by its name alone."""
        return path.endswith(self.suffixes)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        """See `sidecar.agents.reader.Reader`."""
        for folder in self.folders(places):
            for found in below(self.agent, folder, *self.suffixes):
                if self.is_store(found.path):
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        """See `sidecar.agents.reader.Reader`."""
        inside = any(path.startswith(folder + os.sep) for folder in self.folders(places))
        return stat_of(self.agent, path) if inside and self.is_store(path) else None


class NamedFiles:
    """Stores of one name, each in a folder of its own: the listings of a `Reader`."""

    agent: str
    inner: str
    """Where the folders lie in the agent's homes."""
    name: str
    live = True

    def holders(self, places: Places) -> tuple[str, ...]:
        """The folders with a folder for each store."""
        return tuple(str(home / self.inner) for home in homes(places, self.agent))

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.reader.Reader`."""
        return self.holders(places)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:  # noqa: ARG002
        """See `sidecar.agents.reader.Reader`."""
        for folder in self.holders(places):
            for entry in entries(folder):
                found = stat_of(self.agent, os.path.join(entry.path, self.name), live=self.live)
                if found is not None:
                    yield found

    def store_at(self, places: Places, path: str) -> Found | None:
        """See `sidecar.agents.reader.Reader`."""
        folder, name = os.path.split(path)
        inside = name == self.name and os.path.dirname(folder) in self.holders(places)
        return stat_of(self.agent, path, live=self.live) if inside else None


class Newest(Generic[T]):
    """What a store says, from its newest line back to where nothing older matters."""

    def __init__(self) -> None:
        self.at: datetime | None = None
        self.active: bool | None = None
        self.model: str | None = None
        """Of the last call before what left the size unknown."""
        self.track = Track()
        self.skipped = 0

    def take(self, entry: T) -> bool:
        """Take a line; True where nothing older is needed."""
        raise NotImplementedError

    def look(self, path: str, decode: Callable[[bytes], T]) -> None:
        """Take as many lines of a file as are needed, the newest first. Raises OSError."""
        with open_quietly(path) as file:
            lines = (line for line in lines_backwards(file, most=_TAIL) if line.strip())
            entries = Decoded(lines, decode)
            any(map(self.take, entries))
        self.skipped = entries.skipped

    def session(
        self,
        found: Found,
        name: str,
        cwd: str | None,
        *,
        title: str | None = None,
        window: int | None = None,
    ) -> StoredSession:
        """The session that the lines are of. `window`: where its calls carry none."""
        newest = self.track.newest
        model = (newest.model if newest else None) or self.model
        size = occupancy(self.track, window=window)
        return stored(found, name, cwd, self.at, size, model=model, title=title, active=self.active)
