"""The coding agents' own sessions of each workspace: looked for by a worker, fed on the event loop.

Files are read on worker threads only, by frozen values; nothing is opened while `agents` are
disabled.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from sidecar.agents.events import Store, StoreReader
from sidecar.agents.places import Places
from sidecar.agents.registry import readers_here, stores_of
from sidecar.agents.roots import Roots
from sidecar.workspace.sessions import RECENT, CountedSession
from sidecar.workspace.statuslines import Kept, kept, with_window

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.values import StoredSession
    from sidecar.config.settings import Agents
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import MemoryLedger
    from sidecar.counting.count import Method
    from sidecar.workspace.sessions import Sessions
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.spending import Spending
    from sidecar.workspace.workspace import Workspace


_log = logging.getLogger(__name__)

MOST_OLD = 100
"""Older stores of an agent that are read in search of a session of the workspace."""


class Sources(msgspec.Struct, frozen=True):
    """Whose files are read, where they lie, and for which roots."""

    readers: tuple[StoreReader, ...]
    places: Places
    roots: Roots

    @classmethod
    def of(cls, settings: Agents, *folders: str) -> Sources | None:
        """None while agents are disabled: nothing is opened then. Blocking."""
        if not settings.enabled:
            return None
        places, roots = Places.of(settings), Roots.of(folders)
        return cls(readers_here(settings, places, roots), places, roots)

    def stores(self, *, mine: bool = True) -> list[Store]:
        """All stores, or those that may be of the roots, by listings alone. Blocking."""
        roots = self.roots if mine else None
        return [one for reader in self.readers for one in stores_of(reader, self.places, roots)]

    def stores_at(self, changed: Collection[str]) -> list[Store]:
        """The stores that these files are of. Blocking."""
        found = (reader.store_at(self.places, path) for path in changed for reader in self.readers)
        return list({store.path: store for store in found if store is not None}.values())


class FoundSessions(NamedTuple):
    """Where a workspace's sessions are read, and whether there were any."""

    sources: Sources
    any_session: bool = False


class _Reading:
    """One worker's look at a workspace's sessions, in the index. Blocking."""

    def __init__(
        self, sources: Sources, book: CostBook | MemoryLedger, billed: Collection[str] = ()
    ) -> None:
        """`billed`: the agents of whose stores every call is recorded."""
        from sidecar.cost.ledger import Ledger
        from sidecar.workspace.session_index import SessionIndex

        ledger = book if isinstance(book, Ledger) else book.ledger
        self._sources, self._index = sources, SessionIndex(ledger)
        self._record, self._billed = book.record_many, billed
        self.has_new_costs = False
        """Whether calls were recorded or amended."""

    def sessions(self, since: datetime | None) -> list[StoredSession]:
        sources = self._sources
        since_ms = 0 if since is None else int(since.timestamp() * 1000)
        return self._index.sessions(sources.readers, sources.places, sources.roots, since_ms)

    def read(self, stores: Iterable[Store], max_bytes: int | None = None) -> None:
        """Read what is new in these stores; of agents that are not billed main conversations only.

        Calls of a store whose history was read are recorded all the same.

        Args:
            stores: The stores.
            max_bytes: Total size of the stores that are read without being billed, newest first.
        """
        stores = list(stores)
        self._read([one for one in stores if one.agent in self._billed], preview=False)
        others = [one for one in stores if one.live and one.agent not in self._billed]
        self._read(others, preview=True, max_bytes=max_bytes)

    def _read(
        self, stores: Sequence[Store], *, preview: bool, max_bytes: int | None = None
    ) -> None:
        if not stores:
            return
        readers = self._sources.readers
        unread = self._index.unread(readers, stores, preview=preview)
        if max_bytes is not None:
            sizes = itertools.accumulate(store.size for store in unread)
            unread = [store for store, size in zip(unread, sizes, strict=True) if size <= max_bytes]
        done = self._index.read(readers, unread, preview=preview, record=self._record)
        self.has_new_costs |= done.has_new_costs

    def read_first(self, since: datetime) -> None:
        """Read the newest stores until one is of the workspace: that session is shown first."""
        recent, _ = self._by_age(self._after_billed(), since)
        for store in sorted(recent, key=lambda one: -one.mtime_ns)[:MOST_OLD]:
            self.read([store])
            if self.sessions(since):
                return

    def read_recent(self, since: datetime) -> None:
        """Read the stores of the last day; of an agent with none of the workspace its newest."""
        recent, older = self._by_age(self._after_billed(), since)
        self.read(recent)
        known = {one.source for one in self.sessions(since)}
        for agent, stores in older.items():
            for store in sorted(stores, key=lambda one: -one.mtime_ns)[:MOST_OLD]:
                if agent in known:
                    break
                self.read([store])
                known |= {one.source for one in self.sessions(since)}

    def read_changed(self, changed: Collection[str]) -> None:
        """Read the stores that these files are of; forget those that are gone."""
        self._index.forget(changed)
        self.read(self._sources.stores_at(changed))

    def read_all(self, max_bytes: int | None) -> None:
        """Read the stores that may be of the workspace; see `read`."""
        self.read(self._sources.stores(), max_bytes)

    def _after_billed(self) -> list[Store]:
        """All stores, those of billed agents read: who sees a session may ask for its costs."""
        stores = self._sources.stores()
        self._read([one for one in stores if one.agent in self._billed], preview=False)
        return stores

    def _by_age(
        self, stores: Sequence[Store], since: datetime
    ) -> tuple[list[Store], dict[str, list[Store]]]:
        since_ns, recent = int(since.timestamp() * 1e9), list[Store]()
        older: dict[str, list[Store]] = {}
        for store in stores:
            if store.live and store.mtime_ns >= since_ns:
                recent.append(store)
            elif store.live:
                older.setdefault(store.agent, []).append(store)
        return recent, older


