"""Finds agents' readers, and the paths to watch.

A module in `sidecar.agents.readers` is imported only if its agent has files on this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from importlib import import_module

import msgspec

from sidecar.agents.file_reading import time_from_ns
from sidecar.agents.folders import Places, Roots, has_files, possible_paths, project_files
from sidecar.agents.session_events import Store, StoreReader
from sidecar.config.settings import Agents
from sidecar.errors import log_defect
from sidecar.known_agents import all_agents


def stores_of(reader: StoreReader, places: Places, roots: Roots | None = None) -> list[Store]:
    """Return an agent's stores. If the reader fails, log the error and return no stores.

    A file that several paths lead to is returned once.
    """
    stores: dict[object, Store] = {}
    try:
        for store in reader.find(places, roots):
            stores.setdefault(store.stamp if store.inode else store.path, store)
    except Exception as exc:
        log_defect(exc, f"{reader.agent} session files")
        return []
    return list(stores.values())


_MODULES = {"continue": "continue_dev"}
"""The module names of agents whose names are Python keywords."""


def readers_of(settings: Agents) -> tuple[StoreReader, ...]:
    return tuple(map(reader_of, agents_of(settings)))


def readers_here(settings: Agents, places: Places, roots: Roots) -> tuple[StoreReader, ...]:
    """Import the readers of all enabled agents that have files. This call blocks."""
    agents = agents_of(settings)
    return tuple(reader_of(agent) for agent in agents if has_files(places, agent, roots.paths))


def agents_of(settings: Agents) -> list[str]:
    if not settings.enabled:
        return []
    wanted = all_agents() if settings.sources is None else settings.sources
    return [agent for agent in all_agents() if agent in wanted]


def reader_of(agent: str) -> StoreReader:
    """Import and return an agent's reader. This call blocks."""
    of = all_agents()[agent].reader or agent
    if of not in all_agents():
        raise ValueError(f"{agent} has the reader of {of}, which is not in known_agents.toml")
    if all_agents()[of].calls:
        made: StoreReader = import_module("sidecar.agents.record_reader").reader_by_fields(agent)
        return made
    name = _MODULES.get(of, of.replace("-", "_"))
    reader: StoreReader = import_module(f"sidecar.agents.readers.{name}").READER
    return reader.for_agent(agent)


def paths_to_watch(
    settings: Agents, folders: Iterable[str], places: Places | None = None
) -> tuple[str, ...]:
    """Return the files and folders to watch for changes to sessions. This function blocks.

    If an agent has no files yet, the result includes all paths where it may create them. Therefore,
    some of the returned paths may not exist.

    Args:
        settings: The `agents` settings.
        folders: The workspace folders.
        places: The agents' file locations. Defaults to the current user's.
    """
    roots = Roots.of(folders)
    places = places or Places.of(settings, projects=roots.paths)
    paths: list[str] = []
    for agent in agents_of(settings):
        if has_files(places, agent, roots.paths):
            paths += (*reader_of(agent).folders(places), *project_files(places, agent, roots.paths))
        else:
            paths += possible_paths(places, agent, roots.paths)
    return tuple(dict.fromkeys(paths))


class Surveyed(msgspec.Struct, frozen=True, rename="camel"):
    """An agent's session files, as reported by `doctor`."""

    agent: str
    stores: int
    size: int
    """The total size of all stores in bytes."""
    newest_at: datetime
    calls: int
    """The number of calls in the newest store."""
    skipped: int
    """The number of malformed lines in the newest store."""
    problem: str | None = None
    """The error that occurred while reading the newest store, or None."""


def survey(readers: Sequence[StoreReader], places: Places) -> Iterator[Surveyed]:
    for reader in readers:
        stores = stores_of(reader, places)
        if not stores:
            continue
        newest = max(stores, key=lambda found: (found.live, found.mtime_ns))
        calls, skipped, problem = _sample_store(reader, newest)
        size = sum(found.size for found in stores)
        at = time_from_ns(newest.mtime_ns)
        yield Surveyed(reader.agent, len(stores), size, at, calls, skipped, problem)


def _sample_store(reader: StoreReader, store: Store) -> tuple[int, int, str | None]:
    calls = skipped = 0
    state, is_complete = b"", False
    try:
        while not is_complete:
            read = reader.read(store, state)
            calls += len(read.calls)
            skipped += read.skipped
            state, is_complete = read.state, read.is_complete
    except OSError as error:
        return calls, skipped, error.strerror or str(error)
    except Exception as exc:
        log_defect(exc, f"{store.agent} session file")
        return calls, skipped, "has an unknown format"
    return calls, skipped, None


class Sources(msgspec.Struct, frozen=True):
    """All agents' readers and file locations, and the workspace folders."""

    readers: tuple[StoreReader, ...]
    places: Places
    roots: Roots
    with_prompts: bool = False
    """Whether to label untitled sessions with their first prompt (`agents.labels`)."""

    @classmethod
    def of(cls, settings: Agents, *folders: str) -> Sources | None:
        """Return the sources for workspace folders, or None if agents are disabled.

        This call blocks.
        """
        if not settings.enabled:
            return None
        roots = Roots.of(folders)
        places = Places.of(settings, projects=roots.paths)
        with_prompts = settings.labels == "first-prompt"
        return cls(readers_here(settings, places, roots), places, roots, with_prompts)

    def stores(self, *, mine: bool = True) -> list[Store]:
        """Return all agents' stores without opening them. This call blocks.

        Args:
            mine: Whether to skip stores that belong to other folders, if their paths show it.
        """
        roots = self.roots if mine else None
        return [one for reader in self.readers for one in stores_of(reader, self.places, roots)]

    def stores_at(self, changed: Collection[str]) -> list[Store]:
        """Return the stores that the changed files belong to. This call blocks."""
        found = (reader.store_at(self.places, path) for path in changed for reader in self.readers)
        return list({store.path: store for store in found if store is not None}.values())
