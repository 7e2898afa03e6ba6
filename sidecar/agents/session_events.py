"""Defines the interface of session readers and the values that they return.

A *store* is a file or database in which an agent keeps sessions. `StoreReader.read` returns the
new calls in a store and a state for the next read. The session index
(`agents/session_index.py`) saves this state in the same transaction as the calls and
sessions. Each call is therefore counted once, even if a read is interrupted or several processes
read the same store. `agents/stores.py` explains how to write a reader.

Readers are stateless and never write to disk. They run on worker threads, and the values that
they return are immutable. These values contain counts, ids, models, folders and times, but
neither message text nor titles. A title is read from the agent's file only when it is displayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from sidecar.cost.cache_losses import CacheFacts
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.known_agents import all_agents
from sidecar.messages.vendor_usage import Usage

if TYPE_CHECKING:
    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.folders import Places, Roots

Quality = Literal["exact", "lower bound", "estimate"]
"""How accurate a context size is. The actual size may be larger than a `lower bound`."""

Category = Literal["main", "subagent", "summary"]

Activity = Literal["running", "idle", "ended"]


_ENDED_AFTER = timedelta(hours=24)
_SILENT_AFTER = timedelta(minutes=10)
"""If no line is added for this long, a running turn counts as idle.

The time is long, because tools can run for minutes.
"""
_QUIET_AFTER = timedelta(minutes=1)
"""If no line is added for this long, a session without recorded turns counts as idle."""


class CallSize(msgspec.Struct, frozen=True, gc=False):
    """The size of one call in a main conversation, in tokens."""

    prompt: int
    """The size of the complete prompt in tokens, including cached tokens."""
    output: int = 0
    model: str | None = None
    window: int | None = None
    """The context window in tokens, as reported by the agent."""

    @classmethod
    def of(cls, usage: Usage, model: str | None, window: int | None = None) -> CallSize:
        return cls(usage.prompt_tokens, usage.output_tokens, model, window)


NEVER = datetime.min.replace(tzinfo=UTC)
"""The update time of sessions that do not record it."""


class SessionFacts(msgspec.Struct):
    """What a store says about a session. Readers remember it, and the session index stores it."""

    id: str
    first_folder: str | None = None
    """The folder where the session started, or None if unknown.

    Multiple folders are separated by line feeds. If the store records only a digest of the folder,
    the value is `md5:` or `sha256:` followed by this digest.
    """
    folder: str | None = None
    """The agent's current working directory, if known."""
    branch: str | None = None
    """The git branch that the agent works on, if recorded."""
    began_at: datetime | None = None
    active: bool | None = None
    """Whether a turn is running, or None if unknown."""
    title_at: str | None = None
    """Where the store keeps the title. The format is specific to the reader."""
    parent: str | None = None
    """The session that this session was forked from."""
    subagent_of: str | None = None
    """The session whose sub-agent this is, or None for a main conversation."""
    ended: bool = False
    rank: int = 0
    """If several stores contain the same session, the one with the highest rank is used."""


# msgspec freezes subclasses of mutable structs, which dataclasses cannot.
class StoredSession(SessionFacts, frozen=True, kw_only=True, gc=False):  # type: ignore[misc]
    """A coding agent's conversation, without its messages.

    A session belongs to a workspace if the workspace contains the session's first or current
    folder. A sub-agent's conversation is not a session. It is listed in the `subagents` of the main
    conversation, which also has its calls.
    """

    source: str = ""
    """The agent's name. Readers leave it empty."""
    updated_at: datetime = NEVER
    """The time of the last line, or of the store's last change if lines have no time."""
    model: str | None = None
    tokens: int | None = None
    """The number of tokens in the context window: the prompt and output of the latest call."""
    limit: int | None = None
    """The context window in tokens, as reported by the agent."""
    quality: Quality = "exact"
    error_percent: float = 0.0
    """The margin of error of `tokens` in percent (±), or 0 if the number is exact."""
    note: str | None = None
    """Why the size is unknown or inexact."""
    compacted: bool = False
    sizes: bytes | None = None
    """The sizes of the context's parts, as packed by `ContextSizes.pack`, or None if unknown."""
    title: str | None = None
    """The title that the agent stored. It never contains message text."""
    first_prompt: str | None = None
    """The start of the first prompt, if `agents.labels` is `first-prompt`."""
    path: str = ""
    """The path of the file or database that contains the session. Readers leave it empty."""
    subagents: tuple[StoredSession, ...] = ()
    """The conversations of sub-agents, newest first. Readers leave it empty."""
    unread_names: tuple[tuple[Store, str | None], ...] = ()
    """The stores that may contain the title, each with the position of the title, if known.

    Empty after the title has been read.
    """

    def state(self, now: datetime) -> Activity:
        """Return whether the session is running, idle or ended, based on its last line.

        A session runs while one of its sub-agents does.
        """
        if any(one.state(now) == "running" for one in self.subagents):
            return "running"
        age = now - self.updated_at
        if self.ended or age > _ENDED_AFTER:
            return "ended"
        silent = _SILENT_AFTER if self.active else _QUIET_AFTER
        return "running" if self.active is not False and age < silent else "idle"


