"""The coding agents' sessions of the open roots: found when the settings are known, then watched.

A thread waits for changes of the agents' files and says which ones; only those are read again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.config.settings import Agents
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.events import Event
    from sidecar.workspace.workspace import Workspace

START_SECONDS = 0.5
"""Watching starts a little later: its import would stand in the way of the first numbers."""
SETTLED_SECONDS = 2.0
"""By then it has started: what changed before that is looked for."""


class _Followed(NamedTuple):
    """The settings of some workspaces, and those workspaces' root folders."""

    settings: Agents
    paths: tuple[str, ...]


class Live:
    """Keeps each workspace's sessions as the agents' files have them."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._changed: WeakKeyDictionary[Workspace, frozenset[str]] = WeakKeyDictionary()
        """What is to be read again; an empty set stands for looking for everything."""
        self._watches: list[tuple[_Followed, threading.Event]] = []
        self._looked = asyncio.Event()
        """Set while nothing is due."""
        server.services.listeners.append(self.on_event)

    def on_event(self, event: Event) -> None:
        """Look for sessions again where settings or roots are others."""
        if event.what == "settings":
            self.look()
            self._watch()

    def look(self) -> None:
        """Look for the sessions of each workspace."""
        for workspace in self._workspaces():
            self._due(workspace, None)

    async def looked(self, seconds: float) -> None:
        """Wait until what is due was looked for, but no longer than so many seconds."""
        if self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), seconds)

    def close(self) -> None:
        """Let the threads end."""
        for _, stop in self._watches:
            stop.set()
        self._watches.clear()

    def _workspaces(self) -> list[Workspace]:
        return [one for one in self._services.roots if one.path is not None]

    def _due(self, workspace: Workspace, paths: frozenset[str] | None) -> None:
        self._looked.clear()
        waiting = self._changed.get(workspace)
        if paths is None or waiting == frozenset():
            self._changed[workspace] = frozenset()
        else:
            self._changed[workspace] = paths | (waiting or frozenset())
        self._server.scheduler.soon(("agents", workspace), 0.0, partial(self._look, workspace))

    async def _look(self, workspace: Workspace) -> None:
        try:
            await self._look_now(workspace)
        finally:
            if not self._changed:
                self._looked.set()

    async def _look_now(self, workspace: Workspace) -> None:
        await self._services.workers.run(_load)
        changed = self._changed.pop(workspace, None)
        if changed is None:
            return
        # Costs first: who has seen the new size may ask for them.
        await self._server.history.appended(workspace, changed)
        if changed:
            await self._services.agents.look_again(workspace, changed)
        else:
            await self._services.agents.look(workspace)

    def _watch(self) -> None:
        """One thread for each of the settings in force, with their roots; those of others end."""
        wanted: list[_Followed] = []
        for workspace in self._workspaces():
            settings = workspace.settings.agents
            if settings.enabled and all(settings != one.settings for one in wanted):
                wanted.append(_Followed(settings, self._paths(settings)))
        for one, stop in self._watches:
            if one not in wanted:
                stop.set()
        self._watches = [one for one in self._watches if not one[1].is_set()]
        known = [one for one, _ in self._watches]
        for one in wanted:
            if one not in known:
                self._start(one)

    def _paths(self, settings: Agents) -> tuple[str, ...]:
        workspaces = self._workspaces()
        return tuple(str(one.path) for one in workspaces if one.settings.agents == settings)

    def _start(self, followed: _Followed) -> None:
        stop, loop = threading.Event(), asyncio.get_running_loop()
        self._watches.append((followed, stop))

        def changed(paths: frozenset[str] | None) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(self._tell, followed.settings, paths)

        work = partial(_follow, followed, stop, changed)
        threading.Thread(target=work, name="agents", daemon=True).start()
        loop.call_later(SETTLED_SECONDS, self._tell, followed.settings, None)

    def _tell(self, settings: Agents, paths: frozenset[str] | None) -> None:
        for workspace in self._workspaces():
            if workspace.settings.agents == settings:
                self._due(workspace, paths)


def _load() -> None:
    """Import what the first look needs. Blocking."""
    import_module("sidecar.workspace.agents")


def _follow(
    followed: _Followed, stop: threading.Event, changed: Callable[[frozenset[str] | None], None]
) -> None:
    """Hand on what changes, until `stop` is set. For a thread of its own."""
    if stop.wait(START_SECONDS):
        return
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.watch import changes

    try:
        settings, roots = followed.settings, Roots.of(followed.paths)
        for paths in changes(settings, Places.of(settings), stop, roots=roots):
            changed(paths)
    except RuntimeError as exc:  # the loop has ended, or the system watches no more
        if not stop.is_set():
            log_defect(exc, "agents")
