"""Mixins that find the session files of agents."""

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
    """Finds all files with the given suffixes in an agent's folders."""

    agent: str
    inner: str
    """Path of the files inside the agent's folders."""
    suffixes: tuple[str, ...] = (".jsonl",)

    def folders(self, places: Places) -> tuple[str, ...]:
        """See `sidecar.agents.events.StoreReader`."""
        return tuple(str(home / self.inner) for home in agent_folders(places, self.agent))

    def is_store(self, path: str) -> bool:
        """Return whether a file is a store, judged by its name."""
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
    """Finds files with a fixed name, each in a folder of its own."""

    agent: str
    inner: str
    """Path of those folders inside the agent's folders."""
    name: str
    live = True

    def holders(self, places: Places) -> tuple[str, ...]:
        """Return the folders that contain the stores' folders."""
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
