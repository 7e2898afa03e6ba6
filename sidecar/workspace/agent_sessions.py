"""Reads coding agents' session files: which ones, when, and what follows from it.

Each file is read once, and its new lines when it changes, through the index of sessions. Changed
files and the newest files of open roots are read at once. The other files of these roots follow in
the background, and those of other workspaces when the user asks for costs or makes no edits for a
minute. These are read at low priority, with a progress bar that allows the user to cancel. A
request for costs comes before all reading in the background.

Files are read on worker threads. No file is opened while `agents.enabled` is false.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import msgspec

from sidecar.agents.claude_statusline import load, with_saved_window
from sidecar.agents.reader_registry import Sources, paths_to_watch
from sidecar.agents.session_events import Store, StoredSession
from sidecar.config.settings import Agents
from sidecar.errors import SidecarError
from sidecar.operating_system import release_memory
from sidecar.project.file_watcher import POLL_SECONDS, Changes, FileWatcher, FollowedPaths
from sidecar.tasks import Scheduler, SharedTasks
from sidecar.workspace.sessions import RECENT
from sidecar.workspace.workspace import Event, Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.session_index import IngestResult
    from sidecar.cost.book import CostBook
    from sidecar.cost.ledger import MemoryLedger
    from sidecar.tasks import Workers
    from sidecar.workspace.sessions import SessionRegistry
    from sidecar.workspace.shared_services import SharedServices

logger = logging.getLogger(__name__)

MAX_OLD_STORES = 100
"""Maximum number of stores to read when searching for one of the workspace's sessions."""
IDLE_SECONDS = 60.0
"""Time without edits after which all stores are read."""
SHOWN_SECONDS = 2.0
"""Delay between reading a root's newest stores and its others."""
RETRY_SECONDS = 60.0
"""Delay before a retry if another process is reading the same stores."""
_REREAD_RATIO = 20
"""A read that took a second is repeated after this many seconds at the earliest."""
PAUSE_RATIO = 1.0
"""Seconds to pause per second of background work."""
NOT_KEPT = (
    "sessions are kept in memory and costs are not recorded; "
    "`token-sidecar doctor` checks the state folder"
)


class ShowProgress(Protocol):
    """Shows a progress bar, given its title and an event to set when the user cancels."""

    def __call__(
        self, title: str, stop: threading.Event | None = None
    ) -> AbstractAsyncContextManager[Callable[[str, float], None]]: ...


