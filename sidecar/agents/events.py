"""Defines the interface of the readers of agents' session files, and the values that they return.

A *store* is a file or database in which an agent keeps sessions. `StoreReader.read` returns what is
new in a store, and a state for the next reading. The session index (`workspace/session_index.py`)
saves this state in the same transaction as the calls and sessions, so that each call counts once
even if a reading is interrupted or several processes read the store. `agents/stores.py` explains
how to write a reader.

Readers keep no state and write nothing. They run on worker threads, and all values are frozen. The
values contain counts, ids, models, folders and times, but no text of messages and no titles. A
title is read from the agent's file when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from sidecar.messages.usage import Usage

if TYPE_CHECKING:
    from sidecar.agents.contents import ContentEntry
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

Quality = Literal["exact", "lower bound", "estimate"]
"""The accuracy of a session's size. A `lower bound` does not include all calls or tokens."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""A running turn without new lines for this time counts as idle. Tools may run for minutes."""
_QUIET_AFTER = timedelta(minutes=1)
"""Like `_SILENT_AFTER`, for stores that do not tell whether a turn is running."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """The tokens that one call of a main conversation sent and received."""

    prompt: int
    """The tokens of the whole prompt, including cached tokens."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """The context window in tokens, as reported by the agent."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full the context window of a session is. `note` explains why a value is unknown."""

    tokens: int | None = None
    limit: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """The error band (±%) of `tokens`, or 0 if they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a coding agent, as shown to the user."""

    id: str
    source: str
    """The agent's name."""
    path: str
    """The path of the store that contains the session."""
    cwd: str | None
    """The folder that the agent works in, if known."""
    updated_at: datetime
    model: str | None = None
    title: str | None = None
    """The title that the agent stored. It never contains text of a message."""
    branch: str | None = None
    """The branch of the repository that the agent works on, if the store names it."""
    began_at: datetime | None = None
    first_prompt: str | None = None
    """The beginning of the first prompt, if `agents.labels` is `first-prompt`."""
    occupancy: Occupancy = Occupancy()
    parent: str | None = None
    """The session that this one was forked from."""
    active: bool | None = None
    """Whether a turn is running, if known."""
    ended: bool = False
    rank: int = 0
    """If several stores contain the session, the one with the highest rank is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """Return whether the session is running, idle or ended, judged by the time of its newest
        line.
        """
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"


class Store(msgspec.Struct, frozen=True, gc=False):
    """A store of sessions as found in a folder. It has not been opened."""

    agent: str
    path: str
    inode: int
    size: int
    """The size in bytes, including a database's write-ahead log."""
    mtime_ns: int
    live: bool = True
    """Whether the store may contain a main conversation rather than a sub-agent's."""


class CallFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished call to a model, which is recorded in the ledger.

    A call may be read several times. The ledger identifies it by `request` and keeps the version
    with the most output.
    """

    at: datetime
    session: str
    model: str
    provider: str
    usage: Usage
    request: str
    """The provider's id of the call, or an id derived from its line."""
    telemetry_id: str | None = None
    """The id of the call in the agent's own OpenTelemetry export, if known."""
    workspace: str = ""
    """The folder that the agent works in, or "" if unknown."""
    category: Category = "main"
    tier: str = ""
    cache_write_5m_tokens: int = 0
    web_searches: int = 0
    cost_usd: Decimal | None = None
    """The USD that the provider billed, as reported by the agent. A GitHub AI credit is $0.01."""
    agent_cost_usd: Decimal | None = None
    """The USD that the agent computed from its own price list."""
    is_unread_past: bool = False
    """Whether this is the total of calls that the store no longer lists.

    Such a total is not recorded if the store was read before but its state was lost, because the
    total then includes recorded calls.
    """

    @property
    def counts(self) -> bool:
        """Whether the call used tokens or cost anything. A call without a reply did neither."""
        return bool(self.usage.prompt_tokens + self.usage.output_tokens or self.cost_usd)


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A main conversation as described by its store: a row of the session index.

    Sub-agents have no snapshots; only their calls are recorded. A session belongs to a workspace
    that contains its first or its current folder.
    """

    name: str
    first_folder: str | None = None
    """The folder in which the session began, or None if unknown.

    Line feeds separate several folders. If the store only has a digest of the folder, this is the
    digest after `md5:` or `sha256:`.
    """
    folder: str | None = None
    """The folder that the agent works in now."""
    parent: str | None = None
    """The session that this one was forked from."""
    model: str | None = None
    tokens: int | None = None
    """The tokens in the context window: prompt and output of the newest call."""
    window: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """The error band (±%) of `tokens`, or 0 if they are exact."""
    note: str | None = None
    compacted: bool = False
    branch: str | None = None
    """The branch of the repository that the agent works on, if the store names it."""
    began_at: int | None = None
    """The time of the first line, in milliseconds since 1970."""
    updated_at: int | None = None
    """The time of the newest line, in milliseconds since 1970."""
    active: bool | None = None
    """Whether a turn is running, or None if unknown."""
    ended: bool = False
    rank: int = 0
    """If several stores contain the session, the one with the highest rank is shown."""
    title_at: str | None = None
    """The position of the title in the store. Only `StoreReader.title` interprets it."""


class StoreRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a store."""

    calls: tuple[CallFinished, ...]
    """The new calls, in the order in which the store lists them."""
    sessions: tuple[SessionSnapshot, ...]
    """The sessions that changed, or all sessions if `restarted` is true."""
    state: bytes
    """The state to pass to the next reading. It contains a position, such as an offset or a row id.
    """
    restarted: bool = False
    """Whether the store was read from its start, so that `sessions` replaces all of its sessions.
    """
    has_lost_state: bool = False
    """Whether the state was unusable and the store no longer lists all of its calls."""
    is_complete: bool = True
    """Whether the whole store was read. Large stores are read in several steps."""
    is_settled: bool = True
    """Whether the store need not be read again until it changes.

    This is false if some calls can be recorded only after a while.
    """
    bytes_read: int = 0
    skipped: int = 0
    """The number of broken lines."""


class ReportedLimit(NamedTuple):
    """A limit of a subscription, as an agent reports it."""

    minutes: int
    """The length of the period to which the limit applies."""
    used_percent: float
    resets_at: datetime | None = None


class StoreReader(Protocol):
    """Reads the stores of one agent. Raises OSError for a missing, locked or damaged store."""

    @property
    def agent(self) -> str:
        """The name of the agent."""

    def folders(self, places: Places) -> tuple[str, ...]:
        """Return the files and folders to watch for changes. They need not exist.

        Folders are watched with everything in them, so folders with many unrelated files are left
        out.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Store]:
        """Yield the stores without opening them.

        Args:
            places: The places where agents keep files.
            roots: The folders of a workspace. Stores whose paths show that they belong to other
                folders may be left out.
        """

    def store_at(self, places: Places, path: str) -> Store | None:
        """Return the store that a changed file belongs to, or None if it is another agent's."""

    def is_copy(self, store: Store) -> bool:  # noqa: ARG002
        """Return whether the store begins with calls copied from another store."""
        return False

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        """Read what was added to a store since `state`, or everything if `state` is unusable."""

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        """Read the title at a position of a store, or return None if it is gone.

        A title never contains text of a message.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """Return the context window that the agent's settings define for a session, if any."""
        return None

    def limits(self, path: str) -> Iterable[ReportedLimit]:  # noqa: ARG002
        """Read the limits of the user's subscription that the agent has written last."""
        return ()

    def contents(self, path: str, session: str) -> Iterable[ContentEntry]:  # noqa: ARG002
        """Read the parts of a session in order. Stores without text of messages have none."""
        return ()
