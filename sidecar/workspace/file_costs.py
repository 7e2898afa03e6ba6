"""What a workspace's prompt files have cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from sidecar.cost.cost_protocol import CostFilesParams, FileCost
from sidecar.cost.prompt_file_costs import (
    CallGroup,
    PromptFileCost,
    models_by_calls,
    prompt_file_cost,
)
from sidecar.counting.count_result import Count, method_mark, tokens_text
from sidecar.counting.open_documents import Snapshot
from sidecar.text.printable import cost_text, counted, percent_text, printable
from sidecar.workspace.spending import RECENT, recent_day

if TYPE_CHECKING:
    from sidecar.cost.records import Identity, ShippedRecord
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

from sidecar.project.footprint import SentFile, sent_files
from sidecar.project.loading_rules import prompt_file_names


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
            separately. Calls in other worktrees and in nested workspaces are then excluded.

    Raises:
        BadParamsError: A time is invalid.
        LedgerError: The ledger cannot be read.
    """
    if workspace.path is None:
        return []
    found = await services.instructions.read_root(workspace)
    files = sent_files(found.footprints)
    return await costs_of(services, workspace, files, params, reported=reported)


async def costs_of(
    services: Services,
    workspace: Workspace,
    files: Sequence[SentFile],
    params: CostFilesParams,
    *,
    reported: Iterable[str] | None = None,
) -> list[FileCost]:
    """Return the costs of those files of a workspace that `params` names. See `file_costs`."""
    run = services.workers.run
    wanted = None if params.uris is None else {unquote(uri) for uri in params.uris}
    files = [one for one in files if wanted is None or unquote(_uri_of(one)) in wanted]
    since = params.since or recent_day()
    spending = services.spending(workspace)
    used = await run(partial(spending.count_calls_by_agent_and_model, since, params.until))
    files = [file for file in files if not file.is_secondary or used.keys() & file.texts.keys()]
    counts = [await _count_file(services, workspace, file, used) for file in files]
    sizes = {one.tokens for count in counts for one in count.by_agent.values()}
    below = f"{(workspace.uri or '').rstrip('/')}/"
    nested = [uri for uri in reported or () if uri.startswith(below)]
    calls = partial(spending.prompt_file_calls, since, params.until, sizes)
    groups = await run(partial(calls, with_worktrees=reported is None, without=nested))
    span = f"since {params.since}" if params.since else f"in {RECENT.days} days"
    if params.until:
        span = f"from {since} to {params.until}"
    rows = [_make_row(count, groups, span) for count in counts]
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
            public = name if name in prompt_file_names() else ""
            records.append(file_record(file, public, root, time.time_ns(), identity))
    return records


class _FileCounts(NamedTuple):
    """The sizes of what agents send of a file."""

    file: SentFile
    main: Count | None
    """The size for the agent with most calls, or None if the file could not be read."""
    by_agent: Mapping[str, Count]


def _uri_of(file: SentFile) -> str:
    return Path(file.path).as_uri()


async def _count_file(
    services: Services,
    workspace: Workspace,
    file: SentFile,
    used: Mapping[str, Mapping[str, int]],
) -> _FileCounts:
    """Count what agents send of a file, all for the model of most of their calls."""
    if file.note:
        return _FileCounts(file, None, {})
    calls = Counter[str]()
    for agent in file.texts:
        calls.update(used.get(agent, {}))
    model = next(iter(models_by_calls(calls)), workspace.budget_model)
    counts = {
        text: await services.counts.count(Snapshot(text=text), model, workspace)
        for text in dict.fromkeys(file.texts.values())
    }
    main = max(
        file.texts, key=lambda agent: (sum(used.get(agent, {}).values()), len(file.texts[agent]))
    )
    by_agent = {agent: counts[text] for agent, text in file.texts.items()}
    return _FileCounts(file, by_agent[main], by_agent)


def _make_row(counts: _FileCounts, groups: list[CallGroup], span: str) -> FileCost:
    uri, count = _uri_of(counts.file), counts.main
    if count is None:
        return FileCost(
            uri=uri,
            tokens=None,
            requests=0,
            cost_usd=None,
            cached_percent=None,
            text=counts.file.note,
        )
    sizes = {agent: one.tokens for agent, one in counts.by_agent.items()}
    cost = prompt_file_cost(sizes, groups)
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