@dataclass(eq=False)
class KnownStores:
    """What is known about a workspace's stores."""

    settings: Agents
    """The settings with which the stores were read. After a change, all are read again."""
    sources: Sources | None = None
    """The sources that were last searched, or None before the first search."""
    recent: frozenset[str] = frozenset()
    """The IDs of the recent sessions."""
    is_read: bool = False
    """Whether all stores have been read. Later changes are noticed by the watcher."""
    is_tried: bool = False
    """Whether all stores have been read, except for those that cannot be read."""
    is_listed: bool = False
    """Whether the older sessions have been listed."""
    order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while recent sessions are read, so that no earlier list replaces a later one."""


class AgentSessions:
    """Reads agents' stores, and passes what they contain to the sessions and the costs."""

    def __init__(
        self, services: SharedServices, sessions_of: Callable[[Workspace], SessionRegistry]
    ) -> None:
        self._services, self._run = services, services.workers.run
        self._sessions_of = sessions_of
        self._known: WeakKeyDictionary[Workspace, KnownStores] = WeakKeyDictionary()
        self.sizes = SizesReader(services.workers)
        self._memory: MemoryLedger | None = None
        """In-memory replacement for the ledger while the ledger file cannot be used."""

    def known(self, workspace: Workspace) -> KnownStores:
        """Return what has been read with the workspace's current settings."""
        settings, known = workspace.settings.agents, self._known.get(workspace)
        if known is None or known.settings != settings:
            recent = known.recent if known else frozenset()
            known = self._known[workspace] = KnownStores(settings, recent=recent)
        return known

    async def sources(self, workspace: Workspace) -> Sources | None:
        """Return the sources to read for a workspace, or None if agents are disabled."""
        if workspace.path is None or not workspace.settings.agents.enabled:
            return None
        settings, path = workspace.settings.agents, str(workspace.path)
        return await self._run(partial(Sources.of, settings, path))

    async def find_sessions(self, workspace: Workspace) -> None:
        """Find the workspace's recent sessions, and show the first one as soon as it is found."""
        known, sources = self.known(workspace), await self.sources(workspace)
        is_first, known.sources = known.sources is None, sources
        if sources is None:
            self._set_recent(workspace, known, ())
            return
        if is_first:
            await self._read_recent(workspace, known, sources, SessionReader.read_newest)
        await self._read_recent(workspace, known, sources, SessionReader.read_recent)

    async def read_changed(self, workspace: Workspace, changed: Collection[str]) -> None:
        """Read the workspace's changed session files, or all if they have never been read."""
        known = self.known(workspace)
        if known.sources is None:
            await self.find_sessions(workspace)
            return
        read = partial(SessionReader.read_changed, changed=tuple(changed))
        await self._read_recent(workspace, known, known.sources, read)

    async def find_all_sessions(self, workspace: Workspace, max_bytes: int | None = None) -> None:
        """Find all sessions of the workspace, including old ones.

        A recent session that the watcher has not noticed yet is shown.

        Args:
            workspace: The workspace.
            max_bytes: Limit for the total size of the stores to read, or None for no limit.
        """
        known, sources = self.known(workspace), await self.sources(workspace)
        sessions = list[StoredSession]()
        if sources is not None:
            read = partial(SessionReader.read_all, max_bytes=max_bytes)
            sessions = await self._read(workspace, known, sources, read, since=None)
        if known is not self.known(workspace):  # the settings have changed meanwhile
            await self.find_all_sessions(workspace, max_bytes)
            return
        known.is_listed = known.is_listed or max_bytes is None
        self._sessions_of(workspace).set_older_agent_sessions(sessions)
        since = datetime.now(UTC) - RECENT
        if any(one.updated_at >= since and one.id not in known.recent for one in sessions):
            await self.find_sessions(workspace)

    async def ensure_older_sessions(self, workspace: Workspace) -> None:
        """Find all sessions of the workspace, unless that was already done with these settings."""
        if not self.known(workspace).is_listed:
            await self.find_all_sessions(workspace)

    async def read_calls(
        self,
        workspace: Workspace,
        stop: threading.Event,
        report: Callable[[float], None] = lambda _: None,
        *,
        mine: bool = True,
        pause_ratio: float = 0.0,
    ) -> bool:
        """Record all calls in agents' stores, unless another process is doing this.

        Args:
            workspace: The workspace whose settings apply.
            stop: Stops reading when it is set.
            report: Called with the completed fraction, from 0 to 1.
            mine: Whether to read only stores that may contain sessions of the workspace.
            pause_ratio: Seconds to pause per second of work.

        Returns:
            Whether every store was tried. What could not be read is noted in the costs.
        """
        known, sources = self.known(workspace), await self.sources(workspace)
        spending = self._services.spending(workspace)

        def work() -> IngestResult:
            from sidecar.agents.session_index import IngestControl, IngestResult, read_all

            control = IngestControl(stop, pause_ratio, report)
            if sources is None:
                return IngestResult()
            return read_all(spending.book, sources, mine=mine, control=control)

        try:
            result = await self._run(work)
        except SidecarError as error:
            _set_unusable(workspace, error)
            return False
        workspace.costs.set_problem("")
        if mine:
            self._apply(workspace, known, result)
        elif result.calls:
            self._services.publish(Event("calls"))
        return result.is_complete

    async def _read_recent(
        self,
        workspace: Workspace,
        known: KnownStores,
        sources: Sources,
        read: Callable[[SessionReader], None],
    ) -> None:
        """Read stores, and show the recent sessions."""
        async with known.order:
            since = datetime.now(UTC) - RECENT
            sessions = await self._read(workspace, known, sources, read, since)
            self._set_recent(workspace, known, sessions)
        registry = self._sessions_of(workspace) if sessions else None
        model = registry.context.model if registry else None
        if registry and model is not None and self._services.windows.ready:
            await self._services.counts.load_window_and_price(model, workspace.settings)
            registry.publish()

    def _set_recent(
        self, workspace: Workspace, known: KnownStores, sessions: Collection[StoredSession]
    ) -> None:
        if known is not self.known(workspace):
            return  # the settings have changed meanwhile, so the watcher reads all again
        earlier, known.recent = known.recent, frozenset(session.id for session in sessions)
        if not earlier <= known.recent:  # a recent session is now old or deleted
            known.is_listed = False
        if earlier or sessions:
            self._sessions_of(workspace).set_agent_sessions(sessions)

    async def _read(
        self,
        workspace: Workspace,
        known: KnownStores,
        sources: Sources,
        read: Callable[[SessionReader], None],
        since: datetime | None,
    ) -> list[StoredSession]:
        """Read stores, and list sessions. If the ledger fails, keep them in memory instead."""
        if not sources.readers:
            return []  # avoids loading the ledger
        folder, spending = self._services.state.folder, self._services.spending(workspace)
        work = partial(_read_and_list, sources, folder, read, since)
        try:
            sessions, result = await self._run(partial(work, lambda: spending.book))
        except SidecarError as error:
            note = _set_unusable(workspace, error)
            if self._memory is None:
                # This import is fast, because a worker thread has already loaded the module.
                from sidecar.cost.ledger import MemoryLedger

                self._memory = MemoryLedger()
            memory = self._memory
            sessions, _ = await self._run(partial(work, lambda: memory, note))
        else:
            workspace.costs.set_problem("")
            self._apply(workspace, known, result)
        return sessions

    def _apply(self, workspace: Workspace, known: KnownStores, result: IngestResult) -> None:
        """Note what the ledger still lacks after a read, and publish new calls."""
        before = known.is_read, known.is_tried
        known.is_tried = known.is_tried or result.is_complete
        if result.is_complete:
            known.is_read = result.unread is None
        if known is self.known(workspace):  # otherwise, the settings have changed meanwhile
            workspace.costs.set_history(read=known.is_read, unread=result.unread)
        if result.has_new_costs or before != (known.is_read, known.is_tried):
            self._services.publish(Event("calls", workspace))


