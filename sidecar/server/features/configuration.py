"""Loads settings from files and from the editor, and opens root folders."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from lsprotocol import types
from pygls.uris import from_fs_path

from sidecar.budgets.budget_rules import Rules
from sidecar.config.paths import LIMIT_VARIABLE, settings_files
from sidecar.config.safe_files import FileStamp, stamp_of
from sidecar.config.settings import Loaded, Settings
from sidecar.errors import log_defect
from sidecar.models import catalogue
from sidecar.project.file_watcher import FileWatcher, FollowedPaths
from sidecar.server.client import Client
from sidecar.server.protocol import Feature
from sidecar.tasks import Scheduler, SharedTasks
from sidecar.text.document import Encoding
from sidecar.workspace.agent_sessions import AgentSessionWatcher
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

logger = logging.getLogger(__name__)

SECTION = "tokenSidecar"
CLIENT_SECONDS = 3.0
"""Time limit for the editor to answer a request for its settings."""
READ_SECONDS = 5.0
"""Maximum time that counts wait for settings. Settings read later are still applied."""
SESSIONS_SECONDS = 0.25
"""Maximum time that the first count waits for agents' sessions."""
CATALOGUE_SECONDS = 0.5
"""Delay before context windows and prices are loaded. Keeps the first count fast."""


