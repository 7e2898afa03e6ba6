"""Follows coding agents' sessions in open roots, and records their calls in the ledger.

Each file is read once, and its new lines when it changes. When a root is opened, its newest files
are read, and then its other files. Other workspaces' files follow when the user asks for costs or
makes no edits for a minute. They are read at low priority, with a progress bar that allows the user
to cancel.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sidecar.config.paths import LEDGER_FILES
from sidecar.config.settings import Agents
from sidecar.errors import SidecarError
from sidecar.operating_system import release_memory
from sidecar.project.file_watcher import POLL_SECONDS, Changes, FileWatcher, FollowedPaths
from sidecar.tasks import Scheduler
from sidecar.workspace.agent_sessions import unusable_ledger
from sidecar.workspace.services import Services
from sidecar.workspace.spending import Spending
from sidecar.workspace.workspace import Event, Workspace

if TYPE_CHECKING:
    from sidecar.agents.session_index import IngestResult

ShowProgress = Callable[
    [str, threading.Event], AbstractAsyncContextManager[Callable[[str, float], None]]
]
"""Shows a progress bar, given its title and an event to set when the user cancels."""


class AgentSessionWatcher:
    """Reads each workspace's agent sessions, and reads them again when their files change."""

    def __init__(
        self,
        services: Services,
        scheduler: Scheduler,
        watcher: FileWatcher,
        history: HistoryRecorder,
    ) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed, self._history = FollowedPaths(watcher), history
        self._changed: WeakKeyDictionary[Workspace, frozenset[str]] = WeakKeyDictionary()
        """Files that need to be read, keyed by workspace. An empty set means all files."""
        self._idle = asyncio.Event()
        """An event that is set while no files need to be read."""

    def on_event(self, event: Event) -> None:
        """If settings have changed, read all sessions again, and watch their files."""
        if event.what == "settings":
            self.read_all()
            self._watch()

    def read_all(self) -> None:
        """Start reading the sessions in all workspaces."""
        for workspace in self._workspaces():
            self._read_soon(workspace, None)

    async def wait_until_read(self, timeout_seconds: float) -> None:
        """Wait until all changed files have been read, or until the timeout."""
        if self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_seconds)

    def _workspaces(self) -> list[Workspace]:
        roots = self._services.roots
        return [root for root in roots if root.path is not None and root.has_settings]

    def _read_soon(self, workspace: Workspace, paths: frozenset[str] | None) -> None:
        self._idle.clear()
        pending = self._changed.get(workspace)
        if paths is None or pending == frozenset():
            self._changed[workspace] = frozenset()
        else:
            self._changed[workspace] = paths | (pending or frozenset())
        self._scheduler.schedule(("agents", workspace), 0.0, partial(self._read, workspace))

    async def _read(self, workspace: Workspace) -> None:
        try:
            await self._read_changed(workspace)
        finally:
            if not self._changed:
                self._idle.set()

    async def _read_changed(self, workspace: Workspace) -> None:
        await self._services.workers.run(partial(import_module, "sidecar.workspace.agent_sessions"))
        changed = self._changed.pop(workspace, None)
        if changed is None:
            return
        agents = self._services.agents
        if changed:
            has_new_costs = await agents.read_changed(workspace, changed)
        else:
            has_new_costs = await agents.find_sessions(workspace)
        if has_new_costs:
            self._history.add_up_soon(workspace)
        sources = agents.known_sources(workspace)
        if sources is not None and sources.readers:
            self._history.record_soon(workspace)

    def _watch(self) -> None:
        roots = [
            (workspace.settings.agents, str(workspace.path))
            for workspace in self._workspaces()
            if workspace.settings.agents.enabled
        ]
        if not roots:
            self._followed.keep(())
            return
        find_paths = partial(_paths_to_watch, roots)
        self._followed.follow("sessions", roots, find_paths, self._on_files_changed, POLL_SECONDS)

    def _on_files_changed(self, paths: Changes) -> None:
        for workspace in self._workspaces():
            if workspace.settings.agents.enabled:
                self._read_soon(workspace, paths)


def _paths_to_watch(roots: list[tuple[Agents, str]]) -> set[str]:
    from sidecar.agents.reader_registry import paths_to_watch

    return {path for settings, root in roots for path in paths_to_watch(settings, [root])}


