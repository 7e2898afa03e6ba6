"""Checks again what coding agents lose, after changes of their files and of open documents."""

from __future__ import annotations

from functools import partial

from sidecar.project.file_watcher import FileWatcher, FollowedPaths
from sidecar.server.feature import Feature
from sidecar.tasks import Scheduler
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event, Workspace

CHECK_SECONDS = 0.5
"""Delay after a change. Checking earlier would delay the first count, and slow down typing."""


class InstructionUpdates(Feature):
    """Checks all roots while a document is open, and watches the files that agents send."""

    def __init__(self, services: Services, scheduler: Scheduler, watcher: FileWatcher) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed = FollowedPaths(watcher)

    def on_event(self, event: Event) -> None:
        services = self._services
        if event.what == "document" and event.uri is not None:
            services.instructions.document_changed(event.uri)
        elif event.what == "instructions" and event.workspace is not None:
            root = event.workspace
            paths, notify = services.instructions.watched(root), partial(self._files_changed, root)
            self._followed.follow(root, paths, lambda: paths, notify)
        elif event.what == "settings":
            for root in services.roots:
                services.instructions.mark_stale(root)
            checked = [root for root in services.roots if root.settings.footprint.diagnostics]
            self._followed.keep(checked)
        if event.what in ("document", "settings") and services.documents:
            for root in services.roots:
                if services.instructions.is_stale(root):
                    self._check_soon(root)

    def _check_soon(self, root: Workspace) -> None:
        if root.path is not None and root.settings.footprint.diagnostics:
            work = partial(self._check, root)
            self._scheduler.schedule(("instructions", root), CHECK_SECONDS, work)

    async def _check(self, root: Workspace) -> None:
        await self._services.configured.wait()
        await self._services.instructions.check_if_stale(root)

    def _files_changed(self, root: Workspace, _changes: object) -> None:
        self._services.instructions.mark_stale(root)
        self._check_soon(root)
