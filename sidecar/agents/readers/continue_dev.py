"""Reads sessions from Continue's command-line tool, and calls from its editor extensions.

The command-line tool stores `sessions/<session>.json`, a JSON document without timestamps that is
rewritten on each save. It contains the total usage of all calls, but not all replies: those from
sub-agents, those in aborted turns, and those that summarize the conversation are missing. The
extensions store `dev_data/*/tokensGenerated.jsonl`, which has one line per call and no sessions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import Content, ContextSizes, PartKind
from sidecar.agents.file_reading import (
    CamelRecord,
    Number,
    Record,
    TokenCount,
    decode_file,
    parse_time,
    parse_usd,
    reported_usage,
    time_from_ns,
    token_count,
    try_decode_file,
    try_decode_settings,
)
from sidecar.agents.folders import Places, Roots
from sidecar.agents.session_events import CallFinished, CallSize, Store, StoredSession, StoreRead
from sidecar.agents.stores import (
    FileStores,
    LineReader,
    Lines,
    SessionState,
    TwoStores,
    read_store,
    store_from_path,
)
from sidecar.messages.vendor_usage import Usage


class _Line(CamelRecord):
    timestamp: str | float | None = None
    model: str | None = None
    provider: str | None = None
    prompt_tokens: Number = None
    generated_tokens: Number = None


_line = typed.decoder(_Line)


class ContinueDev(LineReader):
    """Reads the calls of Continue's extensions."""

    inner = ("dev_data",)
    pattern = r"[^/]+/tokensGenerated\.jsonl"

    def find(self, places: Places, roots: Roots | None = None) -> Iterator[Store]:
        return super().find(places) if roots is None else iter(())

    def make_store(self, path: str) -> Store | None:
        return store_from_path(self.agent, path, live=False)

    def begin(self, store: Store) -> _File:  # noqa: ARG002
        return _File()


class _File(msgspec.Struct):
    lines: int = 0

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        for line in lines.records(_line):
            self.lines += 1
            at = parse_time(line.timestamp)
            usage = reported_usage(line.prompt_tokens, line.generated_tokens)
            number = b"%d %b" % (self.lines, lines.line)
            request = blake2b(number, digest_size=12).hexdigest()
            yield from SessionState("").call(at, usage, request, line.model, line.provider)

    def snapshots(self) -> Iterable[StoredSession]:
        return ()


_UNTITLED = "Untitled Session"
_SILENT_SECONDS = 3_600.0
"""If a reply is still missing this many seconds after the last save, it will never be stored."""


class _Cached(Record):
    cached_tokens: Number = None
    cache_write_tokens: Number = None


class _Reasoning(Record):
    reasoning_tokens: Number = None


class _MessageUsage(Record):
    model: str | None = None
    prompt_tokens: Number = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens: Number = None
    completion_tokens_details: _Reasoning | None = None
    cost_cents: Number = None
    """The cost in cents according to Continue's price list, rounded."""

    @property
    def usage(self) -> Usage:
        cached = self.prompt_tokens_details or _Cached()
        read, written = cached.cached_tokens, cached.cache_write_tokens
        reasoning = (self.completion_tokens_details or _Reasoning()).reasoning_tokens
        counts = self.prompt_tokens, self.completion_tokens, read, written, reasoning
        return reported_usage(*counts)


class _Message(Record):
    role: str | None = None
    usage: _MessageUsage | None = None
    content: Content = None


class _ContextItem(Record):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Function(Record):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ToolCall(Record):
    function: _Function | None = None


class _CalledTool(CamelRecord):
    tool_call: _ToolCall | None = None
    output: msgspec.Raw = msgspec.Raw(b"")


class _Item(CamelRecord):
    message: _Message | None = None
    context_items: list[_ContextItem] | None = None
    tool_call_states: list[_CalledTool] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the agent continues after this item."""
        return not self.message or self.message.role != "assistant" or bool(self.tool_call_states)

    def add_parts(self, sizes: ContextSizes) -> None:
        """Add the item's call size and parts."""
        message = self.message or _Message()
        if message.usage is not None:
            sizes.add_prompt(message.usage.usage.prompt_tokens)
        kinds: dict[str | None, PartKind] = {"user": "user", "system": "instructions"}
        sizes.add_message(message.content, kinds.get(message.role, "assistant"))
        for item in self.context_items or ():
            sizes.add("attachment", item.content)
        for called in self.tool_call_states or ():
            function = (called.tool_call and called.tool_call.function) or _Function()
            sizes.add("call", function.arguments, function.name or "")
            sizes.add("result", called.output, function.name or "")


class _SessionUsage(CamelRecord):
    prompt_tokens: Number = None
    completion_tokens: Number = None


class _Session(CamelRecord):
    session_id: str | None = None
    title: str | None = None
    workspace_directory: str | None = None
    history: list[_Item] | None = None
    usage: _SessionUsage | None = None

    @property
    def own_title(self) -> str | None:
        return self.title if self.title != _UNTITLED else None

    @property
    def is_waiting(self) -> bool:
        """Whether a turn is running, based on the last message."""
        items = self.history or []
        return bool(items) and items[-1].is_waiting

    @property
    def model(self) -> str | None:
        return next((one.model for one in reversed(self.replies) if one.model), None)

    @property
    def replies(self) -> list[_MessageUsage]:
        """The usage of each stored reply."""
        messages = (item.message for item in self.history or ())
        used = (one.usage for one in messages if one and one.role == "assistant")
        return [one for one in used if one and token_count(one.prompt_tokens)]


