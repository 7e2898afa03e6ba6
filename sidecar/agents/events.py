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
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec

from sidecar.agents.values import Category, Quality
from sidecar.messages.usage import Usage

if TYPE_CHECKING:
    from sidecar.agents.places import Places
    from sidecar.agents.roots import Roots
    from sidecar.agents.values import StoredSession


class Store(msgspec.Struct, frozen=True, gc=False):
    """A session store as listed, without reading it."""

    agent: str
    path: str
    inode: int
    size: int
    """Bytes, including the write-ahead log of a database."""
    mtime_ns: int
    live: bool = True
    """Whether the store may contain a main conversation; False for files of sub-agents."""


class CallFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished call of a model, to be recorded in the ledger.

    The same call may be read several times. The ledger identifies it by `request` and keeps the
    version with the most output.
    """

    at: datetime
    agent: str
    session: str
    model: str
    provider: str
    usage: Usage
    request: str
    """The provider's id of the call, or one derived from its line in a reproducible way."""
    workspace: str = ""
    """The folder that the agent works in; "" if unknown."""
    category: Category = "main"
    tier: str = ""
    cache_write_5m_tokens: int = 0
    web_searches: int = 0
    cost_usd: Decimal | None = None
    """Amount in USD that the provider billed, as the agent reports it (an AI credit is 0.01)."""
    agent_cost_usd: Decimal | None = None
    """Cost in USD that the agent computed from its own price list."""
    is_unread_past: bool = False
    """Whether it sums up calls that the store no longer lists. It is not recorded if the
    store has been read before and its state was lost: then the sum contains recorded calls."""

    @property
    def counts(self) -> bool:
        """Whether the call used tokens or cost anything. One that did neither got no reply."""
        return bool(self.usage.prompt_tokens + self.usage.output_tokens or self.cost_usd)


class SessionSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A main conversation as its store shows it: a row of the session index.

    Sub-agents have no snapshots; only their calls are recorded. A session belongs to a workspace
    that contains its first or its current folder.
    """

    name: str
    """The session's id."""
    first_folder: str | None = None
    """The folder that the session began in; None where the store does not say.

    Line feeds separate several folders. `md5:` or `sha256:` starts the digest of a folder that the
    store does not name; `Roots.contains` compares it.
    """
    folder: str | None = None
    """The folder that the agent works in now."""
    parent: str | None = None
    """The session that this one was forked from."""
    model: str | None = None
    tokens: int | None = None
    """In the context window: input and output of the newest call. `note` explains a None."""
    window: int | None = None
    """Tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Half of the 95 % band of `tokens`; 0 where they are exact."""
    note: str | None = None
    compacted: bool = False
    updated_at: int | None = None
    """Time of the newest line, in milliseconds since 1970."""
    active: bool | None = None
    """Whether a turn is running; None where the store does not say."""
    ended: bool = False
    """Whether the agent closed or archived the session."""
    rank: int = 0
    """Of several stores with one session, the one with the highest rank is shown."""
    title_at: str | None = None
    """Where the title is stored, for `StoreReader.title`."""


class StoreRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a store."""

    calls: tuple[CallFinished, ...]
    """The new calls, in the order of the store."""
    sessions: tuple[SessionSnapshot, ...]
    """The sessions that changed, or all of them if `restarted`."""
    state: bytes
    """The reader's own state for the next reading: an offset with a fingerprint, a row id or a
    digest, and what the next lines depend on."""
    restarted: bool = False
    """Whether `sessions` replaces everything known about the store's sessions, because the store
    was read from its start. Recorded calls stay and still count once."""
    has_lost_state: bool = False
    """Whether there was no usable state, of a store whose calls cannot all be read again."""
    is_complete: bool = True
    """False if there is more to read: large stores are read in steps, to limit memory and to allow
    cancelling."""
    is_settled: bool = True
    """False if time alone may reveal more calls: the store is read again though it is unchanged."""
    bytes_read: int = 0
    skipped: int = 0
    """Broken lines in this reading."""


class StoreReader(Protocol):
    """Reads the stores of one agent. A missing, locked or damaged store raises OSError."""

    @property
    def agent(self) -> str:
        """The agent's name, as in `session.source`."""

    def folders(self, places: Places) -> tuple[str, ...]:
        """Return the files, and the folders with everything below, to watch for changes.

        They need not exist. Folders with many other files are left out.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Store]:
        """Yield all stores without opening them.

        With `roots`, stores whose path shows that they belong to other folders may be left out.
        """

    def store_at(self, places: Places, path: str) -> Store | None:
        """Return the store that the file at `path` belongs to; None if it is not this agent's."""

    def is_copy(self, store: Store) -> bool:  # noqa: ARG002
        """Return whether a store begins with calls copied from another one; it is read last."""
        return False

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        """Read what is new in a store since `state`, or all of it if the state is unusable."""

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        """Read the title that the agent stored at `SessionSnapshot.title_at`; None if it is gone.

        It never contains text of a message.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """Return the context window in the agent's settings, for stores that do not contain it."""
        return None