logger = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Time without edits after which recording starts automatically."""
SHOWN_SECONDS = 2.0
"""Delay between reading the newest session files and the others."""
RETRY_SECONDS = 60.0
"""Delay before a retry if another process is recording the same sessions."""
SUM_SECONDS = 0.5
"""Delay before costs are added up after a change to the ledger or a session file."""
PAUSE_RATIO = 1.0
"""Seconds to pause per second of background work."""


class HistoryRecorder:
    """Records agents' past calls and adds up their costs."""

    def __init__(
        self,
        services: Services,
        scheduler: Scheduler,
        watcher: FileWatcher,
        show_progress: ShowProgress,
    ) -> None:
        self._services, self._scheduler = services, scheduler
        self._followed, self._show_progress = FollowedPaths(watcher), show_progress
        self._order = asyncio.Lock()
        self._stop = threading.Event()
        self._is_background = False
        self._recorded: WeakKeyDictionary[Workspace, Agents] = WeakKeyDictionary()
        """Maps each workspace to the agent settings with which its past calls were recorded."""
        self._summed: WeakKeyDictionary[Workspace, str] = WeakKeyDictionary()
        """The id of the session that each workspace showed when costs were last added up."""
        self._complete = False
        self._edited_at = 0.0

    def on_event(self, event: Event) -> None:
        """Record calls when settings or the shown session change, but not while the user types."""
        if event.what == "document":
            self._edited_at = asyncio.get_running_loop().time()
        elif event.what == "settings":
            self._settings_changed()
        elif event.what == "context" and event.workspace is not None:
            self._context_changed(event.workspace)

    def _settings_changed(self) -> None:
        self._complete = False
        for workspace in self._services.roots:
            workspace.costs.set_history(read=self._is_recorded(workspace))
        self._scheduler.schedule(("idle",), IDLE_SECONDS, self._record_when_idle)
        self._watch_files()

    def _context_changed(self, workspace: Workspace) -> None:
        """Schedule adding up costs if another agent's session is shown."""
        usage = workspace.context.usage
        if usage is None or usage.session is None or usage.session.source == "protocol":
            return
        if usage.session.id != self._summed.get(workspace, usage.session.id):
            self.add_up_soon(workspace)

    def record_soon(self, workspace: Workspace) -> None:
        """Schedule low-priority recording of a workspace's sessions."""
        if workspace.path is not None and not self._is_recorded(workspace):
            work = partial(self._read_costs, workspace)
            self._scheduler.schedule(("costs", workspace), SHOWN_SECONDS, work)

    def close(self) -> None:
        """Stop recording. The next process continues where this one stopped."""
        self._stop.set()

    async def ensure_recorded(
        self,
        workspace: Workspace,
        report: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """Record all calls found in a workspace's session files."""
        if workspace.path is None:
            return
        if not self._is_recorded(workspace):
            await self._read(workspace, partial(report, "reading session files"))
        if not self._complete and self._is_recorded(workspace):
            self._scheduler.schedule(("history",), 0.0, self._read_others)

    async def _read_costs(self, workspace: Workspace) -> None:
        if not self._is_recorded(workspace):
            await self._read(workspace, lambda _: None, pause_ratio=PAUSE_RATIO)
        if not self._is_recorded(workspace) and workspace.settings.agents.enabled:
            # Another process is recording the calls, or a cost request has interrupted this task.
            work = partial(self._read_costs, workspace)
            self._scheduler.schedule(("costs", workspace), RETRY_SECONDS, work)

    async def _read(
        self, workspace: Workspace, report: Callable[[float], None], *, pause_ratio: float = 0.0
    ) -> None:
        async with self._wait_for_turn(is_background=pause_ratio > 0) as stop:
            settings = workspace.settings.agents
            ingest = self._ingest(workspace, stop, report, mine=True, pause_ratio=pause_ratio)
            if (await ingest).is_complete:
                self._recorded[workspace] = settings
                workspace.costs.set_history(read=True)
        # Do not refresh earlier, because costs that are not recorded yet would be shown as $0.00.
        if self._is_recorded(workspace):
            await self.refresh(workspace)

    def add_up_soon(self, workspace: Workspace) -> None:
        """Schedule adding up a workspace's costs."""
        work = partial(self.refresh, workspace)
        self._scheduler.schedule(("spent", workspace), SUM_SECONDS, work)

    def _is_recorded(self, workspace: Workspace) -> bool:
        return self._recorded.get(workspace) == workspace.settings.agents

    async def refresh(self, workspace: Workspace) -> None:
        """Add up the costs of a workspace and of the shown session, and publish them."""
        session = self._summed[workspace] = workspace.shown_session
        spending = self._services.spending(workspace)
        try:
            spent = await self._services.workers.run(partial(spending.spent, session))
        except SidecarError:  # the error is reported when a client requests costs
            return
        self._services.update_costs(workspace, spent)

    def _watch_files(self) -> None:
        """Watch the ledger for calls recorded by other processes, and git for checkouts."""
        folders = tuple(str(root.path) for root in self._services.roots if root.path is not None)
        ledger = tuple(str(self._services.state.folder / name) for name in LEDGER_FILES)
        self._followed.follow(
            "ledger", folders, lambda: (*ledger, *_head_files(folders)), self._files_changed
        )

    def _files_changed(self, changes: Changes) -> None:
        self._scheduler.schedule(("ledger",), SUM_SECONDS, self._refresh_changed)
        if changes is None or any(os.path.basename(path) == "HEAD" for path in changes):
            self._scheduler.schedule(("branches",), SUM_SECONDS, self._refresh_all)

    async def _refresh_all(self) -> None:
        for workspace in list(self._services.roots):
            if workspace in self._summed and self._services.windows.ready:
                await self.refresh(workspace)

    async def _refresh_changed(self) -> None:
        if not self._services.windows.ready:
            return  # all totals will be read once the prices are loaded
        spendings = [self._services.spending(workspace) for workspace in self._services.roots]
        try:
            changed = await self._services.workers.run(partial(_has_changed, spendings))
        except SidecarError:  # the error is reported when a client requests costs
            return
        for workspace in self._services.roots if changed else ():
            if workspace.has_settings:
                await self.refresh(workspace)
        if changed:  # another process may have downloaded new prices
            self._services.publish(Event("shared ledger"))

    async def _record_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._edited_at + IDLE_SECONDS - loop.time()
        if self._edited_at and left > 0:
            self._scheduler.schedule(("idle",), left, self._record_when_idle)
            return
        for workspace in self._services.roots:
            if workspace.has_settings:
                await self.ensure_recorded(workspace)

    async def _read_others(self) -> None:
        workspace = next((root for root in self._services.roots if root in self._recorded), None)
        if workspace is None:
            return
        async with (
            self._wait_for_turn(is_background=True) as stop,
            self._show_progress("Reading agents' sessions", stop) as report,
        ):
            recording = partial(report, "recording calls")
            ingested = await self._ingest(
                workspace, stop, recording, mine=False, pause_ratio=PAUSE_RATIO
            )
        self._complete = ingested.is_complete
        if ingested.calls:
            for workspace in list(self._recorded):
                await self.refresh(workspace)

    @asynccontextmanager
    async def _wait_for_turn(self, *, is_background: bool) -> AsyncIterator[threading.Event]:
        """Wait until no other read is running. Stop it if only that one is in the background.

        Yields an event that stops this read.
        """
        if self._is_background and not is_background:
            self._stop.set()
        async with self._order:
            stop = self._stop = threading.Event()
            self._is_background = is_background
            try:
                yield stop
            except asyncio.CancelledError:
                stop.set()
                raise
            finally:
                self._is_background = False

    async def _ingest(
        self,
        workspace: Workspace,
        stop: threading.Event,
        report: Callable[[float], None],
        *,
        mine: bool,
        pause_ratio: float,
    ) -> IngestResult:
        await self._services.configured.wait()
        sources = await self._services.agents.sources(workspace)
        from sidecar.agents.session_index import IngestControl, IngestResult, read_all

        if sources is None:
            return IngestResult()
        book = self._services.spending(workspace).book
        control = IngestControl(stop, pause_ratio, report)
        work = partial(read_all, book, sources, mine=mine, control=control)
        try:
            ingested = await self._services.workers.run(work)
        except SidecarError as exc:
            logger.warning("session files: %s", exc)
            workspace.costs.set_problem(unusable_ledger(exc))
            return IngestResult(is_complete=False)
        workspace.costs.set_problem("")
        if mine:
            workspace.costs.set_unread(ingested.unread)
        await self._services.workers.run(release_memory)
        return ingested


def _has_changed(spendings: list[Spending]) -> bool:
    """Return whether another process has written to any of the ledgers. Raises LedgerError."""
    ledgers = {spending.book.ledger for spending in spendings}
    # Do not stop at the first change, because each check resets the state of one ledger.
    changed = [ledger.changed_elsewhere() for ledger in ledgers]
    return any(changed)


def _head_files(folders: Iterable[str]) -> list[str]:
    from sidecar.agents.git_folders import head_file

    return [path for path in map(head_file, folders) if path is not None]
