"""What a reader of a coding agent's stores returns, and the interface it implements.

A *store* is a file or database in which an agent keeps sessions. `StoreReader.read` returns what is
new since the state that it returned last time. The session index (`workspace/session_index.py`)
saves that state in the same transaction as the calls and sessions, so each call counts once even if
a reading is interrupted or several processes read. `agents/stores.py` explains how to write a
reader.

Readers keep no state and write nothing. They run on worker threads, and all values are frozen. The
values hold counts, ids, models, folders and times, but no message text and no titles: a title is
read from the agent's file when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from sidecar.messages.usage import Usage

if TYPE_CHECKING:
    from sidecar.agents.contents import ContentEntry
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots

Quality = Literal["exact", "lower bound", "estimate"]
"""How accurate a session's size is. A `lower bound` lacks calls or tokens."""

Category = Literal["main", "subagent", "summary"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""A running turn without new lines counts as idle after this time. Tools may run for minutes."""
_QUIET_AFTER = timedelta(minutes=1)
"""The same for stores that do not tell whether a turn is running."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """Tokens that one call of the main conversation sent and received."""

    prompt: int
    """Tokens of the whole input, including cached ones."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """The context window in tokens, as reported by the agent."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


class Occupancy(msgspec.Struct, frozen=True, gc=False):
    """How full a session's context window is. `note` explains unknown values."""

    tokens: int | None = None
    limit: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Error band (±%) of `tokens`; 0 if they are exact."""
    compacted: bool = False
    note: str | None = None


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a coding agent."""

    id: str
    source: str
    """The agent's name."""
    path: str
    """The store that the session was read from."""
    cwd: str | None
    """The folder that the agent works in, if known."""
    updated_at: datetime
    model: str | None = None
    title: str | None = None
    """The title that the agent stored, never text of a message."""
    branch: str | None = None
    """The branch of the repository that the agent works on, if the store names it."""
    began_at: datetime | None = None
    first_prompt: str | None = None
    """The beginning of the first prompt, only with `agents.labels = "first-prompt"`."""
    occupancy: Occupancy = Occupancy()
    parent: str | None = None
    """The session that this one was forked from."""
    active: bool | None = None
    """Whether a turn is running, if known."""
    ended: bool = False
    rank: int = 0
    """If several stores contain the session, the one with the highest rank is used."""

    def state(self, now: datetime) -> Literal["running", "idle", "ended"]:
        """Return the session's state. A turn without new lines for a while counts as idle."""
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"


class Store(msgspec.Struct, frozen=True, gc=False):
    """A session store as listed, without reading it."""

    agent: str
    path: str
    inode: int
    size: int
    """Size in bytes, including a database's write-ahead log."""
    mtime_ns: int
    live: bool = True
    """Whether the store may contain a main conversation rather than a sub-agent's."""


class CallFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished model call, to be recorded in the ledger.

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
    """The id by which the agent's own OpenTelemetry export names the call, if that is known."""
    workspace: str = ""
    """The folder that the agent works in, or "" if unknown."""
    category: Category = "main"
    tier: str = ""
    cache_write_5m_tokens: int = 0
    web_searches: int = 0
    cost_usd: Decimal | None = None
    """USD that the provider billed, as the agent reports it. A GitHub AI credit is 0.01."""
    agent_cost_usd: Decimal | None = None
    """USD that the agent computed from its own price list."""
    is_unread_past: bool = False
    """Whether this is the sum of calls that the store no longer lists.

    It is not recorded if the store was read before but its state was lost, because the sum then
    includes recorded calls.
    """

    @property
    def counts(self) -> bool:
        """Whether the call used tokens or cost anything. A call without either had no reply."""
        return bool(self.usage.prompt_tokens + self.usage.output_tokens or self.cost_usd)


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A main conversation as its store describes it: a row of the session index.

    Sub-agents have no snapshots; only their calls are recorded. A session belongs to a workspace
    that contains its first or its current folder.
    """

    name: str
    first_folder: str | None = None
    """The folder that the session began in, or None if unknown.

    Line feeds separate several folders. `md5:` or `sha256:` starts a digest of the folder, where
    the store does not name it.
    """
    folder: str | None = None
    """The folder that the agent works in now."""
    parent: str | None = None
    """The session that this one was forked from."""
    model: str | None = None
    tokens: int | None = None
    """Tokens in the context window: input and output of the newest call."""
    window: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Error band (±%, 95 %) of `tokens`; 0 if they are exact."""
    note: str | None = None
    compacted: bool = False
    branch: str | None = None
    """The branch of the repository that the agent works on, if the store names it."""
    began_at: int | None = None
    """Time of the first line, in milliseconds since 1970."""
    updated_at: int | None = None
    """Time of the newest line, in milliseconds since 1970."""
    active: bool | None = None
    """Whether a turn is running, or None if unknown."""
    ended: bool = False
    rank: int = 0
    """If several stores contain the session, the one with the highest rank is shown."""
    title_at: str | None = None
    """Position of the title, for `StoreReader.title`."""


class StoreRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a store."""

    calls: tuple[CallFinished, ...]
    """The new calls, in the order of the store."""
    sessions: tuple[SessionSnapshot, ...]
    """The changed sessions, or all sessions if `restarted`."""
    state: bytes
    """The reader's state for the next reading, such as an offset, a row id or a digest."""
    restarted: bool = False
    """Whether the store was read from its start, so that `sessions` replaces all of its sessions.

    Recorded calls stay recorded and still count once.
    """
    has_lost_state: bool = False
    """Whether no state was usable although the store no longer lists all of its calls."""
    is_complete: bool = True
    """Whether the whole store was read. Large stores are read in several steps."""
    is_settled: bool = True
    """Whether an unchanged store needs no further reading.

    False if calls become certain only after some time.
    """
    bytes_read: int = 0
    skipped: int = 0
    """Number of broken lines."""


class StoreReader(Protocol):
    """Reads the stores of one agent. Raises OSError if a store is missing, locked or damaged."""

    @property
    def agent(self) -> str:
        """The agent's name, as in `session.source`."""

    def folders(self, places: Places) -> tuple[str, ...]:
        """Return the files and folders to watch for changes.

        Folders are watched with everything in them. Paths need not exist. Folders with many
        unrelated files are left out.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Store]:
        """Yield all stores without opening them.

        With `roots`, stores that cannot belong to the roots, judged by their paths, may be left
        out.
        """

    def store_at(self, places: Places, path: str) -> Store | None:
        """Return the store that a file belongs to, or None if the file is not this agent's."""

    def is_copy(self, store: Store) -> bool:  # noqa: ARG002
        """Return whether the store begins with calls copied from another store."""
        return False

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        """Read what has been added to a store since `state`, or all of it if the state is
        unusable."""

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        """Read the title that the agent stored at `title_at`, or None if it is gone.

        A title never contains text of a message.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """Return the context window in the agent's settings, for stores that do not contain it."""
        return None

    def contents(self, path: str, session: str) -> Iterable[ContentEntry]:  # noqa: ARG002
        """Read the parts of a session in order; nothing if the store does not contain them."""
        return ()
