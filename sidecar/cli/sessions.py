"""The sessions of one workspace for the command line: by the same rooms as the editor's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sidecar.budget.rules import Rules
from sidecar.config.load import load
from sidecar.context.usage import ContextUsage
from sidecar.cost.params import CostFilesParams
from sidecar.models import catalogue
from sidecar.workspace.services import Services

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.context.usage import SessionRow
    from sidecar.cost.params import FileCost
    from sidecar.workspace.workspace import Workspace


class SessionsView:
    """A workspace opened to look at its sessions; what is unchanged is not read again."""

    def __init__(self, root: Path) -> None:
        self.services = Services()
        self._runner = asyncio.Runner()
        self.workspace: Workspace = self.services.roots.add(root.as_uri())
        loaded = load(root)
        self.workspace.take(loaded, Rules(loaded.settings))
        self.services.configured.set()

    def usage(self, session: str | None = None) -> ContextUsage:
        """How full the session's context is; of the current one by default."""
        return self._runner.run(self._usage(session))

    def rows(self) -> list[SessionRow]:
        """All sessions, newest first."""
        return self._runner.run(self._rows())

    def files(self, since: str | None) -> list[FileCost]:
        """What the prompt files have cost."""
        from sidecar.workspace.prompt_costs import file_costs

        params = CostFilesParams(since=since)
        return self._runner.run(file_costs(self.services, self.workspace, params))

    def __enter__(self) -> SessionsView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of threads and files."""
        self._runner.run(self.services.aclose())
        self.services.workers.close()
        self._runner.close()

    async def _usage(self, session: str | None) -> ContextUsage:
        await self._look()
        changes = self.services.changes(self.workspace)
        found = await changes.look(session)
        if found is None:
            return ContextUsage()
        await changes.know(changes.sessions.usage(found).model or self.workspace.model)
        return changes.sessions.usage(found)

    async def _rows(self) -> list[SessionRow]:
        await self._look()
        changes = self.services.changes(self.workspace)
        await changes.restore()
        return changes.sessions.rows(await self.services.agents.every(self.workspace))

    async def _look(self) -> None:
        run, workspace = self.services.workers.run, self.workspace
        await run(catalogue.warm)
        await self.services.agents.look(workspace)
        workspace.costs.take(await run(self.services.spending(workspace).recall))
