"""The agents' past calls, brought into the ledger: when costs are asked for, or nobody types.

The workspace asked about comes first; the rest follows at low priority, with a progress that can
be cancelled. From then on what is appended is kept as it comes. Where an agent's session is shown,
what its workspace's sessions cost is read unasked: the status has its place for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sidecar.config.paths import LEDGER_FILES
from sidecar.config.settings import AGENTS
from sidecar.errors import SidecarError
from sidecar.server.progress import progress
from sidecar.workspace.memory import give_back

if TYPE_CHECKING:
    from sidecar.config.settings import Agents
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.file_watcher import Subscription
    from sidecar.workspace.session_index import Ingested
    from sidecar.workspace.spending import Spending
    from sidecar.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""How long nobody edits before history is read unasked."""
SHOWN_SECONDS = 2.0
"""How long after an agent's session was shown its costs are read: its size comes first."""
AGAIN_SECONDS = 60.0
"""When it is tried again, where another process reads the same."""
SUM_SECONDS = 0.5
"""How long after lines were appended, or the ledger was written, costs are summed up."""
REST = 1.0
"""Seconds of rest for each second of reading what nobody waits for."""


class History:
    """What of the agents' files is in the ledger. For the event loop."""

    def __init__(self, server: SidecarServer) -> None:
        self._server, self._services = server, server.services
        self._order = asyncio.Lock()
        self._stop = threading.Event()
        self._resting = False
        self._known: WeakKeyDictionary[Workspace, Agents] = WeakKeyDictionary()
        """Whose sessions were read, and by which settings."""
        self._summed: WeakKeyDictionary[Workspace, str] = WeakKeyDictionary()
        """The session that was shown when costs were last summed up."""
        self._complete = False
        self._watch: Subscription | None = None
        self._edited_at = 0.0

    def note_edit(self) -> None:
        """Put off reading unasked until nothing is edited for a while."""
        self._edited_at = asyncio.get_running_loop().time()

    def settings_changed(self) -> None:
        """Read history by the new settings, once nothing is edited."""
        self._complete = False
        for workspace in self._services.roots:
            workspace.costs.note_history(read=self._is_known(workspace))
        self._server.scheduler.soon(("idle",), IDLE_SECONDS, self._idle)

    def context_changed(self, workspace: Workspace) -> None:
        """Read the costs of an agent's session that is shown; sum them up if another one was."""
        usage = workspace.context.usage
        if usage is None or usage.session is None or usage.session.source == "protocol":
            return
        self.read_soon(workspace)
        shown, is_recorded = usage.session.id, usage.session.source in self.billed(workspace)
        if is_recorded and shown != self._summed.get(workspace, shown):
            self.sum_soon(workspace)

    def read_soon(self, workspace: Workspace) -> None:
        """Have the costs of a workspace's sessions read soon, at low priority: they are shown."""
        if workspace.path is not None and not self._is_known(workspace):
            work = partial(self._read_costs, workspace)
            self._server.scheduler.soon(("costs", workspace), SHOWN_SECONDS, work)

    def close(self) -> None:
        """Stop reading; the next process goes on there."""
        self._stop.set()

    async def known(
        self,
        workspace: Workspace,
        report: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """Have the calls of a workspace's sessions in the ledger, for as far as they can be."""
        if workspace.path is None:
            return
        if not self._is_known(workspace):
            await self._read(workspace, partial(report, "reading session files"))
        if not self._complete and self._is_known(workspace):
            self._server.scheduler.soon(("history",), 0.0, self._rest)

    async def _read_costs(self, workspace: Workspace) -> None:
        if not self._is_known(workspace):
            await self._read(workspace, lambda _: None, rest=REST)
        if not self._is_known(workspace) and workspace.settings.agents.enabled:
            # Another process reads them, or whoever asked for costs has stopped this.
            work = partial(self._read_costs, workspace)
            self._server.scheduler.soon(("costs", workspace), AGAIN_SECONDS, work)

    async def _read(
        self, workspace: Workspace, share: Callable[[float], None], *, rest: float = 0.0
    ) -> None:
        """Read the workspace's sessions; what rests meanwhile is stopped by what does not."""
        if self._resting and not rest:
            self._stop.set()  # whoever waits comes first
        async with self._order:
            settings, stop = workspace.settings.agents, threading.Event()
            self._stop, self._resting = stop, rest > 0
            try:
                if (await self._ingest(workspace, stop, share, mine=True, rest=rest)).is_complete:
                    self._known[workspace] = settings
                    workspace.costs.note_history(read=True)
                    await self._read_missed(workspace)
            except asyncio.CancelledError:
                stop.set()
                raise
            finally:
                self._resting = False
        if self._is_known(workspace):  # what nobody has read yet would be told as $0.00
            await self.refresh(workspace)

    def billed(self, workspace: Workspace) -> frozenset[str]:
        """The agents of which every call is recorded as it comes.

        All, once there was reason to read any; those that may delete calls themselves at once.
        """
        from sidecar.agents.registry import DELETING_AGENTS

        return frozenset(AGENTS) if self._is_known(workspace) else DELETING_AGENTS

    async def _read_missed(self, workspace: Workspace) -> None:
        """Keep what was appended to files after they had been read."""
        from sidecar.workspace.history import ingest_missed

        agents, book = self._services.agents, self._services.spending(workspace).book
        sources = agents.seen_by(workspace) or await agents.sources(workspace)
        if sources is None:
            return
        try:
            await self._services.workers.run(partial(ingest_missed, book, sources))
        except SidecarError as exc:
            logger.warning("session files: %s", exc)

    def sum_soon(self, workspace: Workspace) -> None:
        """Sum up the workspace's costs soon: an agent appends several lines at a time."""
        work = partial(self.refresh, workspace)
        self._server.scheduler.soon(("spent", workspace), SUM_SECONDS, work)

    def _is_known(self, workspace: Workspace) -> bool:
        return self._known.get(workspace) == workspace.settings.agents

    async def refresh(self, workspace: Workspace) -> None:
        """Read the costs of all sessions of the workspace again, and publish them."""
        usage = workspace.context.usage
        session = usage.session.id if usage and usage.session else ""
        self._summed[workspace] = session
        spending = self._services.spending(workspace)
        try:
            spent = await self._services.workers.run(partial(spending.spent, session, every=True))
        except SidecarError:  # a request for costs reports it
            return
        self._services.show_spent(workspace, spent)

    def watch_ledger(self) -> None:
        """Follow what any process records: all servers show it."""
        if self._watch is None:
            folder = self._services.state.folder
            paths = tuple(str(folder / name) for name in LEDGER_FILES)
            self._watch = self._server.watch(lambda: paths, self._ledger_written, math.inf)

    def _ledger_written(self, _changes: object) -> None:
        """Have what other processes have recorded shown soon."""
        self._server.scheduler.soon(("ledger",), SUM_SECONDS, self._refresh_changed)

    async def _refresh_changed(self) -> None:
        """Read all sums again where another process has written to the ledger."""
        if not self._services.windows.ready:
            return  # `Services.load_prices` reads all sums once prices are loaded
        spendings = [self._services.spending(workspace) for workspace in self._services.roots]
        try:
            changed = await self._services.workers.run(partial(_is_written, spendings))
        except SidecarError:  # a request for costs reports it
            return
        for workspace in tuple(self._services.roots) if changed else ():
            await self.refresh(workspace)

    async def _idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._edited_at + IDLE_SECONDS - loop.time()
        if self._edited_at and left > 0:
            self._server.scheduler.soon(("idle",), left, self._idle)
            return
        for workspace in self._services.roots:
            await self.known(workspace)

    async def _rest(self) -> None:
        """All other sessions of this machine, a little at a time."""
        workspace = next((one for one in self._services.roots if one in self._known), None)
        if workspace is None:
            return
        async with self._order:
            stop = self._stop = threading.Event()
            self._resting = True
            try:
                async with progress(self._server, "Reading agents' sessions", stop) as report:
                    share = partial(report, "what calls have cost")
                    done = await self._ingest(workspace, stop, share, mine=False, rest=REST)
            finally:
                self._resting = False
        self._complete = done.is_complete
        if done.calls:
            for each in list(self._known):
                await self.refresh(each)

    async def _ingest(
        self,
        workspace: Workspace,
        stop: threading.Event,
        share: Callable[[float], None],
        *,
        mine: bool,
        rest: float,
    ) -> Ingested:
        await self._services.configured.wait()
        sources = await self._services.agents.sources(workspace)
        from sidecar.workspace.history import ingest_all
        from sidecar.workspace.session_index import Ingested

        if sources is None:
            return Ingested()
        book = self._services.spending(workspace).book
        work = partial(
            ingest_all, book, sources, mine=mine, stop=stop, rest=rest, progress=share
        )  # fmt: skip
        try:
            done = await self._services.workers.run(work)
        except SidecarError as exc:
            logger.warning("session files: %s", exc)
            return Ingested(is_complete=False)
        await self._services.workers.run(give_back)
        return done


def _is_written(spendings: list[Spending]) -> bool:
    """Whether the ledger was written elsewhere since the last call. Raises LedgerError."""
    ledgers = {spending.book.ledger for spending in spendings}
    changed = [ledger.changed_elsewhere() for ledger in ledgers]  # each is asked
    return any(changed)
