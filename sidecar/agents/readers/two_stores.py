"""An agent whose newer versions keep their sessions elsewhere, in another form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.reader import Look, Reader
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import Batch, Found, Glance, Mark


class TwoStores:
    """Both at once. See `sidecar.agents.reader.Reader`."""

    def __init__(self, new: Reader, old: Reader, is_old: Callable[[str], bool]) -> None:
        """`is_old`: whether the store at a path is of the older form."""
        self.agent = new.agent
        self._new, self._old, self._is_old = new, old, is_old

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Found]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Found | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def glance(self, look: Look) -> Glance:
        return self._of(look.found).glance(look)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return self._of(found).read(found, mark)

    def _of(self, found: Found) -> Reader:
        return self._old if self._is_old(found.path) else self._new
