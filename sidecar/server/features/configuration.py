"""Settings: read off the event loop, from files and from the editor, and watched on disk.

Neovim announces no file watching, so the server watches for itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.budget.rules import Rules
from sidecar.config.options import Loaded
from sidecar.config.paths import LIMIT_VARIABLE, watched_paths
from sidecar.config.settings import Settings
from sidecar.defects import log_defect
from sidecar.models import catalogue
from sidecar.waiting import SharedTasks
from sidecar.workspace.files import Stamp, stamp_of
from sidecar.workspace.memory import give_back
from sidecar.workspace.workspace import Event, SettingsChange

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.server.server import SidecarServer
    from sidecar.workspace.file_watcher import Subscription
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

SECTION = "tokenSidecar"
CLIENT_SECONDS = 3.0
"""How long the editor may take to say its settings; what it says later is taken then."""
READ_SECONDS = 5.0
"""How long a disk may take to hand over the settings."""
LOOK_SECONDS = 0.25
"""How long agents' sessions may keep the first count waiting."""
START_SECONDS = 0.5
"""Windows and prices are loaded a little later: their import would delay the first count."""


class Configuration:
    """Keeps each workspace's settings as the files and the editor have them."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._watched: set[Path] = set()
        self._watch: Subscription | None = None
        self._initialized = asyncio.Event()
        self._reloads = 0
        self._running: object = None
        """Identifies the reload that is running; None between reloads."""
        self._reading: SharedTasks[object, None]
        self._reading = SharedTasks("configuration", outlives_waiters=True)
        self._times: dict[Path, Stamp | None] = {}

    def initialized(self) -> None:
        """The client may be asked from now on."""
        self._initialized.set()

    def reload(self) -> None:
        """Read all settings again, in the background."""
        self._reloads += 1
        self._server.scheduler.now(("settings",), self._reload)

    async def _reload(self) -> None:
        services, roots = self._services, set(self._services.roots)
        self._running = object()
        paths = {path for root in roots for path in watched_paths(root.path)}
        try:
            await self._read_all(roots, paths)
        except Exception as exc:  # a defect must not keep anyone from counting
            log_defect(exc, "configuration")
        self._running = None
        if roots >= set(services.roots):  # else roots were added meanwhile, and are read next
            services.configured.set()
        services.publish(Event("settings"))
        self._server.scheduler.now(("catalogue",), self._load_catalogue)
        self._server.scheduler.now(("announcing",), self._announce)
        self._watch_files(paths)
        self._server.history.watch_ledger()
        self._server.calibration_sync.watch()

    async def _read_all(self, roots: set[Workspace], paths: set[Path]) -> None:
        # Times before contents: a file that changes in between is read once more.
        await self._read(partial(self._read_times, paths))
        await asyncio.gather(*(self._load(workspace) for workspace in roots))
        # Before tokenizers, whose loading halts everybody: sessions have their numbers already.
        self._server.live.look()
        await self._server.live.looked(LOOK_SECONDS)
        await self._read(self._read_calibrations)
        await self._read(partial(self._services.workers.load, self._services.tokenizers()))

    async def _read(self, work: Callable[[], Awaitable[None]]) -> None:
        """Await work that reads a disk, for a limited time; then it continues without us."""
        try:
            await self._reading.run(object(), work, READ_SECONDS)
        except TimeoutError:
            logger.error("configuration: not read within %g s", READ_SECONDS)
        except Exception as exc:  # a defect must not keep anyone from counting
            log_defect(exc, "configuration")

    async def _read_times(self, paths: set[Path]) -> None:
        self._times = await self._services.workers.run(partial(_times, paths))

    async def _read_calibrations(self) -> None:
        calibrations = self._services.calibrations
        calibrations.finish_sync(await self._services.workers.run(calibrations.begin_load()))

    async def _announce(self) -> None:
        """Before `initialized` a client may not be asked for anything."""
        await self._initialized.wait()
        if self._server.protocol.state == "running":
            self._server.providers.settings_changed()

    async def _load_catalogue(self) -> None:
        """Windows come after the first counts: importing their list takes most of a second."""
        if self._services.windows.ready:
            return
        if not catalogue.loaded():  # else somebody who asked for a window has waited for it
            await asyncio.sleep(START_SECONDS)
        await self._services.workers.run(give_back)  # the tokenizer's tables, before there is more
        await self._services.load_prices()
        await self._services.workers.run(self._server.loading_features())
        await self._services.workers.run(give_back)
        self._services.publish(Event("settings"))

    async def _load(self, workspace: Workspace) -> None:
        workspace.apply(SettingsChange(editor=await self._editor_section(workspace)))
        await self._read(
            partial(self._read_settings, workspace, running=self._running, reloads=self._reloads)
        )

    async def _read_settings(self, workspace: Workspace, *, running: object, reloads: int) -> None:
        """Read a root's settings and put them in force.

        A slow disk may return them after the reload has ended; then they are announced here,
        unless they were read again since.
        """
        work = partial(_read, workspace.path, workspace.editor, workspace.loaded)
        loaded, rules = await self._services.workers.run(work)
        is_late = running is not self._running
        if is_late and reloads != self._reloads:
            return
        workspace.apply(SettingsChange(read=(loaded, rules)))
        for problem in loaded.problems:
            logger.warning("configuration: %s", problem)
        if is_late:
            self._services.publish(Event("settings"))
            self._server.scheduler.now(("announcing",), self._announce)

    async def _editor_section(self, workspace: Workspace) -> Any:
        """The editor's section `tokenSidecar` for a root; without an answer the previous one."""
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

    def _watch_files(self, paths: set[Path]) -> None:
        if paths == self._watched:
            return
        if self._watch is not None:
            self._watch.cancel()
        names, self._watched = tuple(map(str, paths)), paths
        self._watch = self._server.watch(lambda: names, self._files_changed, math.inf)

    def _files_changed(self, _changes: object) -> None:
        self._server.scheduler.soon(("settings files",), 0.0, self._compare)

    async def _compare(self) -> None:
        """Read the settings again if a file differs from when it was last read."""
        if await self._services.workers.run(partial(_times, self._watched)) != self._times:
            self.reload()


def _times(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {path: stamp_of(path) for path in paths}


def _read(path: Path | None, editor: Any, previous: Loaded) -> tuple[Loaded, Rules]:
    if not editor and LIMIT_VARIABLE not in os.environ and not _any_file(path):
        # Nobody has written anything: the reader is not even loaded.
        return Loaded(Settings(), (), {}), Rules(Settings())
    from sidecar.config.load import load

    loaded = load(path, editor, previous=previous)
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
                workspace.apply(SettingsChange(editor=section))
        configuration.reload()
