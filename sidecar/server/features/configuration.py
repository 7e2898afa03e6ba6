"""Settings: read off the event loop, from files and from the editor, and watched on disk.

Neovim announces no file watching, so the server watches for itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lsprotocol import types

from sidecar.budget.rules import Rules
from sidecar.config.options import Loaded
from sidecar.config.paths import LEDGER_FILES, LIMIT_VARIABLE, watched_paths
from sidecar.config.settings import Settings
from sidecar.defects import log_defect
from sidecar.models import catalogue
from sidecar.server.memory import give_back
from sidecar.workspace.events import Event
from sidecar.workspace.files import Stamp, stamp_of

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

T = TypeVar("T")

logger = logging.getLogger(__name__)

SECTION = "tokenSidecar"
CLIENT_SECONDS = 3.0
"""How long the editor may take to say its settings; what it says later is taken then."""
READ_SECONDS = 5.0
"""How long a disk may take to hand over the settings."""
LOOK_SECONDS = 0.25
"""How long agents' sessions may keep the first count waiting."""
POLL_MILLISECONDS = 2_000
START_SECONDS = 0.5
"""Watching starts a little later: its import would stand in the way of the first count."""


class Configuration:
    """Keeps each workspace's settings as the files and the editor have them."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._watched: set[Path] = set()
        self._initialized = asyncio.Event()
        self._reloads = 0
        self._times: dict[Path, Stamp | None] = {}
        self._ledger = {self._services.state.folder / name for name in LEDGER_FILES}
        self._ledger_times: dict[Path, Stamp | None] = {}
        self._polls = False

    def initialized(self) -> None:
        """The client may be asked from now on."""
        self._initialized.set()

    def reload(self) -> None:
        """Read all settings again, in the background."""
        self._reloads += 1
        self._server.scheduler.now(("settings",), self._reload)

    async def _reload(self) -> None:
        services, roots = self._services, set(self._services.roots)
        paths = {path for root in roots for path in watched_paths(root.path)}
        try:
            await self._read_all(roots, paths)
        except Exception as exc:  # a defect must not keep anyone from counting
            log_defect(exc, "configuration")
        if roots >= set(services.roots):  # else roots were added meanwhile, and are read next
            services.configured.set()
        services.publish(Event("settings"))
        self._server.scheduler.now(("catalogue",), self._load_catalogue)
        self._server.scheduler.now(("announcing",), self._announce)
        self._watch(paths)

    async def _read_all(self, roots: set[Workspace], paths: set[Path]) -> None:
        # Times before contents: a file that changes in between is read once more.
        times = await self._read(partial(_times, paths))
        self._times = self._times if times is None else times
        await asyncio.gather(*(self._load(workspace) for workspace in roots))
        # Before tokenizers, whose loading halts everybody: sessions have their numbers already.
        self._server.live.look()
        await self._server.live.looked(LOOK_SECONDS)
        await self._read(self._services.loading())

    async def _read(
        self, work: Callable[[], T], late: Callable[[T], None] = lambda _: None
    ) -> T | None:
        """What blocking work returns. None where it fails, or a disk does not answer: counting
        goes on with the settings that there are, and `late` is called with the answer."""
        reading = asyncio.ensure_future(self._services.workers.run(work))
        try:
            if (await asyncio.wait({reading}, timeout=READ_SECONDS))[0]:
                return reading.result()
            logger.error("configuration: not read within %g s", READ_SECONDS)
            reading.add_done_callback(partial(_pass_on, late))
        except Exception as exc:  # a defect must not keep anyone from counting
            log_defect(exc, "configuration")
        return None

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
        workspace.editor = await self._editor_section(workspace)
        work = partial(_read, workspace.path, workspace.editor, workspace.loaded)
        found = await self._read(work, partial(self._take_late, workspace, self._reloads))
        if found is not None:
            self._take(workspace, *found)

    def _take(self, workspace: Workspace, loaded: Loaded, rules: Rules) -> None:
        workspace.take(loaded, rules)
        for problem in loaded.problems:
            logger.warning("configuration: %s", problem)

    def _take_late(self, workspace: Workspace, reloads: int, found: tuple[Loaded, Rules]) -> None:
        """Put in force what a slow disk handed over, unless it was read again since."""
        if reloads == self._reloads:
            self._take(workspace, *found)
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

    def _watch(self, paths: set[Path]) -> None:
        if paths == self._watched:
            return
        self._watched = paths
        self._server.scheduler.cancel(("watching",))
        self._server.scheduler.now(("watching",), partial(self._watch_files, paths))

    async def _watch_files(self, paths: set[Path]) -> None:
        """Watch the folders that hold the files, so that one that appears is seen too.

        The times of the files are compared every two seconds in any case: that finds what changed
        before watching began, and what file systems do not report. The ledger is watched too: all
        servers show what any of them records.
        """
        await asyncio.sleep(START_SECONDS)
        run, state = self._services.workers.run, self._services.state.folder
        watched = paths | self._ledger
        try:
            while folders := await run(partial(_folders, watched)):
                async for _ in _changes(folders, {str(path) for path in watched}):
                    await self._compare(paths)
                    if state not in folders and await run(state.is_dir):
                        break  # the state folder has been made
        except OSError as error:
            if not self._polls:
                logger.warning("settings are looked at every 2 s, not watched: %s", error)
            self._polls = True
        while True:
            await asyncio.sleep(POLL_MILLISECONDS / 1000)
            await self._compare(paths)

    async def _compare(self, paths: set[Path]) -> None:
        times, ledger = await self._services.workers.run(
            lambda: (_times(paths), _times(self._ledger))
        )
        if times != self._times:
            self.reload()
        if ledger != self._ledger_times:
            self._ledger_times = ledger
            self._server.history.ledger_written()
        await self._server.learning.look()


async def _changes(folders: Sequence[Path], names: set[str]) -> AsyncIterator[object]:
    """Something whenever one of the names changed, and every two seconds.

    Raises OSError where the system watches no more.
    """
    from watchfiles import awatch

    def ours(_change: object, path: str) -> bool:
        return path in names

    watching = awatch(
        *folders,
        watch_filter=ours,
        recursive=False,
        debounce=100,
        rust_timeout=POLL_MILLISECONDS,
        yield_on_timeout=True,
    )
    try:
        async for changes in watching:
            yield changes
    except RuntimeError as error:  # what watchfiles raises for most errors of the system
        raise OSError(str(error)) from error


def _pass_on(late: Callable[[T], None], reading: asyncio.Future[T]) -> None:
    """Unless the server has ended meanwhile."""
    if not reading.cancelled():
        late(reading.result())


def _times(paths: Iterable[Path]) -> dict[Path, Stamp | None]:
    return {path: stamp_of(path) for path in paths}


def _folders(paths: Iterable[Path]) -> list[Path]:
    """The folders of these files that exist."""
    return [folder for folder in {path.parent for path in paths} if folder.is_dir()]


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
                workspace.editor = section
        configuration.reload()
