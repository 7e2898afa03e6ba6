"""The protocol of the session index: how a coding agent's stores become events.

A *store* is a file or database that an agent keeps sessions in. `StoreReader.read` reads what is
new in a store since a state that it returned before. The session index
(`workspace/session_index.py`) keeps the state in the same transaction as what the events say: each
call counts once, also when a reading is stopped or several processes read. How a reader is written
is said in `agents/stores.py`.

A reader has no state of its own and writes nothing. It runs on worker threads; all values are
frozen. Events hold counts, ids, models, folders and times, never message text, and no title: a
title stays in the agent's file and is read when it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol, TypeAlias

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
    """Whether it sums up calls from before the reader's first reading. It is kept only if no call
    of the session was: else the reader's state was lost, and the sum holds calls that are kept."""

    @property
    def counts(self) -> bool:
        """Whether it took or cost anything: one that did neither was not answered."""
        return bool(self.usage.prompt_tokens + self.usage.output_tokens or self.cost_usd)


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A main conversation is in the store. Sub-agents only bill: they are no sessions.

    It may come again; the first `folder` stays beside the newest one of `SessionChanged`, and the
    session belongs to a workspace that holds either.
    """

    session: str
    folder: str | None = None
    """The folder that the agent works in; None where the store does not say.

    Several folders are separated by line feeds. Of a folder that a store names by a digest alone,
    `md5:` or `sha256:` and that: `Roots.hold` compares it.
    """
    at: datetime | None = None
    model: str | None = None
    parent: str | None = None
    """The session that it was forked from."""
    rank: int = 0
    """Of several stores that hold one session, the one with the highest rank is shown."""


class SessionChanged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What new lines say of a session, besides its size. What is None stays as it was."""

    session: str
    at: datetime | None = None
    """The time of the newest line."""
    folder: str | None = None
    model: str | None = None
    active: bool | None = None
    """Whether a turn is under way."""
    title_at: str | None = None
    """Where the title stands, in the reader's own words: for `StoreReader.title`."""


class ContextSize(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the newest call of the main conversation leaves in the window: its input and output.

    Never a sum of calls, and of no summarisation. With `tokens` None the size is not known, and
    `note` says why.
    """

    session: str
    tokens: int | None = None
    window: int | None = None
    """Tokens, by the agent's own word; None where it does not say."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """Half of the 95 % band of `tokens`; 0 where they are exact."""
    note: str | None = None


class Compacted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A summary of unknown size replaced the conversation, or turns were taken back (`rewound`).

    The size is not known until the next `ContextSize`.
    """

    session: str
    rewound: bool = False


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The agent closed or archived the session."""

    session: str


SessionEvent: TypeAlias = (
    SessionStarted | SessionChanged | ContextSize | Compacted | SessionEnded | CallFinished
)


class StoreRead(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a store gave, and the state to go on from."""

    events: tuple[SessionEvent, ...]
    """In the order of the store. Of several `SessionChanged` and `ContextSize` of a session in one
    reading only the newest need to be there."""
    state: bytes
    """The reader's own: an offset with a fingerprint, a row id or a digest, and what its next lines
    depend on. Kept with the events, given to the next reading."""
    restarted: bool = False
    """Whether the events say all that the store holds of sessions: what it said of them earlier is
    forgotten. So it is where a store is read from its start, because it is new, was rewritten, cut,
    rotated or replaced, or because the state is of another version. Its calls stay, and count
    once."""
    is_complete: bool = True
    """False where more can be read at once: a large store is read in steps, so that a reading can
    be stopped, shows its progress and takes little memory."""
    bytes_read: int = 0
    skipped: int = 0
    """Lines of this reading that are broken."""


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
        """A session's title, read from where `SessionChanged.title_at` said that it stands.

        The agent's own title field, never made from a turn. None where it is gone.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """The window of a session whose store names none, where the agent's settings say one."""
        return None