class Store(msgspec.Struct, frozen=True, gc=False):
    """A file or database that contains sessions. It has not been opened yet."""

    agent: str
    path: str
    inode: int
    size: int
    """The size in bytes, including any write-ahead log."""
    mtime_ns: int
    live: bool = True
    """Whether the store may contain a main conversation, as opposed to a sub-agent's."""

    @property
    def stamp(self) -> tuple[int, int, int]:
        """What changes when the store is written or replaced."""
        return self.inode, self.size, self.mtime_ns


class CallFinished(LedgerEvent, frozen=True, kw_only=True, gc=False):
    """A completed model call in a store, with what is only needed until the ledger has recorded it.

    A call may be read more than once. The ledger identifies it by `request_id`, which is the
    provider's or derived from the call's line, and keeps the version with the most output tokens.

    Readers set `workspace` to the agent's working directory, and `branch` to the branch that the
    agent recorded last before the call. `session_index.make_ledger_event` replaces both, and adds
    what readers do not know: `agent` and `rank`.
    """

    is_copy: bool = False
    """Whether the call was copied from another session, according to the store.

    This is the case if the line says so, or if the call is older than the session.
    """
    facts: CacheFacts | None = None
    """What can explain a lost cache, or None if the file tells nothing of caches."""
    last_request: Buckets | None = None
    """The tokens of the last request, if the call consists of several."""
    is_unread_past: bool = False
    """Whether this is the total of several calls that the store no longer lists individually.

    If the store was read before but the saved state was lost, the total is discarded, because the
    ledger already contains some of these calls.
    """

    @property
    def counts(self) -> bool:
        """Whether the call used any tokens or cost anything. False for some failed calls."""
        return bool(self.buckets.prompt + self.buckets.completion or self.reported_cost)


class StoreRead(msgspec.Struct, frozen=True):
    """The result of reading a store."""

    calls: Sequence[CallFinished] = ()
    """The new calls, in store order."""
    sessions: Sequence[StoredSession] = ()
    """The sessions that have changed, or all sessions if `has_all_sessions` is true."""
    skipped: int = 0
    """The number of malformed lines or entries."""
    has_all_sessions: bool = True
    """Whether `sessions` contains all sessions in the store. If so, saved sessions are replaced."""
    is_settled: bool = True
    """Whether the store can be ignored until it changes.

    False if some of its calls cannot be recorded yet.
    """
    state: bytes = b""
    """The state for the next read. It includes a position, such as an offset or a row id."""
    has_lost_state: bool = False
    """Whether the read began without a usable state. This includes the first read."""
    is_complete: bool = True
    """Whether the end of the store was reached. Large stores are read in steps."""
    bytes_read: int = 0


class ReportedLimit(NamedTuple):
    """A subscription limit, as reported by an agent."""

    minutes: int
    """The limit's period in minutes."""
    used_percent: float
    resets_at: datetime | None = None


class McpToolCall(NamedTuple):
    """A call of an MCP tool that is not answered yet."""

    tool: str
    process: int
    """The id of the process that started the MCP server. Usually, it is the agent."""


class StoreReader(Protocol):
    """Reads one agent's stores. Raises OSError if a store is missing, locked or corrupt."""

    agent: str = ""
    """The agent's name in `known_agents.toml`."""

    def for_agent(self, agent: str) -> StoreReader:
        """Return the reader for an agent. Several agents may have the same file format."""
        reader = copy(self)
        reader.agent = agent
        return reader

    def folders(self, places: Places) -> tuple[str, ...]:
        """Return the files and folders to watch for changes. They may not exist yet.

        Folders are watched recursively, so do not return folders with many unrelated files.
        """

    def find(self, places: Places, roots: Roots | None = None) -> Iterable[Store]:
        """Yield the agent's stores without opening them.

        Args:
            places: The agents' file locations.
            roots: The workspace folders. Stores may be skipped if their paths show that they belong
                to other folders.
        """

    def store_at(self, places: Places, path: str) -> Store | None:
        """Return the store that a changed file belongs to, or None for another agent's file."""

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        """Read the data that was added after `state` was saved. An unusable state is ignored."""

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        """Read the title at a position in a store, or return None if the title no longer exists.

        Titles never contain message text.
        """
        return None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        """Return a session's context window in tokens, if the agent's settings define it."""
        return None

    def compacts_at(self, window: int, model: str) -> int:  # noqa: ARG002
        """Return the context size, in tokens, that triggers compaction by default."""
        reader = all_agents()[self.agent].reader or self.agent
        return all_agents()[reader].compacts_at.size(window)

    def own_full(self, window: int, model: str) -> int | None:  # noqa: ARG002
        """Return the context size, in tokens, that the agent itself shows as 100 %.

        None means that the agent shows no percentage, or one of the whole window.
        """
        return None

    def made_call(self, path: str, session: str, call: McpToolCall) -> bool:  # noqa: ARG002
        """Return whether the agent's files show that a session made a call."""
        return False

    def mcp_texts(self, path: str) -> dict[str, str]:  # noqa: ARG002
        """Return what a session's first request has of each MCP server's tools, by the server."""
        return {}

    def limits(self, places: Places) -> Iterable[ReportedLimit]:  # noqa: ARG002
        """Read the latest subscription limits in the agent's files, if it stores them."""
        return ()

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        """Add a session's parts to `sizes` in order. Nothing is added if they are not stored.

        Used to find the first prompt, and for the sizes if `read` cannot add them up.
        """
        return
