"""Settings: read off the event loop, from files and from the editor, and watched on disk.

Neovim announces no file watching, so the server watches for itself.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.config.load import load
from sidecar.config.paths import watched_paths
from sidecar.counting import catalogue
from sidecar.server.errors import log_defect

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

SECTION = "tokenSidecar"
CLIENT_SECONDS = 3.0
"""How long the editor may take to say its settings; what it says later is taken then."""
START_SECONDS = 0.5
"""Watching starts a little later: its import would stand in the way of the first count."""


class Configuration:
    """Keeps each workspace's settings as the files and the editor have them."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._watcher: asyncio.Task[None] | None = None
        self._watched: set[Path] = set()
        self._initialized = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def initialized(self) -> None:
        """The client may be asked from now on."""
        self._initialized.set()

    def reload(self) -> None:
        """Read all settings again, in the background."""
        self._spawn(self._reload())

    def close(self) -> None:
        """Stop watching."""
        for task in (*self._tasks, self._watcher):
            if task is not None:
                task.cancel()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log_defect(exc)

    async def _reload(self) -> None:
        services = self._services
        await asyncio.gather(*(self._load(workspace) for workspace in services.roots))
        services.configured.set()
        self._server.status.all_changed()
        self._spawn(self._load_catalogue())
        self._watch({path for root in services.roots for path in watched_paths(root.path)})

    async def _load_catalogue(self) -> None:
        """Windows come after the first counts: importing their list takes most of a second."""
        if catalogue.loaded():
            return
        await asyncio.sleep(START_SECONDS)
        await self._services.counting.run(catalogue.warm)
        self._server.status.all_changed()

    async def _load(self, workspace: Workspace) -> None:
        workspace.editor = await self._editor_section(workspace)
        work = partial(load, workspace.path, workspace.editor)
        workspace.loaded = await self._services.counting.run(work)
        for problem in workspace.loaded.problems:
            logger.warning("configuration: %s", problem)

    async def _editor_section(self, workspace: Workspace) -> Any:
        """What the editor has under `tokenSidecar` for a root; what it said before on no answer."""
        abilities = self._server.client_capabilities.workspace
        if abilities is None or not abilities.configuration:
            return workspace.editor
        item = types.ConfigurationItem(scope_uri=workspace.uri, section=SECTION)
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                await self._initialized.wait()
                answer = await self._server.workspace_configuration_async(
                    types.ConfigurationParams([item])
                )
        except Exception:  # a client may refuse, or take too long: go on without
            return workspace.editor
        section = answer[0] if answer else None
        return section if isinstance(section, dict) else {}

    def _watch(self, paths: set[Path]) -> None:
        if paths == self._watched:
            return
        self._watched = paths
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = asyncio.ensure_future(self._watch_files(paths))

    async def _watch_files(self, paths: set[Path]) -> None:
        """Watch the folders that hold the files, so that one that appears is seen too."""
        await asyncio.sleep(START_SECONDS)
        from watchfiles import awatch

        folders = await self._services.counting.run(
            lambda: [folder for folder in {path.parent for path in paths} if folder.is_dir()]
        )
        if not folders:
            return
        names = {str(path) for path in paths}

        def ours(_change: object, path: str) -> bool:
            return path in names

        async for _ in awatch(*folders, watch_filter=ours, recursive=False, debounce=100):
            self.reload()


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    configuration = server.configuration

    @server.feature(types.INITIALIZED)
    def initialized(_params: types.InitializedParams) -> None:
        configuration.initialized()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def changed(params: types.DidChangeConfigurationParams) -> None:
        section = params.settings.get(SECTION) if isinstance(params.settings, dict) else None
        if isinstance(section, dict):
            for workspace in server.services.roots:
                workspace.editor = section
        configuration.reload()
