"""What prompt files have cost: their tokens, and the agents' calls that they rode along with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sidecar.cost.params import CostFilesParams, FileCost
from sidecar.cost.riding import Calls, Ridden, ridden
from sidecar.counting.count import Count, tokens_text
from sidecar.text.printable import counted, percent_text, printable
from sidecar.workspace.documents import Snapshot
from sidecar.workspace.prompt_files import PromptFile, agents_of, prompt_files

if TYPE_CHECKING:
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace

DAYS = 30


async def file_costs(
    services: Services, workspace: Workspace, params: CostFilesParams
) -> list[FileCost]:
    """A row for each prompt file of a workspace, the dearest first.

    Raises BadParamsError for a time that is none, LedgerError.
    """
    if workspace.path is None:
        return []
    run = services.workers.run
    files = await run(partial(_files, workspace, params.uris))
    since = params.since or (datetime.now().astimezone() - timedelta(days=DAYS)).date().isoformat()
    spending = services.spending(workspace)
    used = await run(partial(spending.agents_models, since))
    models = [_model(one, used) or workspace.budget_model for one in files]
    counts = [
        await _count(services, workspace, one, model)
        for one, model in zip(files, models, strict=True)
    ]
    sizes = [count.tokens for count in counts if count is not None]
    calls = await run(partial(spending.riding, since, sizes))
    span = f"since {params.since}" if params.since else f"in {DAYS} days"
    rows = [_row(one, count, calls, span) for one, count in zip(files, counts, strict=True)]
    return sorted(rows, key=lambda row: (-(row.cost_usd or 0.0), row.uri))


def is_prompt_file(workspace: Workspace, path: Path) -> bool:
    """Whether an agent sends a file of the workspace, by its name."""
    return workspace.path is not None and bool(agents_of(workspace.path, path))


def _files(workspace: Workspace, uris: Sequence[str] | None) -> list[PromptFile]:
    """Blocking. While agents are disabled, imports and the user's own memory are left alone."""
    from sidecar.agents.places import Places

    settings = workspace.settings.agents
    places = Places.of(settings) if settings.enabled else None
    found = prompt_files(workspace.path or Path(), places)
    wanted = None if uris is None else {unquote(uri) for uri in uris}
    return [one for one in found if wanted is None or unquote(Path(one.path).as_uri()) in wanted]


def _model(one: PromptFile, used: Mapping[str, Mapping[str, int]]) -> str | None:
    """That of most calls of the agents that send the file: what it was in fact sent to, whichever
    session or document is open."""
    calls = Counter[str]()
    for agent in one.agents:
        calls.update(used.get(agent, {}))
    return min(calls, key=lambda model: (-calls[model], model), default=None)


async def _count(
    services: Services, workspace: Workspace, one: PromptFile, model: str
) -> Count | None:
    """The tokens of a file, as it is where it is open; None where it is not read."""
    if one.text is None:
        return None
    uri = Path(one.path).as_uri()
    text = one.text if uri not in services.documents else services.documents.snapshot(uri).text
    return await services.counts.count(Snapshot(text=text), model, workspace)


def _row(one: PromptFile, count: Count | None, calls: list[Calls], span: str) -> FileCost:
    uri = Path(one.path).as_uri()
    if count is None:
        return FileCost(
            uri=uri,
            tokens=None,
            requests=0,
            cost_usd=None,
            cached_percent=None,
            text=one.note or "",
        )
    found = ridden(count.tokens, one.agents, calls)
    return FileCost(
        uri=uri,
        tokens=count.tokens,
        requests=found.requests,
        cost_usd=None if found.cost is None else float(found.cost),
        cached_percent=100 * found.cached // found.requests if found.requests else None,
        text=_text(count, found, span),
        model=count.model,
        method=count.method,
    )


def _text(count: Count, found: Ridden, span: str) -> str:
    """`612 tokens · 1,204 requests in 30 days · about $0.41, 93 % from cache · counted for o3`."""
    head, model = tokens_text(count.tokens, count.method), f"counted for {printable(count.model)}"
    if not found.requests:
        return f"{head} · no requests {span} · {model}"
    cost = "unpriced"
    if found.cost is not None:
        cost = f"about ${found.cost:,.2f}" if found.cost >= 1 else f"about ${found.cost:.4f}"
        cost += f" + {found.unpriced:,} unpriced" if found.unpriced else ""
    share = percent_text(100 * found.cached // found.requests)
    requests = counted(found.requests, "request")
    return f"{head} · {requests} {span} · {cost}, {share} from cache · {model}"
