"""Reads Pi's `sessions/--<folder>--/*.jsonl`.

The entries in a file form a tree based on `id` and `parentId`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.contents import (
    Compaction,
    ContentEntry,
    ContentKind,
    Part,
    PromptSize,
    message_parts,
)
from sidecar.agents.events import CallFinished, CallSize, Category, SessionSnapshot, Store
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
    read_records,
    record_at,
)

if TYPE_CHECKING:
    from sidecar.agents.events import StoredSession
    from sidecar.agents.places import Places
    from sidecar.messages.usage import Usage

AGENT = "pi"
_FAILED = ("aborted", "error")
_CONTINUED = (None, "toolUse", "deferred")
"""A turn goes on after a reply with one of these stop reasons."""
_SUMMARIES = ("compaction", "branch_summary")
_ROLES = ("user", "assistant", "toolResult")
"""The messages that belong to a turn. Commands that the user runs (`!`), for example, do not."""


class _Cost(CamelRecord):
    total: Number = None
    """The cost in USD, according to the user's or Pi's price list."""
    total_from_provider: bool | None = None
    """Whether the provider reported `total`."""


class _Usage(CamelRecord):
    input: TokenCount = None
    output: TokenCount = None
    cache_read: TokenCount = None
    cache_write: TokenCount = None
    cache_write_1h: TokenCount = msgspec.field(name="cacheWrite1h", default=None)
    reasoning: TokenCount = None
    cost: _Cost | None = None

    @property
    def tokens(self) -> Usage:
        cached = self.cache_read, self.cache_write
        return reported_usage(
            self.input,
            self.output,
            *cached,
            self.reasoning,
            written_1h=self.cache_write_1h,
            includes_cached=False,
        )


class _Message(CamelRecord):
    role: str | None = None
    provider: str | None = None
    model: str | None = None
    response_model: str | None = None
    """The model that answered, if the provider named another one than was requested."""
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Entry(CamelRecord):
    type: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    name: str | None = None
    model_id: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    from_hook: bool | None = None
    """Whether an extension made this summary, possibly with another model."""
    message: _Message | None = None

    @property
    def reply(self) -> tuple[_Message, Usage] | None:
        """The message and its usage if this entry is a reply, otherwise None."""
        message = self.message
        if message is None or message.role != "assistant" or message.usage is None:
            return None
        return message, message.usage.tokens


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
        branch, tools = _with_edits(_newest_branch(path)), dict[str, str]()
        for number, entry in enumerate(branch):
            yield from _content_entries(entry, tools)
            if entry.type == "compaction":
                kept = [one.id for one in branch[:number]]
                if entry.first_kept_entry_id in kept:
                    for one in branch[kept.index(entry.first_kept_entry_id) : number]:
                        parts = _content_entries(one, tools)
                        yield from (part for part in parts if isinstance(part, Part))

    def compacts_at(self, window: int, model: str) -> int:  # noqa: ARG002
        return window - 16_384


READER = Pi()


class _ContentMessage(_Message):
    content: msgspec.Raw = msgspec.Raw(b"")
    tool_name: str | None = None


class _ContentLine(_Entry):
    summary: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
    first_kept_entry_id: str | None = None
    target_id: str | None = None
    replacement: msgspec.Raw = msgspec.Raw(b"null")
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


def _with_edits(branch: list[_ContentLine]) -> list[_ContentLine]:
    """Return the entries with the content that the model sees. A removed content is empty."""
    edits = {one.target_id: one.replacement for one in branch if one.type == "context_edit"}
    removed, edited = msgspec.Raw(b""), list[_ContentLine]()
    for entry in branch:
        if (content := edits.get(entry.id)) is not None:
            content = removed if bytes(content) == b"null" else content
            message = entry.message and replace(entry.message, content=content)
            entry = replace(entry, content=content, message=message)
        edited.append(entry)
    return edited


def _content_entries(entry: _ContentLine, tools: dict[str, str]) -> Iterator[ContentEntry]:
    message = entry.message
    if entry.type == "compaction":
        yield Compaction()
        yield Part("summary", entry.summary)
    elif entry.type == "branch_summary":
        yield Part("summary", entry.summary)
    elif entry.type == "custom_message":
        yield from message_parts(entry.content, "user", tools)
    elif message is not None and message.role == "toolResult":
        yield Part("result", message.content, message.tool_name or "")
    elif message is not None and message.role in ("user", "assistant"):
        if entry.reply is not None:
            yield PromptSize(entry.reply[1].prompt_tokens)
        kind: ContentKind = "assistant" if message.role == "assistant" else "user"
        yield from message_parts(message.content, kind, tools)


class _Node(msgspec.Struct, frozen=True):
    """The state of a session after an entry."""

    track: ContextTrack = ContextTrack()
    active: bool | None = None
    model: str | None = None
    """The selected model."""
    provider: str | None = None


class _Session(SessionLines, dict=True):
    tip: str | None = None
    has_header: bool = False
    """Whether the file is a session. Other files, such as pi-subagents', only repeat messages."""
    node: _Node = _Node()

    @property
    def nodes(self) -> dict[str, _Node] | None:
        """The state after each entry, keyed by entry id.

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
            before = self.node
            self._extend_branch(entry)
            yield from self._call(entry, before)

    def _extend_branch(self, entry: _Entry) -> None:
        """Update the state. Entries of version 1 have no ids: each follows the one before it."""
        node = self.node
        if entry.parent_id != self.tip:
            if self.nodes is None:
                raise StartOverError
            node = self.nodes.get(entry.parent_id or "", _Node())
        self.node, self.tip = _next_node(node, entry), entry.id
        session, node = self.session, self.node
        session.track, session.active = node.track, node.active
        session.model = node.model or session.model
        if self.nodes is not None and entry.id is not None:
            self.nodes[entry.id] = node

    def _call(self, entry: _Entry, before: _Node) -> list[CallFinished]:
        """Return the entry's call.

        The selected model writes summaries, also those of a branch that the user leaves. The calls
        of tools, and of extensions that write summaries, do not name their model.
        """
        message, used = entry.message or _Message(), entry.usage
        model, provider = entry.model, entry.provider
        category: Category = "main"
        if entry.type in _SUMMARIES:
            category = "summary"
            if not entry.from_hook:
                model, provider = before.model, before.provider
        elif message.role == "assistant":
            used, provider = message.usage, message.provider
            model = message.response_model or message.model
        elif message.role == "toolResult":
            used, category = message.usage, "subagent"
        if used is None:
            return []
        cost = used.cost or _Cost()
        usd = parse_usd(cost.total)
        return self.session.call(
            parse_iso_time(entry.timestamp),
            used.tokens,
            # Forks copy entries with their original ids and timestamps.
            f"{entry.id or self.session.id}/{entry.timestamp}",
            model,
            provider,
            category=category,
            cost_usd=usd if cost.total_from_provider else None,
            agent_cost_usd=None if cost.total_from_provider else usd,
        )


def _next_node(node: _Node, entry: _Entry) -> _Node:
    """Return the state after an entry that follows `node`."""
    message = entry.message
    if entry.type == "model_change":
        return replace(node, model=entry.model_id, provider=entry.provider)
    if entry.type == "compaction":
        return replace(node, track=node.track.compaction(), active=False)
    if message is None or message.role not in _ROLES:
        return node
    is_over = message.role == "assistant" and message.stop_reason not in _CONTINUED
    node = replace(node, active=not is_over)
    if message.role == "assistant":
        names = {"model": message.model or node.model, "provider": message.provider}
        node = replace(node, **names)
    if entry.reply is not None and message.stop_reason not in _FAILED:
        node = replace(node, track=node.track.call(CallSize.of(entry.reply[1], message.model)))
    return node
