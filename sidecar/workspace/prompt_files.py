"""What prompt files and MCP servers add to agents' requests here, and what this has cost.

Editors show it in the open file, and lists show the costs of all files of a workspace.
"""

from __future__ import annotations

import codecs
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import msgspec

from sidecar.cost.cost_protocol import CostFilesParams, FileCost
from sidecar.cost.prompt_file_costs import (
    CallGroup,
    PromptFileCost,
    models_by_calls,
    prompt_file_cost,
)
from sidecar.counting.count_result import Count, method_mark, tokens_text
from sidecar.counting.open_documents import Snapshot
from sidecar.errors import SidecarError
from sidecar.project.footprint import Part, SentFile, sent_files
from sidecar.project.loading_rules import (
    State,
    loading_rules,
    model_of_agent,
    prompt_file_names,
)
from sidecar.project.mcp_servers import (
    KeptServer,
    ListedServer,
    McpServer,
    ServerTools,
    is_mcp_file,
    list_servers,
    mcp_rules,
    read_kept,
    sent_tools,
)
from sidecar.text.printable import cost_text, counted, first_names, percent_text, printable
from sidecar.workspace.footprint_report import (
    NAME_AND_DESCRIPTION,
    NOT_MEASURED,
    STATE_TEXTS,
    short_forms,
    short_path,
    state_text,
)
from sidecar.workspace.spending import RECENT, recent_day
from sidecar.workspace.workspace import path_of

if TYPE_CHECKING:
    from sidecar.agents.folders import Places
    from sidecar.config.settings import Settings
    from sidecar.cost.records import Identity, ShippedRecord
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace


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
    return await _costs_of(services, workspace, files, params, reported=reported)


