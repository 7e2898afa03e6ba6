"""Describes a prompt file in the editor: what it has cost, and which agents send it when."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.cost_protocol import CostFilesParams
from sidecar.errors import SidecarError
from sidecar.project.footprint import Part, sent_files
from sidecar.project.loading_rules import State, loading_rules
from sidecar.text.printable import first_names, printable
from sidecar.workspace.file_costs import costs_of
from sidecar.workspace.footprint_report import (
    NAME_AND_DESCRIPTION,
    STATE_TEXTS,
    short_forms,
    short_path,
    state_text,
)

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
            rows = await costs_of(services, root, sent_files(found.footprints), params)
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
