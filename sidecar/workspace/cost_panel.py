"""The workspace's cost report as a page."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from sidecar.cost.cost_page import Choice, LedgerSource, panel, period_start
from sidecar.cost.cost_protocol import CostFilesParams, CostPageParams
from sidecar.cost.repricing import pending_note
from sidecar.workspace.prompt_files import file_costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.cost.cost_protocol import FileCost
    from sidecar.text.pages import Page
    from sidecar.workspace.services import Services
    from sidecar.workspace.sessions import SessionsSnapshot
    from sidecar.workspace.spending import Spending
    from sidecar.workspace.workspace import Workspace


async def cost_page(
    services: Services, workspace: Workspace, params: CostPageParams, note: str = ""
) -> Page:
    """Return the workspace's cost report as a page.

    Args:
        services: The server's services.
        workspace: The workspace.
        params: The period to report and how to group the calls.
        note: A note shown above the report.

    Raises:
        BadParamsError: A date is invalid.
        LedgerError: The ledger cannot be read.
    """
    choice = Choice(params.period, params.by, params.since or "", params.until or "")
    files: Sequence[FileCost] = ()
    if params.by == "file":
        since = period_start(choice, datetime.now().astimezone().date()) or "1970-01-01"
        end = (choice.until or None) if choice.period == "custom" else None
        times = CostFilesParams(since=since, until=end)
        files = await file_costs(services, workspace, times)
    work = partial(
        _read_page,
        services.spending(workspace),
        choice,
        files,
        services.sessions(workspace).snapshot(every=True),
        note,
    )
    return await services.workers.run(work)


def _read_page(
    spending: Spending,
    choice: Choice,
    files: Sequence[FileCost],
    sessions: SessionsSnapshot,
    note: str,
) -> Page:
    book = spending.book
    with book.report_reader() as connection:
        now = datetime.now(UTC)
        source = LedgerSource(
            connection=connection,
            prices=book.prices,
            scope=spending.scope(),
            now=now,
            label_of=sessions.label,
            note=" ".join(filter(None, (note, pending_note(connection)))),
        )
        return panel(source, choice, files)
