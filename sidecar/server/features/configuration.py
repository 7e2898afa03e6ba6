"""Settings: read off the event loop, from files and from the editor, and watched on disk.

Neovim announces no file watching, so the server watches for itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.budget.rules import Rules
from sidecar.config.loaded import Loaded
from sidecar.config.paths import LIMIT_VARIABLE, watched_paths
from sidecar.config.settings import Settings
from sidecar.counting import catalogue
from sidecar.server.errors import log_defect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

SECTION = "tokenSidecar"
CLIENT_SECONDS = 3.0
"""How long the editor may take to say its settings; what it says later is taken then."""
POLL_MILLISECONDS = 2_000
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
        self._lock = asyncio.Lock()
        self._times: dict[Path, tuple[int, int] | None] = {}
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
        async with self._lock:
            paths = {path for root in services.roots for path in watched_paths(root.path)}
            # Times before contents: a file that changes in between is read once more.
            self._times = await services.counting.run(partial(_times, paths))
            await asyncio.gather(*(self._load(workspace) for workspace in services.roots))
            await services.counting.run(services.load_tokenizers)
        services.configured.set()
        self._server.status.all_changed()
        self._server.diagnostics.all_changed()
        self._spawn(self._load_catalogue())
        self._spawn(self._announce())
        self._watch(paths)

    async def _announce(self) -> None:
        """Before `initialized` a client may not be asked for anything."""
        await self._initialized.wait()
        if self._server.protocol.state == "running":
            self._server.providers.settings_changed()

    async def _load_catalogue(self) -> None:
        """Windows come after the first counts: importing their list takes most of a second."""
        if catalogue.loaded():
            return
        await asyncio.sleep(START_SECONDS)
        await self._services.counting.run(self._services.load_prices)
        await self._services.counting.run(self._server.load_features)
        self._server.status.all_changed()

    async def _load(self, workspace: Workspace) -> None:
        workspace.editor = await self._editor_section(workspace)
        work = partial(_read, workspace.path, workspace.editor)
        workspace.take(*await self._services.counting.run(work))
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

        # The time-out finds what changed before watching began, and on file systems that tell
        # nothing: the files' times are compared each time.
        watching = awatch(
            *folders,
            watch_filter=ours,
            recursive=False,
            debounce=100,
            rust_timeout=POLL_MILLISECONDS,
            yield_on_timeout=True,
        )
        async for _ in watching:
            if await self._services.counting.run(partial(_times, paths)) != self._times:
                self.reload()


def _times(paths: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    """What tells that a file is another: its time and size; None where there is none."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in paths:
        try:
            stat = path.stat()
            found[path] = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            found[path] = None
    return found


def _read(path: Path | None, editor: Any) -> tuple[Loaded, Rules]:
    if not editor and LIMIT_VARIABLE not in os.environ and not _any_file(path):
        # Nobody has written anything: the reader is not even loaded.
        return Loaded(Settings(), (), {}), Rules(Settings())
    from sidecar.config.load import load

    loaded = load(path, editor)
    return loaded, Rules(loaded.settings)


def _any_file(path: Path | None) -> bool:
    return "TOKEN_SIDECAR_CONFIG" in os.environ or any(
        file.exists() for file in watched_paths(path)
    )


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
