"""Finds the reader of each agent, a module in `sidecar.agents.readers`."""

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
    """Return a reader's stores, or none if it fails, so that other agents still work."""
    try:
        return list(reader.find(places, roots))
    except Exception as exc:
        log_defect(exc, f"session files of {reader.agent}")
        return []


_MODULES = {"cline": "cline_sessions", "continue": "continue_sessions"}
"""Modules whose name differs from the agent's."""


DELETING_AGENTS = frozenset(("gemini-cli", "vibe"))
"""Agents that delete calls themselves: Gemini CLI deletes old sessions, Vibe old journals."""


def readers_of(settings: Agents) -> tuple[StoreReader, ...]:
    return tuple(map(reader_of, agents_of(settings)))


def readers_here(settings: Agents, places: Places, roots: Roots) -> tuple[StoreReader, ...]:
    """Import and return the readers of enabled agents that have files here. Blocking."""
    agents = agents_of(settings)
    return tuple(reader_of(agent) for agent in agents if has_files(places, agent, roots.paths))


def agents_of(settings: Agents) -> list[str]:
    if not settings.enabled:
        return []
    wanted = AGENTS if settings.sources is None else settings.sources
    return [agent for agent in AGENTS if agent in wanted]


def reader_of(agent: str) -> StoreReader:
    """Import and return an agent's reader. Blocking."""
    name = _MODULES.get(agent, agent.replace("-", "_"))
    reader: StoreReader = import_module(f"sidecar.agents.readers.{name}").READER
    return reader
