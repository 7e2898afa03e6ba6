"""Where stores lie that are files: the listings of readers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sidecar.agents.homes import agent_folders
from sidecar.agents.listing import find_files, list_folder, store_from_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.events import Store
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots


class LineFiles:
    """Stores that are files below an agent's folders: the listings of a `StoreReader`."""

    agent: str
    inner: str
    """Where they lie in the agent's homes."""
    suffixes: tuple[str, ...] = (".jsonl",)

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.events.StoreReader`."""
        return tuple(str(home / self.inner) for home in agent_folders(places, self.agent))

    def is_store(self, path: str) -> bool:
        """Whether a file below the folders is a store, by its name alone."""
        return path.endswith(self.suffixes)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        """See `sidecar.agents.events.StoreReader`."""
        for folder in self.folders(places):
            for found in find_files(self.agent, folder, *self.suffixes):
                if self.is_store(found.path):
                    yield found

    def store_at(self, places: Places, path: str) -> Store | None:
        """See `sidecar.agents.events.StoreReader`."""
        inside = any(path.startswith(folder + os.sep) for folder in self.folders(places))
        return store_from_path(self.agent, path) if inside and self.is_store(path) else None


class NamedFiles:
    """Stores of one name, each in a folder of its own: the listings of a `StoreReader`."""

    agent: str
    inner: str
    """Where the folders lie in the agent's homes."""
    name: str
    live = True

    def holders(self, places: Places) -> tuple[str, ...]:
        """The folders with a folder for each store."""
        return tuple(str(home / self.inner) for home in agent_folders(places, self.agent))

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.events.StoreReader`."""
        return self.holders(places)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:  # noqa: ARG002
        """See `sidecar.agents.events.StoreReader`."""
        for folder in self.holders(places):
            for entry in list_folder(folder):
                found = store_from_path(
                    self.agent, os.path.join(entry.path, self.name), live=self.live
                )
                if found is not None:
                    yield found

    def store_at(self, places: Places, path: str) -> Store | None:
        """See `sidecar.agents.events.StoreReader`."""
        folder, name = os.path.split(path)
        inside = name == self.name and os.path.dirname(folder) in self.holders(places)
        return store_from_path(self.agent, path, live=self.live) if inside else None
