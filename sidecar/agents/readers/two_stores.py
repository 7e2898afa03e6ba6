"""Base class for agents whose newer versions keep sessions in another place and format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sidecar.agents.events import Store, StoreRead, StoreReader

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import StoredSession


class TwoStores(StoreReader):
    """Combines the readers of a new and an old format."""

    def __init__(self, new: StoreReader, old: StoreReader, is_old: Callable[[str], bool]) -> None:
        """Args:
        new: The reader of the new format.
        old: The reader of the old format.
        is_old: Returns whether the store at a path has the old format.
        """
        self._new, self._old, self._is_old = new, old, is_old

    @property
    def agent(self) -> str:
        return self._new.agent

    def folders(self, places: Places) -> tuple[str, ...]:
        return (*self._new.folders(places), *self._old.folders(places))

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        yield from self._new.find(places, roots)
        yield from self._old.find(places, roots)

    def store_at(self, places: Places, path: str) -> Store | None:
        return self._new.store_at(places, path) or self._old.store_at(places, path)

    def is_copy(self, store: Store) -> bool:
        return self._reader_of(store).is_copy(store)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return self._reader_of(store).read(store, state)

    def title(self, store: Store, title_at: str) -> str | None:
        return self._reader_of(store).title(store, title_at)

    def window(self, places: Places, session: StoredSession) -> int | None:
        return self._reader_of(session).window(places, session)

    def _reader_of(self, stored: Store | StoredSession) -> StoreReader:
        return self._old if self._is_old(stored.path) else self._new