class _SeparateRead(NamedTuple):
    sizes: ContextSizes
    reread_at: float


class SizesReader:
    """Reads the sizes of contexts whose parts are not read together with the session.

    A large store is not read for each change. Until it is read again, the previous sizes are scaled
    to the current number of tokens.
    """

    def __init__(self, workers: Workers) -> None:
        self._run = workers.run
        self._recent: dict[tuple[str, str, str], _SeparateRead] = {}
        """What was read, by the session's source, path and ID."""
        self._reading = SharedTasks[tuple[str, str, str], _SeparateRead](
            "measuring", outlives_waiters=False
        )

    async def of(self, session: StoredSession) -> ContextSizes:
        """Return a session's sizes. They are empty if the store is unreadable or incomplete."""
        key, now = (session.source, session.path, session.id), time.monotonic()
        self._recent = {each: read for each, read in self._recent.items() if now < read.reread_at}
        known = self._recent.get(key)
        if known is None:
            known = await self._reading.run(key, partial(self._read, session))
            self._recent[key] = known
        return known.sizes

    async def _read(self, session: StoredSession) -> _SeparateRead:
        began = time.monotonic()
        sizes, end = await self._run(partial(read_sizes, session)), time.monotonic()
        return _SeparateRead(sizes, end + _REREAD_RATIO * (end - began))


