"""Reads Pi's `sessions/--<folder>--/*.jsonl`.

The entries in a file form a tree based on `id` and `parentId`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar import typed
from sidecar.agents.contents import (
    Compaction,
    ContentEntry,
    ContentKind,
    Part,
    PromptSize,
    message_parts,
)
from sidecar.agents.events import CallFinished, CallSize, SessionSnapshot, Store
from sidecar.agents.fields import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    parse_iso_time,
    parse_usd,
    reported_usage,
    try_decode_file,
)
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import (
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    StartOverError,
    first_records,
    read_records,
    record_at,
)

if TYPE_CHECKING:
    from sidecar.agents.events import StoredSession
    from sidecar.agents.places import Places
    from sidecar.messages.usage import Usage

AGENT = "pi"
_FAILED = ("aborted", "error")


class _Cost(Record):
    total: Number = None
    """The cost in USD, according to the user's or Pi's price list."""


class _Usage(CamelRecord):
    input: TokenCount = None
    output: TokenCount = None
    cache_read: TokenCount = None
    cache_write: TokenCount = None
    cost: _Cost | None = None


class _Message(CamelRecord):
    role: str | None = None
    provider: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Entry(CamelRecord):
    type: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    name: str | None = None
    parent_session: str | None = None
    message: _Message | None = None

    @property
    def call(self) -> tuple[_Message, Usage] | None:
        """The message and its usage if this entry is a reply, otherwise None."""
        message = self.message
        if message is None or message.role != "assistant" or message.usage is None:
            return None
        used = message.usage
        cached = used.cache_read, used.cache_write
        return message, reported_usage(used.input, used.output, *cached, includes_cached=False)


class _Model(CamelRecord):
    id: str | None = None
    context_window: TokenCount = None


class _Provider(CamelRecord):
    models: list[_Model] | None = None
    model_overrides: dict[str, _Model] | None = None

    def window(self, model: str) -> int | None:
        """Return a model's context window in tokens, or None if it is not set."""
        models = [one for one in self.models or () if one.id == model]
        models += filter(None, [(self.model_overrides or {}).get(model)])
        return next((one.context_window for one in models if one.context_window), None)


class _Settings(Record):
    providers: dict[str, _Provider] | None = None


_entry = typed.decoder(_Entry)


class Pi(LineReader):
    agent = AGENT
    inner = ("sessions",)
    pattern = r".*\.jsonl"

    def is_copy(self, store: Store) -> bool:
        entries = first_records(store.path, _entry)
        header = next((entry for entry in entries if entry.type == "session"), _Entry())
        return header.parent_session is not None

    def begin(self, store: Store) -> _Session:
        session = _Session(SessionState(Path(store.path).stem))
        session.nodes = {}
        return session

    def title(self, store: Store, title_at: str) -> str | None:
        entry = record_at(store.path, title_at, _entry)
        return entry.name if entry else None

    def window(self, places: Places, session: StoredSession) -> int | None:
        """Return the model's smallest context window in the user's settings, in tokens, or None."""
        paths = (home / "models.json" for home in agent_folders(places, AGENT))
        files = [try_decode_file(path, _Settings) or _Settings() for path in paths]
        providers = (one for settings in files for one in (settings.providers or {}).values())
        windows = (one.window(session.model or "") for one in providers)
        return min(filter(None, windows), default=None)

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:  # noqa: ARG002
        branch, tools = _newest_branch(path), dict[str, str]()
        for number, entry in enumerate(branch):
            yield from _content_entries(entry, tools)
            if entry.type == "compaction":
                kept = [one.id for one in branch[:number]]
                if entry.first_kept_entry_id in kept:
                    for one in branch[kept.index(entry.first_kept_entry_id) : number]:
                        yield from _content_entries(one, tools)

    def compacts_at(self, window: int, model: str) -> int:  # noqa: ARG002
        return window - 16_384


READER = Pi()


class _ContentMessage(_Message):
    content: msgspec.Raw = msgspec.Raw(b"")
    tool_name: str | None = None


