"""Reads Zed's `threads/threads.db`, with one JSON document per thread, usually compressed.

A message's usage covers only the latest call in its turn, so costs are based on the thread's
cumulative usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.agents.compressed import decompress
from sidecar.agents.contents import ContentEntry, ContentKind, Part, PromptSize
from sidecar.agents.databases import (
    DatabaseState,
    OneDatabase,
    column_text,
    column_time,
    read_only,
    rows,
)
from sidecar.agents.events import CallFinished, CallSize
from sidecar.agents.fields import Number, Record, reported_usage
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import ContextTrack, SessionState

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from sidecar.agents.places import Places
    from sidecar.messages.usage import Usage

AGENT = "zed"
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


class _User(Record):
    id: str | None = None


class _Agent(Record):
    """A model's reply. Its contents are not decoded."""


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


_thread = typed.decoder(_Thread)


def _document(row: dict[str, Any]) -> bytes:
    """Return a thread's JSON document. Raises OSError if the compressed data is corrupt."""
    data = row.get("data") or b""
    data = data.encode() if isinstance(data, str) else bytes(data)
    return decompress(data, _MOST) if row.get("data_type") == "zstd" else data


class Zed(OneDatabase):
    agent, table = AGENT, "threads"

    def paths(self, places: Places) -> tuple[Path, ...]:
        return tuple(home / "threads" / "threads.db" for home in agent_folders(places, AGENT))

    def title_of(self, row: dict[str, Any]) -> object:
        return row.get("summary")

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
            model, folders = thread.model or _Model(), column_text(row.get("folder_paths"))
            session = SessionState(name, at=column_time(row["updated_at"]), model=model.model)
            session.work_in(folders)
            session.title_at = name if row.get("summary") else None
            if thread.newest is not None:
                session.track = ContextTrack().call(CallSize.of(thread.newest, model.model))
            if not parent:
                state.sessions[name] = session
            yield from session.call(
                session.at,
                (thread.cumulative_token_usage or _Tokens()).usage,
                name,
                model.model,
                None if model.provider == "zed.dev" else model.provider,
                session=parent or name,
                workspace=(folders or "").split("\n")[0],
                category="subagent" if parent else "main",
            )

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:
        with read_only(path) as connection:
            for row in rows(connection, self.table, "id = ?", session):
                try:
                    yield from _content_entries(_content_thread(_document(row)))
                except msgspec.DecodeError as error:
                    raise OSError("corrupt thread") from error


READER = Zed()


class _Text(Record):
    text: msgspec.Raw = msgspec.Raw(b"")


class _ToolUse(Record):
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"")


class _ToolResult(Record):
    tool_name: str | None = None
    content: msgspec.Raw = msgspec.Raw(b"")
    output: msgspec.Raw = msgspec.Raw(b"")


class _Mention(Record):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Block(Record):
    text: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Text")
    thinking: _Text | None = msgspec.field(default=None, name="Thinking")
    tool_use: _ToolUse | None = msgspec.field(default=None, name="ToolUse")
    mention: _Mention | None = msgspec.field(default=None, name="Mention")
    image: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Image")


class _UserContents(Record):
    id: str | None = None
    content: list[_Block] | None = None


class _AgentContents(Record):
    content: list[_Block] | None = None
    tool_results: dict[str, _ToolResult] | None = None


class _ContentMessage(Record):
    user: _UserContents | None = msgspec.field(default=None, name="User")
    agent: _AgentContents | None = msgspec.field(default=None, name="Agent")


class _ContentThread(Record):
    messages: list[_ContentMessage | str] | None = None
    request_token_usage: dict[str, _Tokens] | list[_Tokens] | None = None


_content_thread = typed.decoder(_ContentThread)


def _content_entries(thread: _ContentThread) -> Iterator[ContentEntry]:
    """Yield a thread's parts. A turn's prompt size is yielded before the turn's last reply."""
    sizes, turn = thread.request_token_usage, ""
    messages = [one for one in thread.messages or () if isinstance(one, _ContentMessage)]
    for number, message in enumerate(messages):
        if message.user is not None:
            turn = message.user.id or ""
            yield from _parts_of_blocks(message.user.content or (), "user")
        elif message.agent is not None:
            is_last = number + 1 == len(messages) or messages[number + 1].user is not None
            if is_last and isinstance(sizes, dict) and turn in sizes:
                yield PromptSize(sizes[turn].usage.prompt_tokens, has_all_before=True)
            yield from _parts_of_blocks(message.agent.content or (), "assistant")
            for result in (message.agent.tool_results or {}).values():
                yield Part("result", result.content, result.tool_name or "")


def _parts_of_blocks(blocks: Iterable[_Block], kind: ContentKind) -> Iterator[Part]:
    for block in blocks:
        yield Part(kind, block.text)
        if block.thinking is not None:
            yield Part(kind, block.thinking.text)
        if block.tool_use is not None:
            yield Part("call", block.tool_use.input, block.tool_use.name or "")
        if block.mention is not None:
            yield Part("attachment", block.mention.content)
        if bytes(block.image):
            yield Part("attachment")