class _State(msgspec.Struct):
    replies: dict[str, tuple[int, int]] = {}
    """The prompt and output tokens of each reply, or zeros for replies copied from a parent."""
    unlisted: tuple[int, int] = (0, 0)
    """The total prompt and output tokens of all calls without a stored reply."""

    @property
    def prompt(self) -> int:
        return sum(prompt for prompt, _ in self.replies.values())

    @property
    def output(self) -> int:
        return sum(output for _, output in self.replies.values())


class ContinueSessions(FileStores):
    inner = ("sessions",)
    pattern = r"(?!sessions\.json)[^/]+\.json"

    def make_store(self, path: str) -> Store | None:
        """Return a session's store. The inode is cleared, because saving may change it."""
        store = store_from_path(self.agent, path)
        return msgspec.structs.replace(store, inode=0) if store else None

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        for item in decode_file(path, _Session).history or ():
            item.add_parts(sizes)

    def read(self, store: Store, state: bytes = b"") -> StoreRead:
        return read_store(store, state, _State, partial(_read_session, store))

    def title(self, store: Store, title_at: str) -> str | None:  # noqa: ARG002
        session = try_decode_file(store.path, _Session)
        return session.own_title if session else None

    def window(self, places: Places, session: StoredSession) -> int | None:  # noqa: ARG002
        return _read_window(Path(session.path).parents[1], session.model or "")


READER = TwoStores(ContinueSessions(), ContinueDev(), lambda path: not path.endswith(".json"))


def _read_session(store: Store, state: _State) -> StoreRead:
    document = decode_file(store.path, _Session)
    session = SessionState(
        document.session_id or Path(store.path).stem, updated_at=time_from_ns(store.mtime_ns)
    )
    session.work_in(document.workspace_directory)
    session.model, session.active = document.model, document.is_waiting
    session.title_at = session.id if document.own_title else None
    if document.replies:
        newest = document.replies[-1]
        session.track = session.track.call(CallSize.of(newest.usage, newest.model))
    for item in document.history or ():
        item.add_parts(session.sizes)
    is_first = not state.replies
    calls = [*_reply_calls(document, session, state)]
    rest = _call_of_unlisted_usage(store, document, session, state, has_new=bool(calls))
    calls += [msgspec.structs.replace(call, is_unread_past=is_first) for call in rest]
    prompt = token_count((document.usage or _SessionUsage()).prompt_tokens)
    is_settled = prompt <= state.prompt + state.unlisted[0]
    return StoreRead([*reversed(calls)], [session.snapshot()], is_settled=is_settled)


def _reply_calls(
    document: _Session, session: SessionState, state: _State
) -> Iterator[CallFinished]:
    numbered, total = _replies_by_key(document.replies), document.usage or _SessionUsage()
    left = token_count(total.prompt_tokens) - state.prompt - state.unlisted[0]
    new = {key: reply for key, reply in numbered.items() if key not in state.replies}
    state.replies |= dict.fromkeys(new, (0, 0))
    for key, reply in reversed(new.items()):
        usage = reply.usage
        if total.prompt_tokens is not None and usage.prompt_tokens > left:
            break  # a fork starts with its parent's replies
        left -= usage.prompt_tokens
        state.replies[key] = usage.prompt_tokens, usage.output_tokens
        cost = parse_usd(reply.cost_cents and reply.cost_cents / 100)
        request = f"{session.id}/{key}"
        yield from session.call(session.updated_at, usage, request, reply.model, agent_cost=cost)


def _call_of_unlisted_usage(
    store: Store, document: _Session, session: SessionState, state: _State, *, has_new: bool
) -> list[CallFinished]:
    """Return a single call that stands for all new calls without a stored reply.

    Only the total of these calls is known. The result is empty if there are no such calls, or if
    their replies may still be stored.
    """
    total = document.usage or _SessionUsage()
    prompt = token_count(total.prompt_tokens) - state.prompt
    output = token_count(total.completion_tokens) - state.output
    is_over = has_new and not document.is_waiting
    is_silent = time.time() - store.mtime_ns / 1e9 > _SILENT_SECONDS
    before, output_before = state.unlisted
    if prompt <= before or not (is_over or is_silent):
        return []
    state.unlisted = prompt, output
    usage = reported_usage(prompt - before, output - output_before)
    return session.call(session.updated_at, usage, f"{session.id}/rest/{prompt}", session.model)


def _replies_by_key(replies: list[_MessageUsage]) -> dict[str, _MessageUsage]:
    found: dict[str, _MessageUsage] = {}
    for one in replies:
        usage, number = one.usage, 0
        tokens = f"{usage.prompt_tokens}/{usage.cache_read_tokens}/{usage.output_tokens}"
        while f"{tokens}/{number}" in found:
            number += 1
        found[f"{tokens}/{number}"] = one
    return found


class _Options(CamelRecord):
    context_length: TokenCount = None


class _Model(CamelRecord):
    model: str | None = None
    context_length: TokenCount = None
    default_completion_options: _Options | None = None


class _Settings(Record):
    models: list[_Model] | None = None


def _read_window(home: Path, model: str) -> int | None:
    windows: dict[str | None, int | None] = {}
    for name in ("config.json", "config.yaml"):
        for one in (try_decode_settings(home / name, _Settings) or _Settings()).models or ():
            options = one.default_completion_options or _Options()
            windows[one.model] = options.context_length or one.context_length
    return windows.get(model)
