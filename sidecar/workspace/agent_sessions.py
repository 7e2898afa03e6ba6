"""Finds coding agents' sessions for each workspace.

Session files are read on worker threads. No file is opened while `agents.enabled` is false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from sidecar.agents.claude_statusline import load, with_saved_window
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import Store, StoredSession
from sidecar.workspace.sessions import RECENT

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.session_index import Unread
    from sidecar.config.settings import Agents
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import MemoryLedger
    from sidecar.errors import SidecarError
    from sidecar.workspace.sessions import SessionRegistry
    from sidecar.workspace.shared_services import SharedServices
    from sidecar.workspace.workspace import Workspace


_log = logging.getLogger(__name__)

MAX_OLD_STORES = 100
"""Maximum number of stores to read when searching for one of the workspace's sessions."""


class LastSearch(NamedTuple):
    sources: Sources
    sessions: frozenset[str]
    """The IDs of the recent sessions."""


class SessionReader:
    """Reads a workspace's sessions and their calls through the session index. All methods block."""

    def __init__(self, sources: Sources, book: CostBook | MemoryLedger) -> None:
        from sidecar.agents.session_index import SessionIndex
        from sidecar.cost.ledger import Ledger

        ledger = book if isinstance(book, Ledger) else book.ledger
        self._sources, self._index = sources, SessionIndex(ledger)
        self.has_new_costs = False
        """Whether any calls were recorded or changed."""
        self.unread: Unread | None = None
        """What the ledger still lacks after `read_newest` or `read_recent`."""

    def sessions(self, since: datetime | None, *, with_names: bool = False) -> list[StoredSession]:
        since_ms = 0 if since is None else int(since.timestamp() * 1000)
        return self._index.sessions(self._sources, since_ms, with_names=with_names)

    def read(self, stores: Iterable[Store], max_bytes: int | None = None) -> bool:
        """Read new contents from the given stores. Returns whether any store had new contents.

        Args:
            stores: The stores to read.
            max_bytes: Limit for the total size of the stores with new contents.
        """
        unread = self._index.unread(stores, max_bytes)
        self.has_new_costs |= self._index.read(self._sources.readers, unread).has_new_costs
        return bool(unread)

    def read_newest(self, since: datetime) -> None:
        """Read stores, newest first, until one of the workspace's sessions is found."""
        current = self._current_stores()
        recent = (one for one in current if one.live and one.mtime_ns >= _nanoseconds(since))
        for store in _newest_first(recent)[:MAX_OLD_STORES]:
            self.read([store])
            if self.sessions(since):
                break
        self.unread = self._index.find_unread(current)

    def read_recent(self, since: datetime) -> None:
        """Read all stores that were modified after `since`.

        If an agent has no session in these stores, also read its older stores, newest first, until
        a session is found.
        """
        recent, older = list[Store](), dict[str, list[Store]]()
        current = self._current_stores()
        for store in current:
            if store.mtime_ns >= _nanoseconds(since):
                recent.append(store)
            elif store.live:
                older.setdefault(store.agent, []).append(store)
        self.read(recent)
        known = {one.source for one in self.sessions(since)}
        for agent, stores in older.items():
            for store in _newest_first(stores)[:MAX_OLD_STORES]:
                if agent in known:
                    break
                if self.read([store]):
                    known |= {one.source for one in self.sessions(since)}
        self.unread = self._index.find_unread(current)

    def read_changed(self, changed: Collection[str]) -> None:
        """Read the stores of changed files, and drop deleted files from the index."""
        self._index.forget(changed)
        self.read(self._sources.stores_at(changed))

    def read_all(self, max_bytes: int | None) -> None:
        """Read every store that may contain sessions of the workspace, and drop deleted stores."""
        self.read(self._current_stores(), max_bytes)

    def _current_stores(self) -> list[Store]:
        """Return all stores that may contain sessions of the workspace. Drop deleted stores."""
        stores = self._sources.stores()
        self._index.forget_missing(self._sources.readers, stores, self._sources.roots)
        return stores


def _newest_first(stores: Iterable[Store]) -> list[Store]:
    return sorted(stores, key=lambda one: -one.mtime_ns)


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1e9)


class FoundSessions(NamedTuple):
    """The result of reading a workspace's sessions."""

    sessions: list[StoredSession]
    has_new_costs: bool = False
    """Whether any calls were recorded or changed."""
    unread: Unread | None = None
    """What the ledger still lacks, if known."""
    problem: str = ""
    """Why the ledger failed and what to do, or an empty string. There are then no sessions."""


