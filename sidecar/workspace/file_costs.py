"""What a workspace's prompt files have cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sidecar.cost.cost_protocol import CostFilesParams, FileCost
from sidecar.cost.prompt_file_costs import CallGroup, PromptFileCost, prompt_file_cost
from sidecar.counting.count_result import Count, method_mark, tokens_text
from sidecar.counting.open_documents import Snapshot
from sidecar.errors import SidecarError
from sidecar.text.printable import cost_text, counted, percent_text, printable

if TYPE_CHECKING:
    from sidecar.cost.records import Identity, ShippedRecord
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

from sidecar.project.prompt_files import PromptFile, is_prompt_file, prompt_files, public_names

DAYS = 30


async def file_costs(
    services: Services,
    workspace: Workspace,
    params: CostFilesParams,
    *,
    reported: Iterable[str] | None = None,
) -> list[FileCost]:
    """Return each prompt file's cost in a workspace, most expensive first.

    Args:
        services: The shared services.
        workspace: The workspace.
        params: The files and the time range.
        reported: The URIs of all workspaces, if each workspace is reported to a collector
            separately. Calls in other worktrees are then excluded. For the user's own files,
            calls in nested workspaces are excluded as well.

    Raises:
        BadParamsError: A time is invalid.
        LedgerError: The ledger cannot be read.
    """
    if workspace.path is None:
        return []
    run = services.workers.run
    files = await run(partial(_read_prompt_files, workspace, params.uris))
    since = params.since or (datetime.now().astimezone() - timedelta(days=DAYS)).date().isoformat()
    spending = services.spending(workspace)
    used = await run(partial(spending.count_calls_by_agent_and_model, since, params.until))
    models = [_most_called_model(file, used) or workspace.budget_model for file in files]
    counts = [
        await _count_file(services, workspace, file, model)
        for file, model in zip(files, models, strict=True)
    ]
    sizes = [count.tokens for count in counts if count is not None]
    calls = partial(spending.prompt_file_calls, since, params.until, sizes)
    read = partial(calls, with_worktrees=reported is None)
    below = f"{(workspace.uri or '').rstrip('/')}/"
    nested = [uri for uri in reported or () if uri.startswith(below)]
    groups = await run(read)
    own_groups = await run(partial(read, without=nested)) if nested else groups
    span = f"since {params.since}" if params.since else f"in {DAYS} days"
    if params.until:
        span = f"from {since} to {params.until}"
    rows = [
        _make_row(file, count, own_groups if file.is_own else groups, span)
        for file, count in zip(files, counts, strict=True)
    ]
    return sorted(rows, key=lambda row: (-(row.cost_usd or 0.0), row.uri))


def file_records(files: Iterable[FileCost], root: str, identity: Identity) -> list[ShippedRecord]:
    """Convert prompt file costs to records for a collector. The records contain no paths.

    Args:
        files: The files' costs. Files that were never sent are skipped.
        root: The workspace's URI.
        identity: The identity to include in the records.
    """
    from sidecar.cost.records import file_record

    records = []
    for file in files:
        name = unquote(file.uri).rpartition("/")[2]
        if file.requests:
            public = name if name in public_names() else ""
            records.append(file_record(file, public, root, time.time_ns(), identity))
    return records


async def describe_prompt_file_cost(services: Services, uri: str) -> str:
    """Describe a prompt file's recorded cost. Returns "" for other files."""
    workspace = services.roots.of_document(uri)
    below = workspace.path_below(uri)
    if workspace.path is None or below is None or not is_prompt_file(below.as_posix()):
        return ""
    own_uri = (workspace.path / below).as_uri()  # the document may be open through a link
    try:
        rows = await file_costs(services, workspace, CostFilesParams(uris=[own_uri]))
    except SidecarError:  # the error is shown in cost reports
        return ""
    return rows[0].text if rows else ""


def _read_prompt_files(workspace: Workspace, uris: Sequence[str] | None) -> list[PromptFile]:
    from sidecar.agents.folders import Places

    settings = workspace.settings.agents
    places = Places.of(settings) if settings.enabled else None
    files = prompt_files(workspace.path or Path(), places)
    wanted = None if uris is None else {unquote(uri) for uri in uris}
    return [file for file in files if wanted is None or unquote(Path(file.path).as_uri()) in wanted]


def _most_called_model(file: PromptFile, used: Mapping[str, Mapping[str, int]]) -> str | None:
    calls = Counter[str]()
    for agent in file.agents:
        calls.update(used.get(agent, {}))
    return min(calls, key=lambda model: (-calls[model], model), default=None)


async def _count_file(
    services: Services, workspace: Workspace, file: PromptFile, model: str
) -> Count | None:
    if file.text is None:
        return None
    uri = Path(file.path).as_uri()
    text = file.text if uri not in services.documents else services.documents.snapshot(uri).text
    return await services.counts.count(Snapshot(text=text), model, workspace)


def _make_row(
    file: PromptFile, count: Count | None, groups: list[CallGroup], span: str
) -> FileCost:
    uri = Path(file.path).as_uri()
    if count is None:
        return FileCost(
            uri=uri,
            tokens=None,
            requests=0,
            cost_usd=None,
            cached_percent=None,
            text=file.note or "",
        )
    cost = prompt_file_cost(count.tokens, file.agents, groups)
    return FileCost(
        uri=uri,
        tokens=count.tokens,
        requests=cost.requests,
        cost_usd=None if cost.cost is None else float(cost.cost),
        cached_percent=100 * cost.cached // cost.requests if cost.requests else None,
        text=_row_text(count, cost, span),
        model=count.model,
        method=count.method,
        unpriced=cost.unpriced,
    )


def _row_text(count: Count, cost: PromptFileCost, span: str) -> str:
    head, model = tokens_text(count.tokens, count.method), f"counted for {printable(count.model)}"
    if not cost.requests:
        return f"{head} · no requests {span} · {model}"
    price = "unpriced"
    if cost.cost is not None:
        is_estimate = bool(method_mark(count.method))
        price = cost_text(cost.cost, is_partial=bool(cost.unpriced), is_estimate=is_estimate)
        if cost.unpriced:
            price += f" + {counted(cost.unpriced, 'request')} unpriced"
    share = percent_text(100 * cost.cached // cost.requests)
    requests = counted(cost.requests, "request")
    return f"{head} · {requests} {span} · {price}, {share} from cache · {model}"
