"""Handles `cost/*` requests on worker threads, with progress and cancellation."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sidecar.config.settings import Team
from sidecar.server.client import Client, progress
from sidecar.server.feature import Feature
from sidecar.server.protocol import Encoded
from sidecar.tasks import Scheduler
from sidecar.text.printable import local_time_text
from sidecar.workspace.agent_sessions import AgentSessionWatcher
from sidecar.workspace.services import Services
from sidecar.workspace.views import NO_COST
from sidecar.workspace.workspace import Workspace

if TYPE_CHECKING:
    from sidecar.cost.cost_protocol import (
        CostDetailParams,
        CostFilesParams,
        CostPageParams,
        CostRecorded,
        CostRecordParams,
        CostReport,
        FileCost,
    )
    from sidecar.text.pages import Page
    from sidecar.workspace.spending import Spending

NO_TEAM = "The team's store contains no matching calls."
INCOMPLETE = "Agents' session files are still being read, so this report is incomplete."
INCOMPLETE_BEFORE = "Agents' session files are still being read: calls before {} may be missing."

MAIN = "main"
"""The category of calls made directly by a conversation."""


def _read_team(team: Team, spending: Spending, params: CostDetailParams) -> CostReport:
    from sidecar.cost.team import TeamStore

    with TeamStore(team, spending.book.prices) as store:
        costs = store.report(params)
    return costs if costs.rows else msgspec.structs.replace(costs, text=NO_TEAM, overview=NO_TEAM)


def _note(workspace: Workspace) -> str:
    if workspace.costs.read or workspace.path is None:
        return ""
    if workspace.costs.problem or workspace.costs.unread is None:
        return workspace.costs.problem or INCOMPLETE
    return INCOMPLETE_BEFORE.format(local_time_text(workspace.costs.unread.before))


class CostRequests(Feature):
    """Handles `cost/*`."""

    def __init__(
        self,
        services: Services,
        client: Client,
        scheduler: Scheduler,
        agent_sessions: AgentSessionWatcher,
    ) -> None:
        self._services, self._agent_sessions = services, agent_sessions
        self._progress = partial(progress, client, scheduler)
        self.handlers = {
            "cost/record": self._record,
            "cost/detail": self._detail,
            "cost/page": self._page,
            "cost/files": self._files,
        }

    async def _record(self, params: CostRecordParams) -> CostRecorded:
        services = self._services
        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        sessions = services.known_sessions(workspace)
        session = sessions.id_to_bill(params.session) if sessions else params.session
        estimate = params.estimated_tokens
        if estimate is None and sessions and session and params.category == MAIN:
            await services.conversations(workspace).recount(session)
            estimate = sessions.sent_estimate(session)
        completed = msgspec.structs.replace(params, session=session, estimated_tokens=estimate)
        record = partial(services.spending(workspace).record, completed)
        recorded, spent = await services.workers.run(record)
        services.update_costs(workspace, spent)
        return recorded

    async def _detail(self, params: CostDetailParams) -> CostReport | Encoded:
        services = self._services
        await services.configured.wait()
        if params.scope == "team":
            return await self._team_detail(params)
        workspace = services.workspace(params.workspace)
        stop, spending = threading.Event(), services.spending(workspace)
        async with self._progress("Cost report") as report:

            def work(note: str) -> Encoded:
                costs = spending.detail(params, stop.is_set)
                if not costs.rows:
                    text = workspace.costs.problem or NO_COST
                    costs = msgspec.structs.replace(costs, text=text, overview=text)
                notes = " ".join(filter(None, (note, costs.note)))
                return Encoded.of(msgspec.structs.replace(costs, note=notes))

            await self._agent_sessions.ensure_all_read(workspace, report)
            try:
                return await services.workers.run(partial(work, _note(workspace)))
            except asyncio.CancelledError:
                stop.set()
                raise

    async def _team_detail(self, params: CostDetailParams) -> CostReport:
        from sidecar.cost.team import TeamStoreError

        workspace = self._services.find_workspace_or_first(params.workspace)
        team, spending = workspace.settings.team, self._services.spending(workspace)
        try:
            costs = await self._services.workers.run(partial(_read_team, team, spending, params))
        except TeamStoreError as error:
            if team.store is None or not error.is_unreachable:
                raise
            outage = self._services.begin_team_outage(workspace, error)
            raise TeamStoreError(f"Team store {outage.text}") from None
        self._services.end_team_outage(workspace)
        return costs

    async def _page(self, params: CostPageParams) -> Page:
        from sidecar.workspace.cost_panel import cost_page

        services = self._services
        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        async with self._progress("Cost report") as report:
            await self._agent_sessions.ensure_all_read(workspace, report)
            await services.agents.ensure_older_sessions(workspace)
            return await cost_page(services, workspace, params, _note(workspace))

    async def _files(self, params: CostFilesParams) -> list[FileCost]:
        from sidecar.workspace.prompt_files import file_costs

        await self._services.configured.wait()
        workspace = self._services.workspace(params.workspace)
        async with self._progress("Prompt file costs") as report:
            await self._agent_sessions.ensure_all_read(workspace, report)
            return await file_costs(self._services, workspace, params)