class AgentSessions:
    """Finds each workspace's agent sessions and passes them to the session registry."""

    def __init__(
        self, services: SharedServices, sessions_of: Callable[[Workspace], SessionRegistry]
    ) -> None:
        self._services, self._run = services, services.workers.run
        self._sessions_of = sessions_of
        self._seen: WeakKeyDictionary[Workspace, LastSearch] = WeakKeyDictionary()
        self._searched_with: WeakKeyDictionary[Workspace, Agents] = WeakKeyDictionary()
        """Maps each workspace to the agent settings used in its last search for all sessions."""
        self._memory: MemoryLedger | None = None
        """In-memory replacement for the ledger while the ledger file cannot be used."""

    async def find_sessions(self, workspace: Workspace) -> bool:
        """Find the workspace's recent sessions.

        Returns:
            Whether any calls were recorded or changed.
        """
        settings, known = workspace.settings.agents, self._seen.get(workspace)
        if workspace.path is None or not (settings.enabled or known):
            return False
        sources = await self.sources(workspace)
        if sources is None:
            self._seen.pop(workspace, None)
            self._sessions_of(workspace).set_agent_sessions(())
            return False
        since = datetime.now(UTC) - RECENT
        recorded = False
        if known is None:
            read = partial(SessionReader.read_newest, since=since)
            recorded = await self._update_sessions(workspace, sources, read)
        read = partial(SessionReader.read_recent, since=since)
        return await self._update_sessions(workspace, sources, read) or recorded

    async def read_changed(self, workspace: Workspace, changed: Collection[str]) -> bool:
        """Read the workspace's changed session files.

        Returns:
            Whether any calls were recorded or changed.
        """
        known = self._seen.get(workspace)
        if known is None:
            return await self.find_sessions(workspace)
        read = partial(SessionReader.read_changed, changed=tuple(changed))
        return await self._update_sessions(workspace, known.sources, read)

    async def find_all_sessions(self, workspace: Workspace, max_bytes: int | None = None) -> bool:
        """Find all sessions of the workspace, including old ones.

        Args:
            workspace: The workspace.
            max_bytes: Limit for the total size of the stores to read, or None for no limit.

        Returns:
            Whether any calls were recorded or changed.
        """
        settings, sources = workspace.settings.agents, await self.sources(workspace)
        found = FoundSessions([])
        if sources is not None:
            read = partial(SessionReader.read_all, max_bytes=max_bytes)
            found = await self._read_sessions(workspace, sources, read, since=None)
        if max_bytes is None:
            self._searched_with[workspace] = settings
        self._sessions_of(workspace).set_older_agent_sessions(found.sessions)
        return found.has_new_costs

    async def ensure_older_sessions(self, workspace: Workspace) -> None:
        """Find all sessions of the workspace, unless that was already done with these settings."""
        if self._searched_with.get(workspace) != workspace.settings.agents:
            await self.find_all_sessions(workspace)

    def known_sources(self, workspace: Workspace) -> Sources | None:
        """Return the sources that were last searched, or None before the first search."""
        known = self._seen.get(workspace)
        return known.sources if known else None

    async def sources(self, workspace: Workspace) -> Sources | None:
        """Return the sources to read for a workspace, or None if agents are disabled."""
        if workspace.path is None or not workspace.settings.agents.enabled:
            return None
        settings, path = workspace.settings.agents, str(workspace.path)
        return await self._run(partial(Sources.of, settings, path))

    async def _read_sessions(
        self,
        workspace: Workspace,
        sources: Sources,
        read: Callable[[SessionReader], None],
        *,
        since: datetime | None,
    ) -> FoundSessions:
        """Read a workspace's sessions. If the ledger fails, keep them in memory instead."""
        folder, spending = self._services.state.folder, self._services.spending(workspace)
        work = partial(_read_and_list, sources, folder, lambda: spending.book, read, since)
        found = await self._run(work)
        workspace.costs.set_problem(found.problem)
        if not found.problem:
            return found
        if self._memory is None:
            # This import is fast, because a worker thread has already loaded the module.
            from sidecar.cost.ledger import MemoryLedger

            self._memory = MemoryLedger()
        memory, note = self._memory, found.problem
        work = partial(_read_and_list, sources, folder, lambda: memory, read, since, note)
        return FoundSessions((await self._run(work)).sessions)

    async def _update_sessions(
        self,
        workspace: Workspace,
        sources: Sources,
        read: Callable[[SessionReader], None],
    ) -> bool:
        since = datetime.now(UTC) - RECENT
        found = await self._read_sessions(workspace, sources, read, since=since)
        if found.unread is not None:
            workspace.costs.set_unread(found.unread)
        before = self._seen.get(workspace)
        earlier = before.sessions if before else frozenset[str]()
        recent = frozenset([session.id for session in found.sessions])
        self._seen[workspace] = LastSearch(sources, recent)
        if not earlier <= recent:  # a recent session is now old or deleted
            self._searched_with.pop(workspace, None)
        if not recent and not earlier:
            return found.has_new_costs
        known = self._sessions_of(workspace)
        known.set_agent_sessions(found.sessions)
        model = known.context.model
        if model is not None and self._services.windows.ready:
            await self._services.counts.load_window_and_price(model, workspace.settings)
            known.publish()
        return found.has_new_costs


def _read_and_list(
    sources: Sources,
    folder: Path,
    open_book: Callable[[], CostBook | MemoryLedger],
    read: Callable[[SessionReader], None],
    since: datetime | None,
    note: str = "",
) -> FoundSessions:
    """Read sessions, and return them with the windows that were saved, or with a note."""
    if not sources.readers:
        return FoundSessions([])  # avoids loading the ledger
    from sidecar.cost.ledger import LedgerError

    try:
        reading = SessionReader(sources, open_book())
        read(reading)
        # Nearly all old sessions are never shown, so their names are read later.
        listed = reading.sessions(since, with_names=since is not None)
    except LedgerError as error:
        _log.info("agents' sessions cannot be saved: %s", error)
        return FoundSessions([], problem=unusable_ledger(error))
    saved = load(folder)
    found = [with_saved_window(one, saved) for one in listed]
    if note:
        found = [msgspec.structs.replace(one, note=one.note or note) for one in found]
    return FoundSessions(found, reading.has_new_costs, reading.unread)


NOT_KEPT = (
    "sessions are kept in memory and costs are not recorded; "
    "`token-sidecar doctor` checks the state folder"
)


def unusable_ledger(error: SidecarError) -> str:
    """Return why the ledger cannot be used, what this means, and what to do."""
    return f"{error}; {NOT_KEPT}"
