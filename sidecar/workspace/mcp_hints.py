"""Describes the MCP servers in an open configuration file: what their tools add to each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.cost.prompt_file_costs import models_by_calls
from sidecar.counting.count_result import tokens_text
from sidecar.errors import SidecarError
from sidecar.project.loading_rules import model_of_agent
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
from sidecar.text.printable import counted, printable
from sidecar.workspace.footprint_report import NOT_MEASURED
from sidecar.workspace.spending import recent_day
from sidecar.workspace.workspace import path_of

if TYPE_CHECKING:
    from sidecar.agents.folders import Places
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace


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