async def _costs_of(
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


_SENTENCES: dict[State, str] = {
    "sent": "Sent by {}",
    "cut": "Cut by {}",
    "name-only": "Only named by {}",
    "later": "Sent later by {}",
    "hidden": "Hidden from {}",
}


class PromptFileInfo(NamedTuple):
    """What is known about a prompt file."""

    cost: str = ""
    """The recorded cost, or "" if no agent sends the file."""
    loading: Sequence[str] = ()
    """Which agents send the file and when, and what of it they lose, such as
    `Cut by Codex: 12,232 bytes never arrive (lines 410 to 520)`.
    """


async def describe_prompt_file(services: Services, uri: str) -> PromptFileInfo:
    """Describe a file that agents send. Other files have no description."""
    for root, path, found in await services.instructions.read_document(uri):
        parts = {
            one.agent: part for one in found.footprints for part in one.parts if part.path == path
        }
        if not parts or root.path is None:
            continue
        shown = {agent: parts[agent] for agent in parts if agent in found.used} or parts
        text = services.documents.snapshot(uri).text
        work = partial(_loading_lines, shown, root.path, root.settings, text)
        loading = await services.workers.run(work)
        params = CostFilesParams(uris=[Path(path).as_uri()])
        try:
            rows = await _costs_of(services, root, sent_files(found.footprints), params)
        except SidecarError:  # the error is shown in cost reports
            rows = []
        return PromptFileInfo(rows[0].text if rows else "", loading)
    return PromptFileInfo()


def _loading_lines(
    parts: Mapping[str, Part], root: Path, settings: Settings, text: str
) -> list[str]:
    """Return a line for each state in which agents have a file.

    Args:
        parts: The file as part of each agent's footprint.
        root: The root folder.
        settings: The root's settings.
        text: The file's text.
    """
    from sidecar.agents.folders import Places

    places = Places.of(settings.agents, projects=[root])
    folders = short_forms(root, root, places.home)
    agents: dict[tuple[State, str], list[str]] = {}
    for agent, part in parts.items():
        hidden_by = short_path(part.hidden_by, folders) if part.hidden_by else ""
        lost = sum(each.end - each.start for each in part.lost)
        detail = state_text(part.state, part.reason, hidden_by, lost) + _lost_lines(part, text)
        agents.setdefault((part.state, detail), []).append(loading_rules()[agent].title)
    states = list(_SENTENCES)
    lines = sorted(agents.items(), key=lambda line: states.index(line[0][0]))
    return [
        printable(_sentence(state, detail, first_names(names))) for (state, detail), names in lines
    ]


def _sentence(state: State, detail: str, names: str) -> str:
    if detail == NAME_AND_DESCRIPTION:
        return f"Listed with its description by {names}"
    return _SENTENCES[state].format(names) + detail.removeprefix(STATE_TEXTS[state])


def _lost_lines(part: Part, text: str) -> str:
    """Return which lines of a file are lost, if it is one range of them."""
    if len(part.lost) != 1 or part.state != "cut":
        return ""
    (lost,) = part.lost
    data = text.encode("utf-8", "replace")
    start, end = lost.start, lost.end
    if end > len(data):  # the file begins with a byte order mark, which editors remove
        start, end = start - len(codecs.BOM_UTF8), end - len(codecs.BOM_UTF8)
    first = data.count(b"\n", 0, max(0, start)) + 1
    last = data.count(b"\n", 0, max(0, end - 1)) + 1
    return f" (line {first:,})" if first == last else f" (lines {first:,} to {last:,})"


class McpHint(NamedTuple):
    """A server's entry in a configuration file."""

    line: int
    """The line of the entry, starting at 0."""
    text: str
    """What the tools cost in the agents that read the file."""
    details: list[str]
    """The same for every agent, one line each."""


async def describe_mcp_servers(services: Services, uri: str) -> list[McpHint]:
    """Describe the servers in an open document. Returns an empty list for other files."""
    from sidecar.agents.folders import Places

    path, workspace = path_of(uri), services.roots.of_document(uri)
    if path is None or workspace.path is None or not is_mcp_file(path):
        return []
    settings = workspace.settings.agents
    if not settings.enabled:
        return []
    text = services.documents.snapshot(uri).text
    places = Places.of(settings)
    run = services.workers.run
    listed = await run(partial(list_servers, Path(path), text, workspace.path, places))
    if not listed:
        return []
    models = await run(partial(_most_used_models, services, workspace))
    kept = await run(partial(read_kept, services.state.folder))
    return await run(partial(_make_hints, listed, models, kept, places, workspace.settings.model))


def _most_used_models(services: Services, workspace: Workspace) -> dict[str, str]:
    """Return the model that each agent has called most in the workspace."""
    with suppress(SidecarError):  # cost reports show the error
        calls = services.spending(workspace).count_calls_by_agent_and_model(recent_day(), None)
        return {agent: models_by_calls(models)[0] for agent, models in calls.items()}
    return {}


def _make_hints(
    listed: Sequence[ListedServer],
    models: Mapping[str, str],
    kept: Mapping[str, KeptServer],
    places: Places,
    default: str,
) -> list[McpHint]:
    """Return the hints.

    Args:
        listed: The servers in the document.
        models: The model that each agent has called most.
        kept: The kept numbers.
        places: The user's folders.
        default: The model in the settings.
    """
    by_line: dict[int, list[McpServer]] = {}
    for one in listed:
        by_line.setdefault(one.line, []).append(one.server)

    def sent(server: McpServer, agent: str) -> ServerTools:
        entry = msgspec.structs.replace(server, agent=agent)
        model = model_of_agent(agent, models.get(agent), default)
        return sent_tools(entry, model, kept, places.env)

    hints = []
    for line, servers in by_line.items():
        name = printable(servers[0].name)
        measured = kept.get(servers[0].digest)
        if measured is None:
            hints.append(McpHint(line, f"{name}: {NOT_MEASURED}", []))
            continue
        phrases = [describe_sent_tools(sent(server, server.agent)) for server in servers]
        head = f"{name}: {counted(measured.tools, 'tool')}"
        details = [describe_sent_tools(sent(servers[0], agent)) for agent in mcp_rules()]
        details.append(f"measured on {measured.measured_at[:10]}")
        hints.append(McpHint(line, f"{head}: {', '.join(phrases)}", details))
    return hints


def describe_sent_tools(sent: ServerTools) -> str:
    """Describe what an agent sends, such as `8,120 tokens in every opencode call`."""
    agent = sent.server.agent
    if sent.sends == "nothing":
        return f"nothing in {agent}"
    if sent.tokens is None:
        return f"not measured for {agent}"
    tokens = tokens_text(sent.tokens, sent.method)
    if sent.sends == "server":
        return f"one line in {agent} ({tokens})"
    what = " (a line per tool)" if sent.sends == "lines" else ""
    return f"{tokens} in every {agent} call{what}"
