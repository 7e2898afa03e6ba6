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
    """A session store as a directory listing shows it: nothing of it was read."""

    agent: str
    path: str
    inode: int
    size: int
    """Bytes; of a database with its write-ahead log."""
    mtime_ns: int
    live: bool = True
    """Whether a main conversation can be in it: False for files of sub-agents, which only bill."""


class CallFinished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call of a model, of a main conversation or not: an event for the ledger.

    Copies of a call may come again: `request` says which are the same, and the ledger keeps the one
    with the most output.
    """

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
    is_unread_past: bool = False
    """Whether it sums up calls that the store no longer lists. It is not recorded if the
    store has been read before and its state was lost: then the sum contains recorded calls."""

    @property
    def counts(self) -> bool:
        """Whether it took or cost anything: one that did neither was not answered."""
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
    store does not name; `Roots.hold` compares it.
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
    """What reading a store gave, and the state to go on from."""

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
    """False if there is more to read. Large stores are read in steps, which bounds memory, shows
    progress and lets a reading be cancelled."""
    is_settled: bool = True
    """False if time alone may reveal more calls: the store is read again though it is unchanged."""
    bytes_read: int = 0
    skipped: int = 0
    """Broken lines in this reading."""


class StoreReader(Protocol):
    """One agent. A store that is gone, locked or damaged raises OSError."""

    @property
    def agent(self) -> str:
        """The agent's name as in `session.source`."""

    def folders(self, places: Places) -> tuple[str, ...]:
        """What to watch: folders with all below them, and files. They need not exist.

        Stores appear and grow there; what lies beside them in great numbers is left out.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Store]:
        """All stores, by listings alone.

        With `roots`, those may be left out that by their names are of none of them.
        """

    def store_at(self, places: Places, path: str) -> Store | None:
        """The store that a change of the file at `path` is a change of, as it is now.

        None where that is none of this agent's, or is gone.
        """

    def is_copy(self, store: Store) -> bool:  # noqa: ARG002
        """Whether a store begins with another's lines, which made those calls: it is read last."""
        return False

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        """What is new in a store since `state`; all of it where that is empty or does not fit."""

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        """A session's title, read from where `SessionSnapshot.title_at` says that it stands.

        The agent's own title field, never made from a turn. None where it is gone.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """The window of a session whose store names none, where the agent's settings say one."""
        return None
