"""Reads Zed's `threads/threads.db`, with one JSON document per thread, usually compressed.

A message's usage covers only the latest call in its turn, so costs are based on the thread's
cumulative usage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import ContextSizes, PartKind
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    read_only,
    rows,
)
from sidecar.agents.file_reading import Number, Record, parse_time, reported_usage
from sidecar.agents.session_events import CallFinished, CallSize
from sidecar.agents.stores import ContextTrack, SessionState
from sidecar.messages.vendor_usage import Usage

_MOST = 256 << 20


class _Tokens(Record):
    input_tokens: Number = None
    output_tokens: Number = None
    cache_creation_input_tokens: Number = None
    cache_read_input_tokens: Number = None

    @property
    def usage(self) -> Usage:
        cached = self.cache_read_input_tokens, self.cache_creation_input_tokens
        return reported_usage(self.input_tokens, self.output_tokens, *cached, includes_cached=False)


class _Model(Record):
    provider: str | None = None
    model: str | None = None


class _Text(Record):
    text: msgspec.Raw = msgspec.Raw(b"")


class _ToolUse(Record):
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _ToolResult(Record):
    tool_name: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")


class _Mention(Record):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Block(Record):
    text: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Text")
    thinking: _Text | None = msgspec.field(default=None, name="Thinking")
    tool_use: _ToolUse | None = msgspec.field(default=None, name="ToolUse")
    mention: _Mention | None = msgspec.field(default=None, name="Mention")
    image: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Image")

    def add_to(self, sizes: ContextSizes, kind: PartKind) -> None:
        sizes.add(kind, self.text)
        if self.thinking is not None:
            sizes.add(kind, self.thinking.text)
        if self.tool_use is not None:
            sizes.add("call", self.tool_use.input, self.tool_use.name or "")
        if self.mention is not None:
            sizes.add("attachment", self.mention.content)
        if bytes(self.image):
            sizes.add_attachment()


class _User(Record):
    id: str | None = None
    content: list[_Block] | None = None


class _Agent(Record):
    """A model's reply, with the results of its tool calls."""

    content: list[_Block] | None = None
    tool_results: dict[str, _ToolResult] | None = None


class _Message(Record):
    """A message in a thread. Older threads have a `role` field instead of `User` and `Agent`."""

    user: _User | None = msgspec.field(default=None, name="User")
    agent: _Agent | None = msgspec.field(default=None, name="Agent")
    role: str | None = None

    @property
    def is_reply(self) -> bool:
        return self.agent is not None or self.role == "assistant"


class _Thread(Record):
    messages: list[_Message | str] | None = None
    request_token_usage: dict[str, _Tokens] | list[_Tokens] | None = None
    """The usage, keyed by user message id. Before version 0.3, it was a chronological list."""
    cumulative_token_usage: _Tokens | None = None
    model: _Model | None = None

    @property
    def newest(self) -> Usage | None:
        """The latest call's usage, or None before the first reply."""
        known = self.request_token_usage or {}
        if isinstance(known, list):
            return known[-1].usage
        messages = self.messages or []
        for one in reversed(messages):
            user = one.user if isinstance(one, _Message) else None
            if user is not None and user.id in known:
                return known[user.id].usage
        replied = any(isinstance(one, _Message) and one.is_reply for one in messages)
        return _Tokens().usage if replied else None

    def add_parts(self, sizes: ContextSizes) -> None:
        """Add the thread's parts. A turn's prompt size belongs to the turn's last reply."""
        prompts, turn = self.request_token_usage, ""
        messages = [one for one in self.messages or () if isinstance(one, _Message)]
        for number, message in enumerate(messages):
            if message.user is not None:
                turn = message.user.id or ""
                for block in message.user.content or ():
                    block.add_to(sizes, "user")
            elif message.agent is not None:
                is_last = number + 1 == len(messages) or messages[number + 1].user is not None
                if is_last and isinstance(prompts, dict) and turn in prompts:
                    sizes.add_prompt(prompts[turn].usage.prompt_tokens, has_all_before=True)
                for block in message.agent.content or ():
                    block.add_to(sizes, "assistant")
                for result in (message.agent.tool_results or {}).values():
                    sizes.add("result", result.content, result.tool_name or "")


_thread = typed.decoder(_Thread)


def _document(row: dict[str, Any]) -> bytes:
    """Return a thread's JSON document. Raises OSError if the compressed data is corrupt."""
    data = row.get("data") or b""
    data = data.encode() if isinstance(data, str) else bytes(data)
    if row.get("data_type") != "zstd":
        return data
    from sidecar.agents.compressed import decompress

    return decompress(data, _MOST)


class Zed(OneDatabase):
    files = ("threads/threads.db",)
    table, title_column = "threads", "summary"

    def changes(
        self, _path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        since = state.at
        for row in rows(connection, self.table, "? IS NULL OR updated_at >= ?", since, since):
            name, parent = str(row.get("id")), column_text(row.get("parent_id"))
            state.advance(row["updated_at"])
            state.sessions.pop(name, None)
            try:
                thread = _thread(_document(row))
            except (OSError, msgspec.DecodeError):
                state.skipped += 1
                continue
            model = thread.model or _Model()
            session = SessionState(
                name, updated_at=parse_time(row["updated_at"]), model=model.model
            )
            session.work_in(column_text(row.get("folder_paths")))
            session.title_at = name if row.get("summary") else None
            if thread.newest is not None:
                session.track = ContextTrack().call(CallSize.of(thread.newest, model.model))
            if not parent:
                thread.add_parts(session.sizes)
            session.subagent_of, state.sessions[name] = parent, session
            yield from session.call(
                session.updated_at,
                (thread.cumulative_token_usage or _Tokens()).usage,
                name,
                model.model,
                None if model.provider == "zed.dev" else model.provider,
                session=parent or name,
                category="subagent" if parent else "main",
            )

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:
        with read_only(path) as connection:
            for row in rows(connection, self.table, "id = ?", session):
                try:
                    _thread(_document(row)).add_parts(sizes)
                except msgspec.DecodeError as error:
                    raise OSError("corrupt thread") from error


READER = Zed()
