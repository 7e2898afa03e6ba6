"""Follows coding agents' sessions in the open roots: reads them at first, then watches their
files."""

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


class _WatchedRoots(NamedTuple):
    settings: Agents
    paths: tuple[str, ...]


class AgentSessionWatcher:
    """Updates each workspace's agent sessions when the agents' files change."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._changed: WeakKeyDictionary[Workspace, frozenset[str]] = WeakKeyDictionary()
        """Files to read again. An empty set means all files."""
        self._watches: list[tuple[_WatchedRoots, Subscription]] = []
        self._idle = asyncio.Event()
        """Set while nothing has to be read."""

    def on_settings_changed(self) -> None:
        """Read all sessions again and watch their files, with the current settings and roots."""
        self.read_all()
        self._watch()

    def read_all(self) -> None:
        """Start reading the sessions of all workspaces."""
        for workspace in self._workspaces():
            self._read_soon(workspace, None)

    async def wait_until_read(self, timeout_seconds: float) -> None:
        """Wait until all pending files are read, or until the timeout."""
        if self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_seconds)

    def _workspaces(self) -> list[Workspace]:
        return [workspace for workspace in self._services.roots if workspace.path is not None]

    def _read_soon(self, workspace: Workspace, paths: frozenset[str] | None) -> None:
        self._idle.clear()
        pending = self._changed.get(workspace)
        if paths is None or pending == frozenset():
            self._changed[workspace] = frozenset()
        else:
            self._changed[workspace] = paths | (pending or frozenset())
        self._server.scheduler.schedule(("agents", workspace), 0.0, partial(self._read, workspace))

    async def _read(self, workspace: Workspace) -> None:
        try:
            await self._read_changed(workspace)
        finally:
            if not self._changed:
                self._idle.set()

    async def _read_changed(self, workspace: Workspace) -> None:
        await self._services.workers.run(partial(import_module, "sidecar.workspace.agents"))
        changed = self._changed.pop(workspace, None)
        if changed is None:
            return
        agents, history = self._services.agents, self._server.history
        recorded_agents = history.recorded_agents(workspace)
        if changed:
            has_new_costs = await agents.read_changed(workspace, changed, recorded_agents)
        else:
            has_new_costs = await agents.find_sessions(workspace, recorded_agents)
        if has_new_costs:
            history.sum_soon(workspace)

    def _watch(self) -> None:
        wanted: list[_WatchedRoots] = []
        workspaces = self._workspaces()
        for settings in [workspace.settings.agents for workspace in workspaces]:
            if settings.enabled and all(settings != roots.settings for roots in wanted):
                roots = [root for root in workspaces if root.settings.agents == settings]
                wanted.append(_WatchedRoots(settings, tuple(str(root.path) for root in roots)))
        for watched, subscription in self._watches:
            if watched not in wanted:
                subscription.cancel()
        self._watches = [watch for watch in self._watches if watch[0] in wanted]
        kept = [watched for watched, _ in self._watches]
        self._watches += [(new, self._subscribe(new)) for new in wanted if new not in kept]

    def _subscribe(self, roots: _WatchedRoots) -> Subscription:
        return self._server.watch(
            partial(_paths_to_watch, roots), partial(self._on_files_changed, roots.settings)
        )

    def _on_files_changed(self, settings: Agents, paths: Changes) -> None:
        for workspace in self._workspaces():
            if workspace.settings.agents == settings:
                self._read_soon(workspace, paths)


def _paths_to_watch(roots: _WatchedRoots) -> tuple[str, ...]:
    from sidecar.agents.registry import paths_to_watch

    return paths_to_watch(roots.settings, roots.paths)
