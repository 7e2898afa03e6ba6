"""Handles `cost/*` requests on worker threads, with progress and cancellation."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.errors import SidecarError
from sidecar.server.progress import progress
from sidecar.server.protocol import Encoded
from sidecar.workspace.views import NO_COST
from sidecar.workspace.workspace import path_of

if TYPE_CHECKING:
    from sidecar.config.settings import Team
    from sidecar.cost.protocol import (
        CostDetailParams,
        CostFilesParams,
        CostPageParams,
        CostRecorded,
        CostRecordParams,
        CostReport,
        FileCost,
    )
    from sidecar.server.server import SidecarServer
    from sidecar.text.pages import Page
    from sidecar.workspace.workspace import Workspace

NO_TEAM = "The team's store contains no matching calls."
INCOMPLETE = "Agents' session files are still being read, so this report is incomplete."

MAIN = "main"
"""The category of calls made directly by a conversation."""


async def describe_prompt_file_cost(server: SidecarServer, uri: str) -> str:
    """Describe a prompt file's recorded cost. Returns "" for other files."""
    services, path = server.services, path_of(uri)
    workspace = services.roots.of_document(uri)
    if path is None or workspace.path is None:
        return ""
    from sidecar.cost.protocol import CostFilesParams
    from sidecar.workspace.prompt_files import file_costs, is_prompt_file

    if not is_prompt_file(workspace, Path(path)):
        return ""
    try:
        rows = await file_costs(services, workspace, CostFilesParams(uris=[uri]))
    except SidecarError:  # the error is shown in cost reports
        return ""
    return rows[0].text if rows else ""


def _read_team(team: Team, params: CostDetailParams) -> CostReport:
    from sidecar.cost.team import TeamStore

    with TeamStore(team) as store:
        costs = store.report(params)
    return costs if costs.rows else msgspec.structs.replace(costs, text=NO_TEAM, overview=NO_TEAM)


async def _team_detail(server: SidecarServer, params: CostDetailParams) -> CostReport:
    from sidecar.cost.team import TeamStoreError

    workspace = server.services.find_workspace_or_first(params.workspace)
    team = workspace.settings.team
    try:
        costs = await server.services.workers.run(partial(_read_team, team, params))
    except TeamStoreError as error:
        if team.store is None or not error.is_unreachable:
            raise
        outage = server.team_spending.begin_outage(workspace, error)
        raise TeamStoreError(f"Team store {outage.text}") from None
    server.team_spending.end_outage(workspace)
    return costs


def _note(workspace: Workspace) -> str:
    if workspace.costs.read or workspace.path is None:
        return ""
    return workspace.costs.problem or INCOMPLETE


def register(server: SidecarServer) -> None:
    services = server.services

    async def record(params: CostRecordParams) -> CostRecorded:
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

    async def detail(params: CostDetailParams) -> CostReport | Encoded:
        await services.configured.wait()
        if params.scope == "team":
            return await _team_detail(server, params)
        workspace = services.workspace(params.workspace)
        stop, spending = threading.Event(), services.spending(workspace)
        async with progress(server, "Cost report") as report:

            def work(note: str) -> Encoded:
                costs = spending.detail(params, stop.is_set)
                if not costs.rows:
                    text = workspace.costs.problem or NO_COST
                    costs = msgspec.structs.replace(costs, text=text, overview=text)
                notes = " ".join(filter(None, (note, costs.note)))
                return Encoded.of(msgspec.structs.replace(costs, note=notes))

            await server.history.ensure_recorded(workspace, report)
            try:
                return await services.workers.run(partial(work, _note(workspace)))
            except asyncio.CancelledError:
                stop.set()
                raise

    async def page(params: CostPageParams) -> Page:
        from sidecar.workspace.cost_page import cost_page

        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        async with progress(server, "Cost report") as report:
            await server.history.ensure_recorded(workspace, report)
            await services.agents.ensure_older_sessions(workspace)
            return await cost_page(services, workspace, params, _note(workspace))

    async def files(params: CostFilesParams) -> list[FileCost]:
        from sidecar.workspace.prompt_files import file_costs

        await services.configured.wait()
        workspace = services.workspace(params.workspace)
        async with progress(server, "Prompt file costs") as report:
            await server.history.ensure_recorded(workspace, report)
            return await file_costs(services, workspace, params)

    server.protocol.custom["cost/files"] = files
    server.protocol.custom["cost/record"] = record
    server.protocol.custom["cost/detail"] = detail
    server.protocol.custom["cost/page"] = page