def read_sizes(session: StoredSession) -> ContextSizes:
    """Read the sizes of the parts of a session's context. Blocks.

    They are empty if the store is unreadable or incomplete.
    """
    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.reader_registry import reader_of

    sizes = ContextSizes()
    try:
        reader_of(session.source).measure(session.path, session.id, sizes)
    except (OSError, msgspec.DecodeError):
        return ContextSizes()
    return sizes


def _read_and_list(
    sources: Sources,
    folder: Path,
    read: Callable[[SessionReader], None],
    since: datetime | None,
    open_book: Callable[[], CostBook | MemoryLedger],
    note: str = "",
) -> tuple[list[StoredSession], IngestResult]:
    """Read stores, and list sessions with the windows that were saved, or with a note.

    Raises LedgerError.
    """
    reader = SessionReader(sources, open_book(), since)
    read(reader)
    # Nearly all old sessions are never shown, so their names are read later.
    listed, saved = reader.sessions(with_names=since is not None), load(folder)
    sessions = [with_saved_window(one, saved) for one in listed]
    if note:
        sessions = [msgspec.structs.replace(one, note=one.note or note) for one in sessions]
    return sessions, reader.result


def _set_unusable(workspace: Workspace, error: SidecarError) -> str:
    """Note why the ledger cannot be used, what this means and what to do. Returns the note."""
    note = f"{error}; {NOT_KEPT}"
    if note != workspace.costs.problem:  # otherwise, each new line of an agent would log it again
        logger.warning("agents' sessions cannot be saved: %s", error)
    workspace.costs.set_problem(note)
    return note


class SessionReader:
    """Chooses which of a workspace's stores to read, and reads them. All methods block."""

    def __init__(
        self, sources: Sources, book: CostBook | MemoryLedger, since: datetime | None = None
    ) -> None:
        """Create a reader.

        Args:
            sources: The agents' readers and folders, and the workspace's folder.
            book: The ledger.
            since: Sessions that were updated before are old. By default, no session is.
        """
        from sidecar.agents.session_index import IngestResult, SessionIndex
        from sidecar.cost.ledger import Ledger

        ledger = book if isinstance(book, Ledger) else book.ledger
        self._sources, self._index, self._since = sources, SessionIndex(ledger), since
        self._since_ns = 0 if since is None else int(since.timestamp() * 1e9)
        self.result = IngestResult(is_complete=False)
        """What was read, and what the ledger then still lacks, if known."""

    def sessions(self, *, with_names: bool = False) -> list[StoredSession]:
        """Return the workspace's recent sessions, and the newest session of each agent."""
        since_ms = self._since_ns // 1_000_000
        return self._index.sessions(self._sources, since_ms, with_names=with_names)

    def read_newest(self) -> None:
        """Read stores, newest first, until one of the workspace's sessions is found."""
        stores = self._current_stores()
        recent = (one for one in stores if one.live and one.mtime_ns >= self._since_ns)
        for store in _newest_first(recent)[:MAX_OLD_STORES]:
            self._read([store])
            if self.sessions():
                break
        self._find_unread(stores)

    def read_recent(self) -> None:
        """Read all recently modified stores.

        If an agent has no session in these stores, also read its older stores, newest first, until
        a session is found.
        """
        stores, older = self._current_stores(), dict[str, list[Store]]()
        self._read(one for one in stores if one.mtime_ns >= self._since_ns)
        for store in _newest_first(stores):
            if store.live and store.mtime_ns < self._since_ns:
                older.setdefault(store.agent, []).append(store)
        agents = {one.source for one in self.sessions()}
        for agent, of_agent in older.items():
            for store in of_agent[:MAX_OLD_STORES]:
                if agent in agents:
                    break
                if self._read([store]):
                    agents |= {one.source for one in self.sessions()}
        self._find_unread(stores)

    def read_changed(self, changed: Collection[str]) -> None:
        """Read the stores of changed files, and drop deleted files from the index."""
        self._index.forget(changed)
        self._read(self._sources.stores_at(changed))

    def read_all(self, max_bytes: int | None = None) -> None:
        """Read every store that may contain sessions of the workspace, and drop deleted stores.

        Args:
            max_bytes: Limit for the total size of the stores with new contents.
        """
        stores = self._current_stores()
        self._read(stores, max_bytes)
        if max_bytes is None:
            self._find_unread(stores)
            self.result = self.result._replace(is_complete=True)

    def _read(self, stores: Iterable[Store], max_bytes: int | None = None) -> bool:
        """Read new contents from the given stores. Returns whether any store had new contents."""
        unread = self._index.unread(stores, max_bytes)
        if self._index.read(self._sources.readers, unread).has_new_costs:
            self.result = self.result._replace(has_new_costs=True)
        return bool(unread)

    def _find_unread(self, stores: Iterable[Store]) -> None:
        unread = self._index.find_unread(stores)
        self.result = self.result._replace(is_complete=unread is None, unread=unread)

    def _current_stores(self) -> list[Store]:
        """Return all stores that may contain sessions of the workspace. Drop deleted stores."""
        stores = self._sources.stores()
        self._index.forget_missing(self._sources.readers, stores, self._sources.roots)
        return stores


