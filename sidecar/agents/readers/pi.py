"""Reads the `sessions/--<folder>--/*.jsonl` of Pi and its forks.

The entries in a file form a tree based on `id` and `parentId`. oh-my-pi keeps the files of a
session's sub-agents in a folder beside the session's file, with the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sidecar import typed
from sidecar.agents.context_sizes import Content, ContextSizes
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    json_digest,
    open_quietly,
    parse_iso_time,
    parse_usd,
    reported_usage,
    try_decode_settings,
)
from sidecar.agents.folders import Places, Roots, agent_folders
from sidecar.agents.session_events import CallFinished, CallSize, Category, Store, StoredSession
from sidecar.agents.stores import (
    ContextTrack,
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    StartOverError,
    record_at,
    store_from_path,
)
from sidecar.messages.vendor_usage import Usage

_PI = "pi"
_FAILED = ("aborted", "error")
_CONTINUED = (None, "toolUse", "deferred")
"""A turn goes on after a reply with one of these stop reasons."""
_OH_MY_PI = "oh-my-pi"
_SHARED_VARIABLE = "PI_CODING_AGENT_DIR"
"""Names the folder of both Pi and oh-my-pi."""
_TITLE = b'{"type":"title"'
"""The start of each file of oh-my-pi."""
_EXIT = "session_exit"
_MODEL_FILES = ("models.json", "models.yml", "models.yaml", "openclaw.json")
"""The user's settings of models. oh-my-pi's are in YAML."""
_SUMMARIES = ("compaction", "branch_summary")
_ROLES = ("user", "assistant", "toolResult")
"""The messages that belong to a turn. Commands that the user runs (`!`), for example, do not."""


class _Cost(CamelRecord):
    total: Number = None
    """The cost in USD, according to the user's or Pi's price list."""
    total_from_provider: bool | None = None
    """Whether the provider reported `total`."""


class _CacheLifetimes(CamelRecord):
    """The tokens written to the cache by lifetime, as oh-my-pi writes them."""

    ephemeral_1h: TokenCount = msgspec.field(name="ephemeral1h", default=None)


class _Usage(CamelRecord):
    input: TokenCount = None
    output: TokenCount = None
    cache_read: TokenCount = None
    cache_write: TokenCount = None
    cache_write_1h: TokenCount = msgspec.field(name="cacheWrite1h", default=None)
    cttl: _CacheLifetimes | None = None
    reasoning: TokenCount = None
    reasoning_tokens: TokenCount = None
    cost: _Cost | None = None

    @property
    def tokens(self) -> Usage:
        cached = self.cache_read, self.cache_write
        return reported_usage(
            self.input,
            self.output,
            *cached,
            self.reasoning or self.reasoning_tokens,
            written_1h=self.cache_write_1h or (self.cttl and self.cttl.ephemeral_1h),
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
    content: Content = None
    tool_name: str | None = None
    sections: msgspec.Raw = msgspec.Raw(b"")
    """The parts of a system prompt."""
    tools_added: msgspec.Raw = msgspec.Raw(b"")
    tools_removed: msgspec.Raw = msgspec.Raw(b"")
    thinking_level: str | None = None

    def add_to(self, sizes: ContextSizes, content: Content) -> None:
        """Add the message's parts with the given content, which an extension may have changed."""
        if self.role == "toolResult":
            sizes.add_message(content, "result", self.tool_name or "")
        elif self.role in ("user", "assistant"):
            sizes.add_message(content, "assistant" if self.role == "assistant" else "user")


class _Entry(CamelRecord):
    type: str | None = None
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    name: str | None = None
    title: str | None = None
    """The session's name in the first line of an oh-my-pi file, which is written in place."""
    custom_type: str | None = None
    model_id: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    from_hook: bool | None = None
    """Whether an extension made this summary, possibly with another model."""
    message: _Message | None = None
    summary: msgspec.Raw = msgspec.Raw(b"")
    content: Content = None
    first_kept_entry_id: str | None = None
    target_id: str | None = None
    replacement: Content = None

    @property
    def reply(self) -> tuple[_Message, Usage] | None:
        """The message and its usage if this entry is a reply, otherwise None."""
        message = self.message
        if message is None or message.role != "assistant" or message.usage is None:
            return None
        return message, message.usage.tokens

    @property
    def changes_earlier(self) -> bool:
        """Whether the entry changes what the model sees of the entries before it."""
        return self.type == "context_edit" or self.first_kept_entry_id is not None

    def add_parts(self, sizes: ContextSizes) -> None:
        if self.type in _SUMMARIES:
            sizes.add("summary", self.summary)
        elif self.type == "custom_message":
            sizes.add_message(self.content, "user")
        elif self.message is not None:
            self.message.add_to(sizes, self.message.content)


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


