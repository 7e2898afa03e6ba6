"""Opens a workspace's sessions for commands that show them, their costs or their names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_index import SessionIndex
from sidecar.budgets.budget_rules import Rules
from sidecar.config.load import load
from sidecar.config.settings import Agents
from sidecar.conversations.context_protocol import ContextUsage, SessionRow
from sidecar.cost.context_costs import SpendingSums
from sidecar.cost.cost_protocol import CostFilesParams, FileCost
from sidecar.cost.export import named_files
from sidecar.cost.ledger import Ledger
from sidecar.cost.repricing import price_calls
from sidecar.errors import BadParamsError, SidecarError
from sidecar.models import catalogue
from sidecar.tasks import wait_or_fall_back
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import label_of
from sidecar.workspace.state_folder import read_shared_conversations
from sidecar.workspace.usage_details import add_details
from sidecar.workspace.views import add_view_to_usage, session_rows
from sidecar.workspace.workspace import Workspace

MAX_UNREAD_BYTES = 64 << 20
"""Maximum number of bytes of new session data that `usage` reads. `cost` and editors have no limit.
"""
_MAX_LISTED = 10


def labels_in_folders(ledger: Ledger, settings: Agents, folders: Iterable[Path]) -> dict[str, str]:
    """Return the labels of the agents' sessions in these folders, keyed by session id.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    sources = Sources.of(settings, *map(str, folders))
    found = [] if sources is None else SessionIndex(ledger).sessions(sources)
    return {session.id: label_of(session) for session in found}


class SessionsView:
    """The sessions of a workspace, as shown by commands."""

    def __init__(
        self, root: Path, read_seconds: float = 0.0, also: Sequence[Path] | None = None
    ) -> None:
        """Open a workspace's sessions.

        Args:
            root: The workspace's folder.
            read_seconds: How long each look at the sessions may read new calls of agents.
            also: Ledgers and exports whose calls are added to the costs, with those that the
                settings name (`ledger.also`). None adds no calls.
        """
        self._read_seconds = read_seconds
        self.services = Services()
        self._runner = asyncio.Runner()
        self.workspace: Workspace = self.services.roots.add(root.as_uri())
        loaded = load(root)
        self.problems = loaded.problems
        self.workspace.apply_settings(loaded, Rules(loaded.settings))
        self.workspace.costs.stop_reading()
        self.services.configured.set()
        self._others = [] if also is None else named_files(also, loaded.settings.ledger)

    def usage(self, session: str | None = None) -> ContextUsage:
        """Return a session's context usage. The default is the session that the status shows.

        Raises:
            BadParamsError: There is no such session, or several sessions match.
        """
        return self._runner.run(self._read_usage(session))

    def rows(self) -> list[SessionRow]:
        """Return all sessions, newest first."""
        return self._runner.run(self._read_rows())

    def labels(self) -> dict[str, str]:
        """Return the labels of all sessions, keyed by session id."""
        return {row.id: row.label for row in self.rows()}

    def files(
        self, since: str | None, until: str | None = None, *, reported: Iterable[str] | None = None
    ) -> list[FileCost]:
        """Return the costs of the workspace's prompt files. For `reported`, see `file_costs`."""
        from sidecar.workspace.prompt_files import file_costs

        params = CostFilesParams(since=since, until=until)
        costs = file_costs(self.services, self.workspace, params, reported=reported)
        return self._runner.run(costs)

    def __enter__(self) -> SessionsView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self.services.aclose())
        self.services.workers.close()
        self._runner.close()

    async def _read_usage(self, session: str | None) -> ContextUsage:
        await self._refresh()
        conversations, costs = self.services.conversations(self.workspace), self.workspace.costs
        found = await conversations.find_counted(await self._complete_id(session))
        if found is None:
            return add_view_to_usage(None, costs)
        if session is not None:  # the caps of this session apply, not those of the shown one
            await self._update_costs(found.id)
        await conversations.look_up_window(
            conversations.sessions.usage(found).model or self.workspace.model
        )
        usage = conversations.sessions.usage(found)
        usage = await add_details(self.services, self.workspace, found, usage)
        return add_view_to_usage(usage, costs)

    async def _complete_id(self, session: str | None) -> str | None:
        conversations = self.services.conversations(self.workspace)
        if session is None or await conversations.find_counted(session) is not None:
            return session
        rows = await self._list_rows()
        ids = sorted({row.id for row in rows if row.id.startswith(session)})
        if len(ids) > 1:
            listed = ", ".join(ids[:_MAX_LISTED])
            raise BadParamsError(f"{len(ids):,} sessions begin with {session}: {listed}")
        named = [row for row in rows if session.casefold() in row.label.casefold()]
        if not ids and len(named) > 1:
            listed = ", ".join(f"{row.label} ({row.id})" for row in named[:_MAX_LISTED])
            raise BadParamsError(f"{len(named):,} sessions match {session}: {listed}")
        ids = ids or [row.id for row in named]
        if not ids:
            raise BadParamsError(
                f"this workspace has no session {session}; `token-sidecar usage --all` lists its "
                "sessions"
            )
        return ids[0]

    async def _read_rows(self) -> list[SessionRow]:
        await self._refresh()
        return session_rows(await self._list_rows(), self.workspace.costs)

    async def _list_rows(self) -> list[SessionRow]:
        conversations = self.services.conversations(self.workspace)
        await conversations.restore()
        await self.services.agents.find_all_sessions(self.workspace, MAX_UNREAD_BYTES)
        return conversations.sessions.rows(every=True)

    async def _refresh(self) -> None:
        run, workspace = self.services.workers.run, self.workspace
        await run(catalogue.current)
        # Another process may have changed the saved conversations, so load them again.
        self.services.forget_conversations(workspace)
        agents = self.services.agents
        await agents.find_sessions(workspace)
        uri = workspace.uri or ""
        live = await run(
            partial(read_shared_conversations, self.services.shared_conversations.folder, uri)
        )
        self.services.sessions(workspace).set_remote_conversations(live)
        spending = self.services.spending(workspace)
        shown = self.services.sessions(workspace).find(None)
        if self._read_seconds:
            if not agents.known(workspace).is_read:
                await self._run_briefly(partial(agents.read_calls, workspace))
            with suppress(SidecarError):  # `token-sidecar cost` reports this error
                price = partial(price_calls, spending.book.ledger)
                await self._run_briefly(lambda stop: run(partial(price, stop)))
        await self._update_costs(shown.id if shown else "")

    async def _update_costs(self, session: str) -> None:
        services, workspace = self.services, self.workspace
        sums = await services.workers.run(partial(self._read_sums, session))
        services.update_costs(workspace, sums)

    def _read_sums(self, session: str) -> SpendingSums | None:
        spending = self.services.spending(self.workspace)
        if not self._others:
            return spending.stored_sums(session)
        with spending.merged_with(self._others):
            return spending.spent(session, every=True)

    async def _run_briefly(self, work: Callable[[threading.Event], Awaitable[object]]) -> None:
        """Run work for a limited time, and then set the event that stops it."""
        stop = threading.Event()
        try:
            await wait_or_fall_back(work(stop), stop.set, self._read_seconds)
        finally:
            stop.set()
