"""The protocol behind which each agent is one file, and the table of those files.

A reader has no state: it takes places, roots and what it returned before, and returns new values.
All of it is synchronous and made for a worker thread; values may cross threads, as they are frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sidecar.agents.homes import is_here
from sidecar.config.settings import AGENTS, Agents
from sidecar.defects import log_defect

if TYPE_CHECKING:
    from sidecar.agents.events import StoreReader
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import Batch, Found, Glance, Mark


class Look(NamedTuple):
    """What a reader is shown of a store."""

    places: Places
    found: Found
    roots: Roots
    before: Glance | None = None
    """What the last glance at the same store gave."""


class Reader(Protocol):
    """One agent. No method writes anything; a store that is gone or locked raises OSError."""

    @property
    def agent(self) -> str:
        """The agent's name as in contract `session.source`."""

    def folders(self, places: Places) -> tuple[str, ...]:
        """What to watch: folders with all below them, and files. They need not exist.

        Stores appear and grow there; what lies beside them in great numbers is left out.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Found]:
        """All stores, by listings alone.

        With `roots`, those may be left out that by their names are of none of them.
        """

    def store_at(self, places: Places, path: str) -> Found | None:
        """The store that a change of the file at `path` is a change of, as it is now.

        None where that is none of this agent's, or is gone.
        """

    def glance(self, look: Look) -> Glance:
        """The sessions of the roots in a store that was found, from as little of it as will do."""

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        """The calls after `mark` (None: all), each batch with the mark up to which it goes.

        Whoever stops between two batches goes on from the last mark. Copies of a call may be
        handed on again: `Call.request` says which are the same.
        """


@runtime_checkable
class MarksCopies(Protocol):
    """A reader whose stores say themselves that they were begun as copies of others."""

    def is_copy(self, found: Found) -> bool:
        """Whether a store begins with another's lines, which made those calls."""


def stores_of(
    reader: Reader | StoreReader, places: Places, roots: Roots | None = None
) -> list[Found]:
    """What `Reader.find` finds; nothing where it fails, which costs no other agent its sessions."""
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


def readers_of(settings: Agents) -> tuple[Reader, ...]:
    """The readers that the settings allow; none where agents are disabled."""
    return tuple(map(reader_of, agents_of(settings)))


def readers_here(settings: Agents, places: Places, roots: Roots) -> tuple[Reader, ...]:
    """Those of them whose agents may have left anything here; no others are imported. Blocking."""
    agents = agents_of(settings)
    return tuple(reader_of(agent) for agent in agents if is_here(places, agent, roots.paths))


def agents_of(settings: Agents) -> list[str]:
    """The agents that the settings allow; none where they are disabled."""
    if not settings.enabled:
        return []
    wanted = AGENTS if settings.sources is None else settings.sources
    return [agent for agent in AGENTS if agent in wanted]


def reader_of(agent: str) -> Reader:
    """The reader of an agent that is known; imported when it is first asked for. Blocking."""
    name = _MODULES.get(agent, agent.replace("-", "_"))
    reader: Reader = import_module(f"sidecar.agents.readers.{name}").READER
    return reader