class AgentSessions:
    """What was last seen of each workspace's sessions. For the event loop."""

    def __init__(self, shared: Shared, sessions_of: Callable[[Workspace], Sessions]) -> None:
        self._shared, self._state, self._run = shared, shared.state, shared.workers.run
        self._sessions_of = sessions_of
        self._seen: WeakKeyDictionary[Workspace, FoundSessions] = WeakKeyDictionary()
        self._has_older: WeakSet[Workspace] = WeakSet()
        self._memory: MemoryLedger | None = None
        """The ledger that stands in where the user's cannot be used."""

    async def look(self, workspace: Workspace, billed: Collection[str] = ()) -> bool:
        """Find the workspace's sessions, and feed them to its conversations.

        `billed`: the agents of whose stores every call is recorded. Whether the ledger has other
        costs now.
        """
        settings, known = workspace.settings.agents, self._seen.get(workspace)
        if workspace.path is None or not (settings.enabled or known):
            return False
        sources = await self.sources(workspace)
        if sources is None:
            self._seen.pop(workspace, None)
            self._sessions_of(workspace).feed(())
            return False
        since = datetime.now(UTC) - RECENT
        recorded = False
        if known is None:
            read = partial(_Reading.read_first, since=since)
            recorded = await self._take(workspace, sources, read, billed)
        read = partial(_Reading.read_recent, since=since)
        return await self._take(workspace, sources, read, billed) or recorded

    async def look_again(
        self, workspace: Workspace, changed: Collection[str], billed: Collection[str] = ()
    ) -> bool:
        """Read the changed files, if they are of this workspace's sessions. As `look`."""
        known = self._seen.get(workspace)
        if known is None:
            return await self.look(workspace, billed)
        read = partial(_Reading.read_changed, changed=tuple(changed))
        return await self._take(workspace, known.sources, read, billed)

    async def look_for_all(self, workspace: Workspace, max_bytes: int | None = None) -> bool:
        """Find all sessions of the workspace, however old, for its conversations.

        Args:
            workspace: The workspace.
            max_bytes: Total size of the stores to read, newest first; None reads all of them.

        Returns:
            Whether calls were recorded or amended.
        """
        sources = await self.sources(workspace)
        if sources is None:
            if workspace in self._has_older:
                self._has_older.discard(workspace)
                self._sessions_of(workspace).feed_older(())
            return False
        read = partial(_Reading.read_all, max_bytes=max_bytes)
        sessions, recorded = await self._counted(workspace, sources, read, since=None)
        if sessions or workspace in self._has_older:
            self._has_older.add(workspace)
            self._sessions_of(workspace).feed_older(sessions)
        return recorded

    def seen_by(self, workspace: Workspace) -> Sources | None:
        """By what a workspace's sessions were found; None before they were looked for."""
        known = self._seen.get(workspace)
        return known.sources if known else None

    async def sources(self, workspace: Workspace) -> Sources | None:
        """What is read for a workspace; None where nothing is to be."""
        if workspace.path is None or not workspace.settings.agents.enabled:
            return None
        settings, path = workspace.settings.agents, str(workspace.path)
        return await self._run(partial(Sources.of, settings, path))

    async def _counted(
        self,
        workspace: Workspace,
        sources: Sources,
        read: Callable[[_Reading], None],
        *,
        since: datetime | None,
        billed: Collection[str] = (),
    ) -> tuple[list[CountedSession], bool]:
        """The workspace's sessions after a reading, from memory where the ledger fails; and whether
        the ledger has other costs now."""
        folder, spending = self._state.folder, self._shared.spending(workspace)
        work = partial(_read_and_count, sources, folder, spending, read, since, frozenset(billed))
        found = await self._run(work)
        if found is not None:
            return found
        memory = self._memory_ledger()
        in_memory = partial(_read_into_memory, sources, folder, memory, read, since)
        return await self._run(in_memory), False

    def _memory_ledger(self) -> MemoryLedger:
        if self._memory is None:
            from sidecar.cost.ledger import MemoryLedger  # a worker has loaded it by now

            self._memory = MemoryLedger()
        return self._memory

    async def _take(
        self,
        workspace: Workspace,
        sources: Sources,
        read: Callable[[_Reading], None],
        billed: Collection[str],
    ) -> bool:
        since = datetime.now(UTC) - RECENT
        sessions, recorded = await self._counted(
            workspace, sources, read, since=since, billed=billed
        )
        before = self._seen.get(workspace)
        had_any = before is not None and before.any_session
        self._seen[workspace] = FoundSessions(sources, bool(sessions))
        if not sessions and not had_any:
            return recorded  # the conversations' rooms are not even loaded
        known = self._sessions_of(workspace)
        known.feed(sessions)
        model = known.state.model
        if model is not None and self._shared.windows.ready:
            await self._shared.look_up(model, workspace.settings)
            known.publish()
        return recorded