class _Models(Record):
    providers: dict[str, _Provider] | None = None


class _Settings(_Models):
    models: _Models | None = None


_entry = typed.decoder(_Entry)


class Pi(LineReader):
    inner = ("sessions",)
    pattern = r".*\.jsonl"

    def make_store(self, path: str) -> Store | None:
        is_main = not os.path.exists(_file_of_parent(path))
        return store_from_path(self.agent, path, live=is_main)

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        yield from (one for one in super().find(places, roots) if self._wrote(places, one))

    def store_at(self, places: Places, path: str) -> Store | None:
        store = super().store_at(places, path)
        return store if store and self._wrote(places, store) else None

    def _wrote(self, places: Places, store: Store) -> bool:
        """Return whether this agent wrote a file, because Pi and oh-my-pi share a variable."""
        if self.agent not in (_PI, _OH_MY_PI) or not places.variable(_SHARED_VARIABLE):
            return True
        path = store.path if store.live else _file_of_parent(store.path)
        return _starts_with_title(path) == (self.agent == _OH_MY_PI)

    def begin(self, store: Store) -> PiSession:
        session = PiSession(SessionState(Path(store.path).stem))
        if not store.live:
            session.parent = Path(_file_of_parent(store.path)).stem.rpartition("_")[2]
        session.steps = {}
        return session

    def title(self, store: Store, title_at: str) -> str | None:
        entry = record_at(store.path, title_at, _entry)
        return (entry.title if entry.type == "title" else entry.name) if entry else None

    def window(self, places: Places, session: StoredSession) -> int | None:
        return window_in_settings(places, self.agent, session)


READER = Pi()


def window_in_settings(places: Places, agent: str, session: StoredSession) -> int | None:
    """Return the model's smallest context window in the user's settings, in tokens, or None."""
    paths = (home / name for home in agent_folders(places, agent) for name in _MODEL_FILES)
    files = [try_decode_settings(path, _Settings) or _Settings() for path in paths]
    # OpenClaw has the same settings in a table of its only settings file.
    models = [one for settings in files for one in (settings, settings.models) if one]
    providers = (one for settings in models for one in (settings.providers or {}).values())
    windows = (one.window(session.model or "") for one in providers)
    return min(filter(None, windows), default=None)


def _starts_with_title(path: str) -> bool:
    try:
        with open_quietly(path) as file:
            return file.read(len(_TITLE)) == _TITLE
    except OSError:
        return False


def _file_of_parent(path: str) -> str:
    """Return the path of the session's file if the file at `path` is one of its sub-agents'."""
    return f"{os.path.dirname(path)}.jsonl"


class _Node(msgspec.Struct, frozen=True):
    """The state of a session after an entry."""

    track: ContextTrack = ContextTrack()
    active: bool | None = None
    model: str | None = None
    """The selected model."""
    provider: str | None = None


class _Step(NamedTuple):
    """What is remembered about an entry while a file is read from the start."""

    node: _Node
    parent: str | None
    message: _Message | None
    prompt: int
    sizes: ContextSizes
    """The sizes of the entry's parts, or of those that an edit puts in another entry's place."""
    edited: str | None
    """The entry that an edit changes."""
    compacts: bool
    first_kept: str | None
    """The first of the earlier entries that a compaction keeps."""


def _measure_branch(steps: dict[str, _Step], tip: str | None) -> ContextSizes:
    """Return the sizes of the context after an entry."""
    branch, step = dict[str, _Step](), steps.get(tip or "")
    while tip is not None and step is not None and tip not in branch:
        branch[tip] = step
        tip, step = step.parent, steps.get(step.parent or "")
    names = [*reversed(branch)]
    edits = {step.edited: step.sizes for step in map(steps.__getitem__, names) if step.edited}
    compaction = next((name for name in branch if branch[name].compacts), None)
    if compaction is not None:
        start, kept = names.index(compaction), branch[compaction].first_kept
        before = names[names.index(kept) : start] if kept in names[:start] else []
        names = [compaction, *before, *names[start + 1 :]]
    sizes = ContextSizes()
    for name in names:
        step = branch[name]
        sizes.add_prompt(step.prompt)
        if step.edited is None:
            sizes.merge(edits.get(name, step.sizes))
    return sizes