class _ContentLine(_Entry):
    summary: msgspec.Raw = msgspec.Raw(b"")
    first_kept_entry_id: str | None = None
    message: _ContentMessage | None = None


_content_line = typed.decoder(_ContentLine)


def _newest_branch(path: str) -> list[_ContentLine]:
    """Return the path from the root of the tree to the latest entry."""
    entries = {one.id: one for one in read_records(path, _content_line) if one.id is not None}
    branch: list[_ContentLine] = []
    entry = next(reversed(entries.values()), None)
    while entry is not None and len(branch) <= len(entries):
        branch.append(entry)
        entry = entries.get(entry.parent_id or "")
    return branch[::-1]


def _content_entries(entry: _ContentLine, tools: dict[str, str]) -> Iterator[ContentEntry]:
    message = entry.message
    if entry.type == "compaction":
        yield Compaction()
        yield Part("summary", entry.summary)
    elif message is not None and message.role == "toolResult":
        yield Part("result", message.content, message.tool_name or "")
    elif message is not None and message.role in ("user", "assistant"):
        if entry.call is not None:
            yield PromptSize(entry.call[1].prompt_tokens)
        kind: ContentKind = "assistant" if message.role == "assistant" else "user"
        yield from message_parts(message.content, kind, tools)


class _Node(msgspec.Struct, frozen=True):
    track: ContextTrack = ContextTrack()
    active: bool | None = None


class _Session(SessionLines, dict=True):
    tip: str | None = None
    has_header: bool = False
    """Whether the file is a session. Other files, such as pi-subagents', only repeat messages."""

    @property
    def nodes(self) -> dict[str, _Node] | None:
        """The context size after each entry, keyed by entry id.

        Not saved with the state. Available only while a file is read from the start.
        """
        return self.__dict__.get("nodes")

    @nodes.setter
    def nodes(self, nodes: dict[str, _Node]) -> None:
        self.__dict__["nodes"] = nodes

    def snapshots(self) -> Iterable[SessionSnapshot]:
        return super().snapshots() if self.has_header else ()

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session = self.session
        for entry in lines.records(_entry):
            self.has_header |= entry.type == "session"
            is_event = entry.type != "message" and entry.message is not None
            if not self.has_header or is_event:
                continue
            session.touch(parse_iso_time(entry.timestamp))
            if entry.type == "session":
                session.id = entry.id or session.id
                session.work_in(entry.cwd)
                continue
            if entry.type == "session_info":
                session.title_at = lines.position if entry.name else session.title_at
            if entry.id is not None:
                self._extend_branch(entry, entry.id)
            yield from self._call(entry)

    def _extend_branch(self, entry: _Entry, name: str) -> None:
        session = self.session
        node = _Node(session.track, session.active)
        if entry.parent_id != self.tip:
            if self.nodes is None:
                raise StartOverError
            node = self.nodes.get(entry.parent_id or "", _Node())
        session.track, session.active, self.tip = node.track, node.active, name
        if entry.type == "compaction":
            session.track, session.active = node.track.compaction(), False
        elif entry.message is not None:
            self._measure(entry, entry.message)
        if self.nodes is not None:
            self.nodes[name] = _Node(session.track, session.active)

    def _measure(self, entry: _Entry, message: _Message) -> None:
        session = self.session
        is_over = message.role == "assistant" and message.stop_reason not in (None, "toolUse")
        session.active = not is_over
        if entry.call is not None and message.stop_reason not in _FAILED:
            session.track = session.track.call(CallSize.of(entry.call[1], message.model))

    def _call(self, entry: _Entry) -> list[CallFinished]:
        if entry.call is None:
            return []
        message, usage = entry.call
        cost = message.usage and message.usage.cost
        return self.session.call(
            parse_iso_time(entry.timestamp),
            usage,
            # Forks copy entries with their original ids and timestamps.
            f"{entry.id or self.session.id}/{entry.timestamp}",
            message.model,
            message.provider,
            agent_cost_usd=parse_usd(cost.total) if cost else None,
        )
