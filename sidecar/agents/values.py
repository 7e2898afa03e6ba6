"""What readers hand on: frozen values of counts, ids, models and times. Never message text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import msgspec

from sidecar.messages.bounds import LONGEST_ID, MOST_TOKENS
from sidecar.messages.usage import Usage

Quality = Literal["exact", "lower bound", "context only", "estimate"]
"""How far an agent's numbers can be trusted: `lower bound` leaves calls or tokens out,
`context only` says how full the window is but not what was billed."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""Of a turn that is under way: tools may run for minutes without a line."""
_QUIET_AFTER = timedelta(minutes=1)
"""Of a store that does not say whether a turn is under way."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A session store as a directory listing shows it: nothing of it was read."""

    agent: str
    path: str
    inode: int
    size: int
    """Bytes; of a database with its write-ahead log."""
    mtime_ns: int
    live: bool = True
    """Whether a main conversation can be in it: False for files of sub-agents, which only bill."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one call of the main conversation sent and got."""

    prompt: int
    """Tokens of all input, whether a cache held it or not."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """Tokens, by the agent's own word."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> Reading:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full a session's window is. A null means that it is not known, and `note` says why."""

    tokens: int | None = None
    limit: int | None = None
    """By the agent's own word; the catalogue stands in for it elsewhere."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Half of the band of `tokens`; 0 where they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of an agent, as its newest lines show it."""

    id: str
    source: str
    """The agent's name."""
    path: str
    """The store that it was read from."""
    cwd: str | None
    """The folder that the agent works in; None where the store does not say."""
    updated_at: datetime
    model: str | None = None
    title: str | None = None
    """The agent's own title field, never made from a turn."""
    occupancy: Occupancy = Occupancy()
    parent: str | None = None
    """The session that it was forked from."""
    active: bool | None = None
    """Whether a turn is under way; None where the store does not say."""
    ended: bool = False
    rank: int = 0
    """Of several stores of one session the highest is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """What the session does, as far as its store says; a turn that fell silent is idle."""
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"


def stored(
    found: Found,
    name: str,
    cwd: str | None,
    at: datetime | None,
    occupancy: Occupancy,
    *,
    model: str | None = None,
    title: str | None = None,
    parent: str | None = None,
    active: bool | None = None,
    ended: bool = False,
    rank: int = 0,
) -> StoredSession:
    """A session of a store, as new as the store where that does not say it."""
    return StoredSession(
        id=name,
        source=found.agent,
        path=found.path,
        cwd=cwd,
        updated_at=at or datetime.fromtimestamp(found.mtime_ns / 1e9, UTC),
        model=model,
        title=title,
        occupancy=occupancy,
        parent=parent,
        active=active,
        ended=ended,
        rank=rank,
    )


def bounded(session: StoredSession) -> StoredSession | None:
    """A session without the numbers and names that cannot be; None for one without an id.

    A store may hold anything: SQLite's columns take every type, and JSON every length.
    """
    if _name(session.id) is None:
        return None
    size = session.occupancy
    return msgspec.structs.replace(
        session,
        cwd=session.cwd if isinstance(session.cwd, str) else None,
        model=_name(session.model),
        title=session.title[:LONGEST_ID] if isinstance(session.title, str) else None,
        parent=_name(session.parent),
        occupancy=msgspec.structs.replace(
            size, tokens=_tokens(size.tokens), limit=_tokens(size.limit)
        ),
    )


def _name(name: object) -> str | None:
    return name if isinstance(name, str) and 0 < len(name) <= LONGEST_ID else None


def _tokens(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= MOST_TOKENS else None


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of a model, for the ledger."""

    at: datetime
    agent: str
    session: str
    model: str
    provider: str
    usage: Usage
    request: str
    """The provider's id of the call, so that a copy of it counts once; where there is none, one
    that the same line gives again whenever and wherever it is read."""
    workspace: str = ""
    """The folder that the agent works in; "" where the store does not say."""
    category: Category = "main"
    tier: str = ""
    cache_write_5m_tokens: int = 0
    web_searches: int = 0
    cost_usd: Decimal | None = None
    """What the agent says that it was billed (AI credits are 0.01 USD each); never worked out."""
    agent_cost_usd: Decimal | None = None
    """The cost in USD that the agent computed from its own price list."""
    quality: Quality = "exact"

    @property
    def counts(self) -> bool:
        """Whether it took or cost anything: one that did neither was not answered."""
        return bool(self.usage.prompt_tokens + self.usage.output_tokens or self.cost_usd)


class CallOrigin(msgspec.Struct, frozen=True):
    """Whose calls a store's are, where its lines do not say it: a reader's state between them."""

    session: str
    workspace: str = ""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a store was read; kept with the events that came of it."""

    path: str
    agent: str
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    offset: int = 0
    """Bytes that were folded: up to and with the last line feed."""
    fingerprint: bytes = b""
    """Of the head and of the bytes before `offset`."""
    state: bytes = b""
    """The reader's own state, encoded."""
    skipped: int = 0
    """Lines so far that could not be read."""

    def unchanged(self, found: Found) -> bool:
        """Whether the listing shows what it showed when the store was read to its end."""
        return (self.inode, self.size, self.mtime_ns) == (found.inode, found.size, found.mtime_ns)


class Batch(msgspec.Struct, frozen=True):
    """Calls of one store, and the mark to keep in the same transaction."""

    calls: tuple[Call, ...]
    mark: Mark
    bytes_read: int = 0


class Glance(msgspec.Struct, frozen=True):
    """What the newest end of a store shows. `memory` is the reader's own, for its next glance."""

    found: Found
    sessions: tuple[StoredSession, ...] = ()
    skipped: int = 0
    memory: Any = None