def _newest_first(stores: Iterable[Store]) -> list[Store]:
    return sorted(stores, key=lambda one: -one.mtime_ns)


class AgentSessionWatcher:
    """Decides when agents' stores are read.

    Changed files, and the newest files of open roots, are read at once. Longer reads take turns.
    """

    def __init__(
        self,
        services: SharedServices,
        agents: AgentSessions,
        scheduler: Scheduler,
        watcher: FileWatcher,
        show_progress: ShowProgress,
    ) -> None:
        self._services, self._agents, self._scheduler = services, agents, scheduler
        self._followed, self._show_progress = FollowedPaths(watcher), show_progress
        self._changed: WeakKeyDictionary[Workspace, Changes] = WeakKeyDictionary()
        """The files to read, keyed by workspace, or an empty set if only settings have changed."""
        self._nothing_changed = asyncio.Event()
        """Set while no changed files need to be read."""
        self._turn = asyncio.Lock()
        self._stop = threading.Event()
        """Stops the long read that is running."""
        self._is_background = False
        """Whether no request waits for the long read that is running."""
        self._waiting_requests = 0
        """The number of requests that wait for their turn."""
        self._is_machine_read = False
        """Whether the stores of all workspaces have been read, also of those that are not open."""
        self._edited_at = 0.0

    def on_event(self, event: Event) -> None:
        """If settings have changed, show sessions with these settings, and watch their files."""
        if event.what == "document":
            self._edited_at = asyncio.get_running_loop().time()
        elif event.what == "settings":
            self._is_machine_read = False
            for workspace in self._services.roots:
                workspace.costs.set_history(read=self._agents.known(workspace).is_read)
            for workspace in self._workspaces():
                self._read_soon(workspace, frozenset())
            self._scheduler.schedule(("idle",), IDLE_SECONDS, self._read_when_idle)
            self._watch()

    def close(self) -> None:
        """Stop reading. The next process continues where this one stopped."""
        self._stop.set()

    def read_all(self) -> None:
        """Start reading the recent sessions in all workspaces."""
        for workspace in self._workspaces():
            self._read_soon(workspace, None)

    async def wait_until_read(self, timeout_seconds: float) -> None:
        """Wait until all changed files have been read, or until the timeout."""
        if self._changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nothing_changed.wait(), timeout_seconds)

    async def ensure_all_read(
        self, workspace: Workspace, report: Callable[[str, float], None] = lambda *_: None
    ) -> None:
        """Record all calls in a workspace's stores, then those of other workspaces later."""
        if workspace.path is None:
            return
        if not self._agents.known(workspace).is_read:
            async with self._wait_for_turn(is_background=False) as stop:
                progress = partial(report, "reading session files")
                await self._agents.read_calls(workspace, stop, progress)
        if not self._is_machine_read and self._agents.known(workspace).is_tried:
            self._scheduler.schedule(("history",), 0.0, partial(self._read_machine, workspace))

    def _workspaces(self) -> list[Workspace]:
        roots = self._services.roots
        return [root for root in roots if root.path is not None and root.has_settings]

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

    def _read_soon(self, workspace: Workspace, paths: Changes) -> None:
        self._nothing_changed.clear()
        earlier = self._changed.get(workspace, frozenset())
        self._changed[workspace] = None if paths is None or earlier is None else earlier | paths
        self._scheduler.schedule(("agents", workspace), 0.0, partial(self._read, workspace))

    async def _read(self, workspace: Workspace) -> None:
        """Read a workspace's changed files, and later those that have not been read yet."""
        try:
            changed = self._changed.pop(workspace, frozenset())
            if changed is None:
                await self._agents.find_sessions(workspace)
            else:
                await self._agents.read_changed(workspace, changed)
        finally:
            if not self._changed:
                self._nothing_changed.set()
        known = self._agents.known(workspace)
        if known.sources is not None and known.sources.readers and not known.is_read:
            rest = partial(self._read_rest, workspace)
            self._scheduler.schedule(("costs", workspace), SHOWN_SECONDS, rest)

    async def _read_rest(self, workspace: Workspace) -> None:
        """Record the calls in the workspace's other stores."""
        async with self._wait_for_turn(is_background=True) as stop:
            if not self._agents.known(workspace).is_read:
                await self._agents.read_calls(workspace, stop, pause_ratio=PAUSE_RATIO)
        if not self._agents.known(workspace).is_tried and workspace.settings.agents.enabled:
            # Another process is reading the stores, or a request has interrupted this task.
            rest = partial(self._read_rest, workspace)
            self._scheduler.schedule(("costs", workspace), RETRY_SECONDS, rest)

    async def _read_when_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._edited_at + IDLE_SECONDS - loop.time()
        if self._edited_at and left > 0:
            self._scheduler.schedule(("idle",), left, self._read_when_idle)
            return
        for workspace in self._workspaces():
            await self.ensure_all_read(workspace)

    async def _read_machine(self, workspace: Workspace) -> None:
        """Record the calls of all workspaces, by the agent settings of one."""
        async with (
            self._wait_for_turn(is_background=True) as stop,
            self._show_progress("Reading agents' sessions", stop) as report,
        ):
            progress = partial(report, "recording calls")
            self._is_machine_read = await self._agents.read_calls(
                workspace, stop, progress, mine=False, pause_ratio=PAUSE_RATIO
            )

    @asynccontextmanager
    async def _wait_for_turn(self, *, is_background: bool) -> AsyncIterator[threading.Event]:
        """Wait until no other long read is running. A request stops those in the background.

        Yields an event that stops this read.
        """
        if self._is_background and not is_background:
            self._stop.set()
        self._waiting_requests += not is_background
        try:
            await self._turn.acquire()
        finally:
            self._waiting_requests -= not is_background
        try:
            stop = self._stop = threading.Event()
            self._is_background = is_background
            if is_background and self._waiting_requests:
                stop.set()  # this read began to wait before the request
            try:
                yield stop
            except asyncio.CancelledError:
                stop.set()
                raise
            finally:
                self._is_background = False
            await self._services.workers.run(release_memory)
        finally:
            self._turn.release()


def _paths_to_watch(roots: list[tuple[Agents, str]]) -> set[str]:
    return {path for settings, root in roots for path in paths_to_watch(settings, [root])}
