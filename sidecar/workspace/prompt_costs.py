"""Estimates what prompt files cost as part of the calls of the agents that send them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sidecar.cost.prompt_file_costs import CallGroup, PromptFileCost, prompt_file_cost
from sidecar.cost.protocol import CostFilesParams, FileCost
from sidecar.counting.count import Count, tokens_text
from sidecar.text.printable import counted, percent_text, printable, usd_text
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.prompt_files import PromptFile, agents_of, prompt_files

if TYPE_CHECKING:
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

DAYS = 30


async def file_costs(
    services: Services, workspace: Workspace, params: CostFilesParams
) -> list[FileCost]:
    """Return the cost of each prompt file in a workspace, the most expensive first.

    Raises:
        BadParamsError: The time is invalid.
        LedgerError: The ledger cannot be read.
    """
    if workspace.path is None:
        return []
    run = services.workers.run
    files = await run(partial(_read_prompt_files, workspace, params.uris))
    since = params.since or (datetime.now().astimezone() - timedelta(days=DAYS)).date().isoformat()
    spending = services.spending(workspace)
    used = await run(partial(spending.agents_models, since))
    models = [_most_called_model(file, used) or workspace.budget_model for file in files]
    counts = [
        await _count_file(services, workspace, file, model)
        for file, model in zip(files, models, strict=True)
    ]
    sizes = [count.tokens for count in counts if count is not None]
    groups = await run(partial(spending.prompt_file_calls, since, sizes))
    span = f"since {params.since}" if params.since else f"in {DAYS} days"
    rows = [_make_row(file, count, groups, span) for file, count in zip(files, counts, strict=True)]
    return sorted(rows, key=lambda row: (-(row.cost_usd or 0.0), row.uri))


def is_prompt_file(workspace: Workspace, path: Path) -> bool:
    """Return whether agents send files with this name."""
    return workspace.path is not None and bool(agents_of(workspace.path, path))


def _read_prompt_files(workspace: Workspace, uris: Sequence[str] | None) -> list[PromptFile]:
    from sidecar.agents.places import Places

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
    )


def _row_text(count: Count, cost: PromptFileCost, span: str) -> str:
    head, model = tokens_text(count.tokens, count.method), f"counted for {printable(count.model)}"
    if not cost.requests:
        return f"{head} · no requests {span} · {model}"
    price = "unpriced"
    if cost.cost is not None:
        price = usd_text(cost.cost)
        price = price if price.startswith("<") else f"about {price}"
        price += f" + {cost.unpriced:,} unpriced" if cost.unpriced else ""
    share = percent_text(100 * cost.cached // cost.requests)
    requests = counted(cost.requests, "request")
    return f"{head} · {requests} {span} · {price}, {share} from cache · {model}"
