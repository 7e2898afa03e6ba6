"""Describes a prompt file in the editor: what it has cost, and which agents send it when."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.cost_protocol import CostFilesParams
from sidecar.errors import SidecarError
from sidecar.project.footprint import Footprint, Part, sent_files
from sidecar.project.loading_rules import State, is_prompt_file, loading_rules
from sidecar.text.printable import first_names, printable
from sidecar.workspace.file_costs import costs_of, find_root_footprints
from sidecar.workspace.footprint_report import short_forms, short_path, state_text

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.workspace.services import Services

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
    """Describe a prompt file. Other files have no description."""
    workspace = services.roots.of_document(uri)
    below = workspace.path_below(uri)
    if workspace.path is None or below is None or not is_prompt_file(below.as_posix()):
        return PromptFileInfo()
    path = workspace.path / below  # the document may be open through a link
    footprints = await find_root_footprints(services, workspace)
    work = partial(
        _loading_lines, footprints, path, workspace.path, workspace.settings,
        services.documents.snapshot(uri).text,
    )  # fmt: skip
    loading = await services.workers.run(work)
    params = CostFilesParams(uris=[path.as_uri()])
    try:
        rows = await costs_of(services, workspace, sent_files(footprints), params)
    except SidecarError:  # the error is shown in cost reports
        rows = []
    return PromptFileInfo(rows[0].text if rows else "", loading)


def _loading_lines(
    footprints: Iterable[Footprint], path: Path, root: Path, settings: Settings, text: str
) -> list[str]:
    """Return a line for each state in which agents that are used here have a file."""
    from sidecar.agents.folders import Places
    from sidecar.budgets.instruction_findings import choose_agents

    places = Places.of(settings.agents, projects=[root])
    used = choose_agents(root, settings, places, in_editor=True)
    parts = {one.agent: part for one in footprints for part in one.parts if part.path == str(path)}
    shown = [agent for agent in parts if agent in used] or list(parts)
    folders = short_forms(root, root, places.home)
    agents: dict[tuple[State, str], list[str]] = {}
    for agent in shown:
        part = parts[agent]
        hidden_by = short_path(part.hidden_by, folders) if part.hidden_by else ""
        lost = sum(each.end - each.start for each in part.lost)
        detail = state_text(part.state, part.reason, hidden_by, lost) + _lost_lines(part, text)
        agents.setdefault((part.state, detail), []).append(loading_rules()[agent].title)
    states = list(_SENTENCES)
    lines = sorted(agents.items(), key=lambda line: states.index(line[0][0]))
    return [
        printable(_SENTENCES[state].format(first_names(names)) + detail.removeprefix(state))
        for (state, detail), names in lines
    ]


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
