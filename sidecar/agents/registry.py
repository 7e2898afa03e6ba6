"""The table of readers, a module of `sidecar.agents.readers` for each agent."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sidecar.agents.homes import has_files
from sidecar.config.settings import AGENTS, Agents
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.events import Store, StoreReader
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots


def stores_of(reader: StoreReader, places: Places, roots: Roots | None = None) -> list[Store]:
    """Return what `StoreReader.find` finds; nothing if it fails, to spare the other agents."""
    try:
        return list(reader.find(places, roots))
    except Exception as exc:
        log_defect(exc, f"session files of {reader.agent}")
        return []


_MODULES = {"cline": "cline_sessions", "continue": "continue_sessions"}
"""The modules of `sidecar.agents.readers` that are not called as their agents are."""


DELETING_AGENTS = frozenset(("gemini-cli", "vibe"))
"""Agents that delete calls without being asked to: Gemini CLI whole sessions at its next start,
Vibe the journals of old generations."""


def readers_of(settings: Agents) -> tuple[StoreReader, ...]:
    """The readers that the settings allow; none where agents are disabled."""
    return tuple(map(reader_of, agents_of(settings)))


def readers_here(settings: Agents, places: Places, roots: Roots) -> tuple[StoreReader, ...]:
    """Those of them whose agents may have left anything here; no others are imported. Blocking."""
    agents = agents_of(settings)
    return tuple(reader_of(agent) for agent in agents if has_files(places, agent, roots.paths))


def agents_of(settings: Agents) -> list[str]:
    """The agents that the settings allow; none where they are disabled."""
    if not settings.enabled:
        return []
    wanted = AGENTS if settings.sources is None else settings.sources
    return [agent for agent in AGENTS if agent in wanted]


def reader_of(agent: str) -> StoreReader:
    """The reader of an agent that is known; imported when it is first asked for. Blocking."""
    name = _MODULES.get(agent, agent.replace("-", "_"))
    reader: StoreReader = import_module(f"sidecar.agents.readers.{name}").READER
    return reader
