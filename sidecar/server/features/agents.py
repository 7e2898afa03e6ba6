"""The coding agents' sessions of the open roots: found when the settings are known, then watched.

The file watcher reports which of the agents' files have changed; only those are read again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from sidecar.config.settings import Agents
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.file_watcher import Changes, Subscription
    from sidecar.workspace.workspace import Workspace


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
        self._watches: list[tuple[_Followed, Subscription]] = []
        self._looked = asyncio.Event()
        """Set while nothing is due."""

    def settings_changed(self) -> None:
        """Look for sessions again, by the settings and roots in force."""
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
        agents, history = self._services.agents, self._server.history
        billed = history.billed(workspace)
        if changed:
            has_new_costs = await agents.look_again(workspace, changed, billed)
        else:
            has_new_costs = await agents.look(workspace, billed)
        if has_new_costs:
            history.sum_soon(workspace)

    def _watch(self) -> None:
        """Watch the agents' files for each of the settings in force, with their roots."""
        wanted: list[_Followed] = []
        for workspace in self._workspaces():
            settings = workspace.settings.agents
            if settings.enabled and all(settings != one.settings for one in wanted):
                wanted.append(_Followed(settings, self._paths(settings)))
        for one, watch in self._watches:
            if one not in wanted:
                watch.cancel()
        self._watches = [(one, watch) for one, watch in self._watches if one in wanted]
        known = [one for one, _ in self._watches]
        self._watches += [(one, self._follow(one)) for one in wanted if one not in known]

    def _follow(self, followed: _Followed) -> Subscription:
        return self._server.watch(
            partial(_paths_to_watch, followed), partial(self._tell, followed.settings)
        )

    def _paths(self, settings: Agents) -> tuple[str, ...]:
        workspaces = self._workspaces()
        return tuple(str(one.path) for one in workspaces if one.settings.agents == settings)

    def _tell(self, settings: Agents, paths: Changes) -> None:
        for workspace in self._workspaces():
            if workspace.settings.agents == settings:
                self._due(workspace, paths)


def _load() -> None:
    """Import what the first look needs. Blocking."""
    import_module("sidecar.workspace.agents")


def _paths_to_watch(followed: _Followed) -> tuple[str, ...]:
    from sidecar.agents.watch import paths_to_watch

    return paths_to_watch(followed.settings, followed.paths)
