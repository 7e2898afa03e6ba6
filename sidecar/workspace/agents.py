"""The coding agents' own sessions of each workspace: looked for by a worker, fed on the event loop.

Files are read on worker threads only, by frozen values; nothing is opened while `agents` are
disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from sidecar.agents.live import SeenStores, look, look_again
from sidecar.agents.places import Places
from sidecar.agents.reader import DELETING_AGENTS, Reader, readers_here
from sidecar.agents.roots import Roots
from sidecar.workspace.sessions import RECENT, CountedSession
from sidecar.workspace.statuslines import Kept, kept, with_window

if TYPE_CHECKING:
    from sidecar.agents.values import StoredSession
    from sidecar.config.settings import Agents
    from sidecar.counting.count import Method
    from sidecar.workspace.sessions import Sessions
    from sidecar.workspace.shared import Shared
    from sidecar.workspace.workspace import Workspace


class Sources(msgspec.Struct, frozen=True):
    """Whose files are read, where they lie, and for which roots."""

    readers: tuple[Reader, ...]
    places: Places
    roots: Roots

    @classmethod
    def of(cls, settings: Agents, *folders: str) -> Sources | None:
        """None while agents are disabled: nothing is opened then. Blocking."""
        if not settings.enabled:
            return None
        places, roots = Places.of(settings), Roots.of(folders)
        return cls(readers_here(settings, places, roots), places, roots)

    def that_may_vanish(self) -> Sources:
        """Those of agents that delete sessions themselves."""
        readers = (one for one in self.readers if one.agent in DELETING_AGENTS)
        return msgspec.structs.replace(self, readers=tuple(readers))

    def look(self, before: SeenStores | None = None, *, every: bool = False) -> SeenStores:
        """The sessions of the last day, or all of them; only what changed is read. Blocking."""
        since = 0 if every else int((datetime.now(UTC) - RECENT).timestamp() * 1e9)
        return look(self.readers, self.places, self.roots, before, since_ns=since)

    def look_again(self, before: SeenStores, changed: Collection[str]) -> SeenStores:
        """The same after these files changed: no others are looked at. Blocking."""
        return look_again(self.readers, self.places, self.roots, before, changed)


class AgentSessions:
    """What was last seen of each workspace's sessions. For the event loop."""

    def __init__(self, shared: Shared, sessions_of: Callable[[Workspace], Sessions]) -> None:
        self._shared, self._state, self._run = shared, shared.state, shared.workers.run
        self._sessions_of = sessions_of
        self._seen: WeakKeyDictionary[Workspace, tuple[Sources, SeenStores]] = WeakKeyDictionary()
        self._older: WeakKeyDictionary[Workspace, tuple[Sources, SeenStores]] = WeakKeyDictionary()
        """All sessions, as they were when they were asked for: only what changed is read again."""

    async def look(self, workspace: Workspace) -> None:
        """Find the workspace's sessions, and feed them to its conversations."""
        settings, known = workspace.settings.agents, self._seen.get(workspace)
        if workspace.path is None or not (settings.enabled or known):
            return
        sources = await self.sources(workspace)
        if sources is None:
            self._seen.pop(workspace, None)
            self._sessions_of(workspace).feed(())
            return
        same = known is not None and known[0].readers == sources.readers
        before = known[1] if known is not None and same else None
        await self._take(workspace, sources, partial(sources.look, before))

    async def look_again(self, workspace: Workspace, changed: Collection[str]) -> None:
        """Read the changed files, if they are of this workspace's sessions."""
        known = self._seen.get(workspace)
        if known is None:
            await self.look(workspace)
            return
        sources, seen = known
        await self._take(workspace, sources, partial(sources.look_again, seen, changed))

    async def look_for_all(self, workspace: Workspace) -> None:
        """Find all sessions of the workspace, however old, for its conversations."""
        sources = await self.sources(workspace)
        if sources is None:
            if self._older.pop(workspace, None) is not None:
                self._sessions_of(workspace).feed_older(())
            return
        known = self._older.get(workspace) or self._seen.get(workspace)
        before = known[1] if known and known[0].readers == sources.readers else None
        seen, sessions = await self._counted(partial(sources.look, before, every=True))
        self._older[workspace] = sources, seen
        if sessions or known is not None:
            self._sessions_of(workspace).feed_older(sessions)

    def seen_by(self, workspace: Workspace) -> Sources | None:
        """By what a workspace's sessions were found; None before they were looked for."""
        known = self._seen.get(workspace)
        return known[0] if known else None

    async def sources(self, workspace: Workspace) -> Sources | None:
        """What is read for a workspace; None where nothing is to be."""
        if workspace.path is None or not workspace.settings.agents.enabled:
            return None
        settings, path = workspace.settings.agents, str(workspace.path)
        return await self._run(partial(Sources.of, settings, path))

    async def _counted(
        self, look: Callable[[], SeenStores]
    ) -> tuple[SeenStores, list[CountedSession]]:
        folder = self._state.folder

        def work() -> tuple[SeenStores, list[CountedSession]]:
            seen = look()
            sessions = counted(seen, kept(folder).sessions)
            return seen, sessions

        return await self._run(work)

    async def _take(
        self, workspace: Workspace, sources: Sources, look: Callable[[], SeenStores]
    ) -> None:
        seen, sessions = await self._counted(look)
        before = self._seen.get(workspace)
        self._seen[workspace] = sources, seen
        if not sessions and (before is None or not before[1].sessions):
            return  # the conversations' rooms are not even loaded
        known = self._sessions_of(workspace)
        known.feed(sessions)
        model = known.state.model
        if model is not None and self._shared.windows.ready:
            await self._shared.look_up(model, workspace.settings)
            known.publish()


def counted(seen: SeenStores, windows: Mapping[str, Kept]) -> list[CountedSession]:
    """The sessions that were seen, as they are now.

    `windows`: what Claude Code sent to its status line, by session.
    """
    now = datetime.now(UTC)
    return [_counted(session, now, windows.get(session.id)) for session in seen.sessions]


def _counted(session: StoredSession, now: datetime, statusline: Kept | None) -> CountedSession:
    size = session.occupancy if statusline is None else with_window(session.occupancy, statusline)
    method: Method = "exact" if size.quality in ("exact", "context only") else "estimate"
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
        note=size.note,
        state=session.state(now),
        parent=session.parent,
        compacted=size.compacted,
    )