class PiSession(SessionLines, dict=True):
    tip: str | None = None
    has_header: bool = False
    """Whether the file is a session. Other files, such as pi-subagents', only repeat messages."""
    node: _Node = _Node()
    parent: str | None = None
    """The session that started this sub-agent, or None for a main conversation."""

    @property
    def steps(self) -> dict[str, _Step] | None:
        """The entries, keyed by entry id.

        Not saved with the state. Available only while a file is read from the start.
        """
        return self.__dict__.get("steps")

    @steps.setter
    def steps(self, steps: dict[str, _Step]) -> None:
        self.__dict__["steps"] = steps

    def snapshots(self) -> Iterable[StoredSession]:
        if self.steps:
            self.session.sizes = _measure_branch(self.steps, self.tip)
        return super().snapshots() if self.has_header and self.parent is None else ()

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session = self.session
        for entry in lines.records(_entry):
            self.has_header |= entry.type == "session"
            if entry.type == "title":
                session.title_at = lines.position if entry.title else None
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
            self._note_facts(entry)
            before = self.node
            self._extend_branch(entry)
            yield from self._call(entry, before)

    def _note_facts(self, entry: _Entry) -> None:
        """Note what can make the next call lose its cache."""
        message = entry.message or _Message()
        is_prompt = message.role == "system"
        self.session.note(
            effort=message.thinking_level,
            system=json_digest(message.sections) if is_prompt else None,
            tools=json_digest(message.tools_added, message.tools_removed) if is_prompt else None,
            is_compacted=entry.type == "compaction" or None,
            is_edited=entry.type == "context_edit" or None,
            is_rewound=(self.tip is not None and entry.parent_id != self.tip) or None,
        )

    def _extend_branch(self, entry: _Entry) -> None:
        """Update the state. Entries of version 1 have no ids: each follows the one before it."""
        node, steps = self.node, self.steps
        if steps is None and (entry.parent_id != self.tip or entry.changes_earlier):
            raise StartOverError
        if steps is not None and entry.parent_id != self.tip:
            parent = steps.get(entry.parent_id or "")
            node = parent.node if parent else _Node()
        self.node, self.tip = _next_node(node, entry), entry.id
        self._measure(entry)
        session, node = self.session, self.node
        session.track, session.active = node.track, node.active
        session.model = node.model or session.model

    def _measure(self, entry: _Entry) -> None:
        steps, sizes = self.steps or {}, self.session.sizes
        own, edited = sizes.new_message(), None
        if entry.type == "context_edit" and entry.target_id in steps:
            edited = entry.target_id
            message = steps[edited].message or _Message(role="user")
            message.add_to(own, entry.replacement)
        else:
            entry.add_parts(own)
        prompt = entry.reply[1].prompt_tokens if entry.reply else 0
        compacts = entry.type == "compaction"
        if compacts:
            sizes.compact()
        sizes.add_prompt(prompt)
        sizes.merge(own)
        if self.steps is None or entry.id is None:
            return
        if entry.message is not None:
            entry.message.content = None  # free the text
        self.steps[entry.id] = _Step(
            self.node,
            entry.parent_id,
            entry.message,
            prompt,
            own,
            edited,
            compacts,
            entry.first_kept_entry_id,
        )

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
            session=self.parent,
            category="subagent" if self.parent else category,
            reported_cost=usd if cost.total_from_provider else None,
            agent_cost=None if cost.total_from_provider else usd,
        )


def _next_node(node: _Node, entry: _Entry) -> _Node:
    """Return the state after an entry that follows `node`."""
    message = entry.message
    if entry.type == "model_change":
        provider, _, model = (entry.model or "").partition("/")  # as oh-my-pi writes them
        model = entry.model_id or model
        return replace(node, model=model or None, provider=entry.provider or provider or None)
    if entry.type == "compaction":
        return replace(node, track=node.track.compaction(), active=False)
    if entry.custom_type == _EXIT:
        return replace(node, active=False)
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