def _read_and_count(
    sources: Sources,
    folder: Path,
    spending: Spending,
    read: Callable[[_Reading], None],
    since: datetime | None,
    billed: Collection[str],
) -> tuple[list[CountedSession], bool] | None:
    """The sessions, and whether the ledger has other costs now; None where it cannot be used."""
    if not sources.readers:
        return [], False  # nothing of the ledger is even loaded
    from sidecar.cost.ledger import LedgerError

    try:
        reading = _Reading(sources, spending.book, billed)
        read(reading)
        return counted(reading.sessions(since), kept(folder).sessions), reading.has_new_costs
    except LedgerError as error:
        _log.info("sessions are not kept: %s", error)
        return None


def _read_into_memory(
    sources: Sources,
    folder: Path,
    memory: MemoryLedger,
    read: Callable[[_Reading], None],
    since: datetime | None,
) -> list[CountedSession]:
    reading = _Reading(sources, memory)
    read(reading)
    return counted(reading.sessions(since), kept(folder).sessions, note=NOT_KEPT)


NOT_KEPT = "the ledger cannot be used: sessions are read anew by each process"


def counted(
    sessions: Iterable[StoredSession], windows: Mapping[str, Kept], note: str | None = None
) -> list[CountedSession]:
    """The sessions that were found, as they are now.

    `windows`: what Claude Code sent to its status line, by session. `note`: of all of them.
    """
    now = datetime.now(UTC)
    return [_counted(session, now, windows.get(session.id), note) for session in sessions]


def _counted(
    session: StoredSession, now: datetime, statusline: Kept | None, note: str | None
) -> CountedSession:
    size = session.occupancy if statusline is None else with_window(session.occupancy, statusline)
    method: Method = "exact" if size.quality == "exact" else "estimate"
    return CountedSession(
        id=session.id,
        source=session.source,
        updated_at=session.updated_at,
        title=session.title,
        model=session.model,
        tokens=size.tokens,
        quality=method,
        error_percent=size.error_percent,
        limit=size.limit,
        note=size.note or note,
        state=session.state(now),
        parent=session.parent,
        compacted=size.compacted,
    )