class Configuration(Feature):
    """Opens root folders, and updates their settings from files and from the editor."""

    def __init__(
        self,
        services: Services,
        client: Client,
        scheduler: Scheduler,
        watcher: FileWatcher,
        agent_sessions: AgentSessionWatcher,
    ) -> None:
        self._services, self._client, self._scheduler = services, client, scheduler
        self._followed, self._agent_sessions = FollowedPaths(watcher), agent_sessions
        self._reading = SharedTasks[object, None]("configuration", outlives_waiters=True)
        self._latest: object = None
        """An object that identifies the latest reload."""
        self._awaited: object = None
        """An object that identifies the reload in progress, or None if there is none."""
        self._stamps: dict[Path, FileStamp | None] = {}
        self.handlers = {
            types.WORKSPACE_DID_CHANGE_CONFIGURATION: self._change_settings,
            types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: self._change_folders,
        }

    def on_initialize(self, params: types.InitializeParams) -> None:
        for uri in _root_uris(params):
            self._services.roots.add(uri)
        self._services.client = params.client_info.name if params.client_info else ""
        self._services.encoding = _choose_encoding(params.capabilities)
        options = params.initialization_options
        if isinstance(options, dict):
            section = options.get(SECTION, options)
            self._apply_section(section if isinstance(section, dict) else {})
        self.reload()

    def _change_settings(self, params: types.DidChangeConfigurationParams) -> None:
        section = params.settings.get(SECTION) if isinstance(params.settings, dict) else None
        if isinstance(section, dict):
            self._apply_section(section)
        self.reload()

    def _apply_section(self, section: dict[str, Any]) -> None:
        for workspace in self._services.roots:
            workspace.apply_editor_section(section)

    def _change_folders(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        services = self._services
        for folder in params.event.removed:
            services.close_root(folder.uri)
        for folder in params.event.added:
            added = services.roots.add(folder.uri)
            if not added.editor:
                added.apply_editor_section(services.roots.outside.editor)
        for uri in services.documents:
            self._scheduler.run_now(("root", uri), partial(services.link_document, uri))
        # Until this event is set, counts wait for the new roots' settings.
        services.configured.clear()
        self.reload()

    def reload(self) -> None:
        self._latest = object()
        self._scheduler.run_now(("settings",), self._reload)

    async def _reload(self) -> None:
        roots = set(self._services.roots)
        paths = {path for root in roots for path in settings_files(root.path)}
        self._awaited, self._stamps = self._latest, {}
        jobs: list[Callable[[], Awaitable[None]]] = [self._read_calibrations]
        jobs += [partial(self._load, root, self._latest) for root in roots]
        await asyncio.gather(*map(self._wait_for, jobs))
        await self._wait_for(self._prepare)
        self._awaited = None
        # If roots were added, the next reload reads their settings.
        if roots >= set(self._services.roots):
            self._services.configured.set()
        self._services.publish(Event("settings"))
        self._scheduler.run_now(("catalogue",), self._load_catalogue)
        names, notify = tuple(map(str, paths)), partial(self._files_changed, paths)
        self._followed.follow("settings", paths, lambda: names, notify)

    async def _wait_for(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work, and wait up to `READ_SECONDS` for it to finish.

        Work that takes longer continues in the background.
        """
        try:
            await self._reading.run(object(), work, READ_SECONDS)
        except TimeoutError:
            logger.error("configuration: reading the settings takes longer than %g s", READ_SECONDS)
        except Exception as exc:  # documents must be counted even if this fails
            log_defect(exc, "configuration")

    async def _read_calibrations(self) -> None:
        calibrations = self._services.calibrations
        if calibrations.known is None:
            work = calibrations.begin_sync()
            calibrations.finish_sync(await self._services.workers.run(work))

    async def _prepare(self) -> None:
        """Read agents' sessions and load tokenizers."""
        # Read sessions first, because loading tokenizers blocks all threads.
        self._agent_sessions.read_all()
        await self._agent_sessions.wait_until_read(SESSIONS_SECONDS)
        await self._services.counts.snapshots.load(self._services.tokenizers())

    async def _load_catalogue(self) -> None:
        if self._services.windows.ready:
            return
        if not catalogue.loaded():  # a request may already have loaded the price list
            await asyncio.sleep(CATALOGUE_SECONDS)
        await self._services.load_prices()
        self._services.publish(Event("settings"))

    async def _load(self, workspace: Workspace, reload: object) -> None:
        """Read and apply a root's settings.

        If settings arrive after this reload has stopped waiting, they are still published, unless a
        later reload has started by then.
        """
        run = self._services.workers.run
        workspace.apply_editor_section(await self._editor_section(workspace))
        # Read the times before the contents, so that a change in between triggers another reload.
        times = await run(partial(_stamps_of, settings_files(workspace.path)))
        work = partial(_load_settings, workspace.path, workspace.editor, workspace.loaded)
        loaded = await run(work)
        if reload not in (self._awaited, self._latest):
            return
        self._stamps = times | self._stamps
        workspace.apply_settings(*loaded)
        for problem in loaded[0].problems:
            logger.warning("configuration: %s", problem)
        if reload is not self._awaited:
            self._services.publish(Event("settings"))

    async def _editor_section(self, workspace: Workspace) -> Any:
        capabilities = self._client.client_capabilities.workspace
        if capabilities is None or not capabilities.configuration:
            return workspace.editor
        item = types.ConfigurationItem(scope_uri=workspace.uri, section=SECTION)
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                await self._client.initialized.wait()
                answer = await self._client.workspace_configuration_async(
                    types.ConfigurationParams([item])
                )
        except Exception:  # the client rejected the request or did not answer in time
            return workspace.editor
        section = answer[0] if answer else None
        return section if isinstance(section, dict) else {}

    def _files_changed(self, paths: set[Path], _changes: object) -> None:
        reload = partial(self._reload_if_changed, paths)
        self._scheduler.schedule(("settings files",), 0.0, reload)

    async def _reload_if_changed(self, paths: set[Path]) -> None:
        if await self._services.workers.run(partial(_stamps_of, paths)) != self._stamps:
            self.reload()


def _stamps_of(paths: Iterable[Path]) -> dict[Path, FileStamp | None]:
    return {path: stamp_of(path) for path in paths}


def _load_settings(path: Path | None, editor: Any, previous: Loaded) -> tuple[Loaded, Rules]:
    if not editor and LIMIT_VARIABLE not in os.environ and not _has_file(path):
        # If nothing is configured, do not import the loader, so that the server starts faster.
        return Loaded(Settings(), (), {}), Rules(Settings())
    from sidecar.config.load import load

    loaded = load(path, editor, previous=previous)
    return loaded, Rules(loaded.settings)


def _has_file(path: Path | None) -> bool:
    return "TOKEN_SIDECAR_CONFIG" in os.environ or any(
        file.exists() for file in settings_files(path)
    )


def _root_uris(params: types.InitializeParams) -> list[str]:
    if params.workspace_folders:
        return [folder.uri for folder in params.workspace_folders]
    if params.root_uri:
        return [params.root_uri]
    uri = from_fs_path(params.root_path) if params.root_path else None
    return [uri] if uri else []


def _choose_encoding(capabilities: types.ClientCapabilities) -> Encoding:
    general = capabilities.general
    for kind in (general.position_encodings or []) if general else []:
        value = getattr(kind, "value", kind)
        if value in ("utf-8", "utf-16", "utf-32"):
            return cast("Encoding", value)
    return "utf-16"
