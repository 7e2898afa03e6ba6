"""Finds the first request of each agent's newest session in a folder.

Its prompt is what the agent sends before the first word, and the first message.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sidecar.agents.branches import resolve
from sidecar.agents.context_sizes import unpack
from sidecar.agents.folders import Roots
from sidecar.agents.reader_registry import Sources
from sidecar.agents.session_events import StoredSession
from sidecar.agents.session_index import SessionIndex
from sidecar.cost.days import milliseconds
from sidecar.cost.ledger import PROMPT_SQL, Ledger
from sidecar.errors import BadParamsError

_MOST_TRIED = 20
"""How many sessions of an agent are tried, newest first, until one has a first request."""
_BYTES_PER_TOKEN = 4

_OF_SESSION = "session IN (SELECT id FROM session WHERE name = ? AND agent = ?)"
_FIRST_CALL = (
    f"SELECT at, model, {PROMPT_SQL} FROM event JOIN kind ON kind.id = event.kind "  # noqa: S608
    f"WHERE at BETWEEN ? AND ? AND category = 'main' AND {PROMPT_SQL} > 0 AND {_OF_SESSION} "
    "ORDER BY at LIMIT 1"
)
_ANY_COPY = f"SELECT 1 FROM copy WHERE {_OF_SESSION} LIMIT 1"  # noqa: S608


class FirstRequest(NamedTuple):
    """The first request of a session."""

    session: str
    at_ms: int
    """The time of the call, in milliseconds since 1970."""
    model: str
    tokens: int
    """The size of the prompt as the provider billed it, including the first message."""
    message_tokens: int | None
    """An estimate of the first message's size, or None if the agent does not store messages."""
    path: str
    """The session's file or database."""
    began_ms: int = 0
    """When the session began, in milliseconds since 1970."""
    folder: str = ""
    """The folder in which the session started, which may be in another worktree of the repository.
    Empty if that is unknown.
    """


class AgentUse(NamedTuple):
    """How an agent was last used in a folder."""

    model: str | None
    window: int | None
    """The context window in tokens, as reported by the agent."""
    first: FirstRequest | None


def read_sessions(ledger: Ledger, sources: Sources, max_bytes: int) -> None:
    """Read new contents of agents' files into the ledger. This function blocks.

    Args:
        ledger: The ledger.
        sources: The agents' files.
        max_bytes: The most bytes of files with new contents to read, newest first.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    index = SessionIndex(ledger)
    index.read(sources.readers, index.unread(sources.stores(), max_bytes))


def find_uses(ledger: Ledger, sources: Sources, start: Path) -> dict[str, AgentUse]:
    """Return how each agent was last used in a folder, by what was read. This function blocks.

    Forks are skipped, because their first request contains the messages of another session.
    Sessions of other worktrees have a first request only if no session started in the folder.

    Args:
        ledger: The ledger.
        sources: The agents' files. Sessions in other worktrees of the repository count, too.
        start: The folder in which the sessions started.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    index = SessionIndex(ledger)
    sessions = index.sessions(sources, with_names=False)
    starts = _same_folders(sources.roots, start)
    by_agent: dict[str, list[tuple[StoredSession, str]]] = {}
    for session in sessions:
        folder = _start_of(session, starts, sources.roots)
        if folder is not None:
            by_agent.setdefault(session.source, []).append((session, folder))
    here = resolve(str(start))
    with ledger.reader() as connection:
        return {
            agent: AgentUse(
                next((one.model for one, _ in found if one.model), None),
                next((one.limit for one, _ in found if one.limit), None),
                _newest_first_request(connection, [one for one in found if one[1] == here])
                or _newest_first_request(connection, [one for one in found if one[1] != here]),
            )
            for agent, found in by_agent.items()
        }


def _same_folders(roots: Roots, start: Path) -> frozenset[str]:
    """Return a folder, and the same folder in other worktrees."""
    real = resolve(str(start))
    inside = (root for root in roots.paths if Path(real).is_relative_to(root))
    root = max(inside, key=len, default=real)
    below = os.path.relpath(real, root)
    return frozenset(os.path.normpath(os.path.join(one, below)) for one in (root, *roots.paths))


def _start_of(session: StoredSession, starts: frozenset[str], roots: Roots) -> str | None:
    """Return in which of some folders a session started, or None if it started elsewhere."""
    for folder in (session.first_folder or session.folder or "").split("\n"):
        if os.path.isabs(folder):
            if (real := resolve(folder)) in starts:
                return real
        elif starts.issuperset(roots.paths):  # the store has only a digest or a name of the root
            inside = [root for root in roots.paths if Roots((root,)).contains(folder)]
            if inside:
                return inside[0] if len(inside) == 1 else ""
    return None


def _newest_first_request(
    connection: sqlite3.Connection, sessions: Iterable[tuple[StoredSession, str]]
) -> FirstRequest | None:
    spans = [(span, *one) for one in sessions if (span := _span(one[0])) is not None]
    spans.sort(key=lambda found: found[0], reverse=True)
    found = (
        _first_request(connection, one, folder, span) for span, one, folder in spans[:_MOST_TRIED]
    )
    return next(filter(None, found), None)


def _span(session: StoredSession) -> tuple[int, int] | None:
    """Return when a session began and ended in milliseconds, or None if it has no first request."""
    if session.began_at is None or session.parent is not None:
        return None
    try:
        return milliseconds(session.began_at), milliseconds(session.updated_at)
    except BadParamsError:  # the store contains an impossible time
        return None


def _first_request(
    connection: sqlite3.Connection, session: StoredSession, folder: str, span: tuple[int, int]
) -> FirstRequest | None:
    names = (session.id, session.source)
    if connection.execute(_ANY_COPY, names).fetchone():
        return None
    row = connection.execute(_FIRST_CALL, (*span, *names)).fetchone()
    if row is None:
        return None
    at_ms, model, tokens = row
    return FirstRequest(
        session.id,
        at_ms,
        model,
        tokens,
        _message_tokens(session, tokens),
        session.path,
        span[0],
        folder,
    )


def _message_tokens(session: StoredSession, tokens: int) -> int | None:
    sizes = unpack(session.sizes)
    if sizes is None or sizes.first is None or sizes.first[0] != tokens:
        return None  # unknown, or the sizes are those after a compaction
    stored = dict.fromkeys(("user", "instructions"), 0)
    for (kind, _), size in sizes.sizes.items():
        if kind in stored:
            stored[kind] += size
    size = min(stored["user"], max(0, sizes.first[1] - stored["instructions"]))
    return round(size / _BYTES_PER_TOKEN)
