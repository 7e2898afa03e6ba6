"""Reads Zed's `threads/threads.db`, with one JSON document per thread, usually compressed.

The usage of a message covers only the latest call in its turn, so costs are based on the
cumulative usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from sidecar import typed
from sidecar.agents.compressed import decompress
from sidecar.agents.contents import ContentEntry, ContentKind, Part, PromptSize
from sidecar.agents.databases import DatabaseState, OneDatabase, columns, read_only, rows
from sidecar.agents.events import CallFinished, CallSize
from sidecar.agents.fields import Number, Record, parse_iso_time, provider_of, token_count
from sidecar.agents.places import agent_folders
from sidecar.agents.stores import ContextTrack, SessionState
from sidecar.messages.usage import Usage, usage_from_parts

if TYPE_CHECKING:
    import sqlite3
    from datetime import datetime
    from pathlib import Path

    from sidecar.agents.places import Places

AGENT = "zed"
_MOST = 256 << 20


class _Tokens(Record):
    input_tokens: Number = None
    output_tokens: Number = None
    cache_creation_input_tokens: Number = None
    cache_read_input_tokens: Number = None

    @property
    def usage(self) -> Usage:
        read, write = (
            token_count(self.cache_read_input_tokens),
            token_count(self.cache_creation_input_tokens),
        )
        return usage_from_parts(
            token_count(self.input_tokens), read, write, 0, token_count(self.output_tokens), 0
        )


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
    """The usage by user message id. Before version 0.3, this is a list in chronological order."""
    cumulative_token_usage: _Tokens | None = None
    model: _Model | None = None

    @property
    def newest(self) -> Usage | None:
        """The usage of the latest call, or None before the first reply."""
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


def _read_rows(
    connection: sqlite3.Connection, since: str | float | None = None
) -> Iterator[tuple[str, str, str | None, str, str | None, str | None, bytes]]:
    """Yield the id, time, title, format, parent, folders and document of each thread."""
    known = columns(connection, "threads")
    if not {"id", "updated_at", "data_type", "data"} <= known:
        return
    rest = ", ".join(
        name if name in known else "NULL"
        for name in ("summary", "data_type", "parent_id", "folder_paths", "data")
    )
    yield from connection.execute(
        f"SELECT id, updated_at, {rest} FROM threads WHERE ? IS NULL OR updated_at >= ?",  # noqa: S608
        (since, since),
    )


def _decode_thread(form: str, data: bytes | str) -> _Thread:
    """Decode a thread.

    Raises:
        OSError: The compressed data is corrupt.
        msgspec.DecodeError: The document is malformed.
    """
    found = data.encode() if isinstance(data, str) else data
    return _thread(decompress(found, _MOST) if form == "zstd" else found)


class Zed(OneDatabase):
    agent, table = AGENT, "threads"

    def paths(self, places: Places) -> tuple[Path, ...]:
        return tuple(home / "threads" / "threads.db" for home in agent_folders(places, AGENT))

    def title_of(self, row: dict[str, Any]) -> object:
        return row.get("summary")

    def changes(
        self, _path: str, connection: sqlite3.Connection, state: DatabaseState
    ) -> Iterator[CallFinished]:
        for name, updated, title, form, parent, folders, data in _read_rows(connection, state.at):
            state.advance(updated)
            state.sessions.pop(name, None)
            try:
                thread = _decode_thread(form, data)
            except (OSError, msgspec.DecodeError):
                state.skipped += 1
                continue
            at, model = parse_iso_time(updated), thread.model or _Model()
            if not parent:
                session = SessionState(name, at=at, model=model.model)
                session.work_in(folders)
                session.title_at = name if title else None
                if thread.newest is not None:
                    session.track = ContextTrack().call(CallSize.of(thread.newest, model.model))
                state.sessions[name] = session
            if at is not None:
                yield _call_of_thread(name, parent, folders, at, thread)

    def contents(self, path: str, session: str) -> Iterator[ContentEntry]:
        with read_only(path) as connection:
            for row in rows(connection, self.table, "id = ?", session):
                data, form = row.get("data") or b"", str(row.get("data_type"))
                yield from _content_entries(_decode_contents(form, data))


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


def _decode_contents(form: str, data: bytes | str) -> _ContentThread:
    found = data.encode() if isinstance(data, str) else data
    try:
        return _content_thread(decompress(found, _MOST) if form == "zstd" else found)
    except msgspec.DecodeError as error:
        raise OSError("corrupt thread") from error


def _content_entries(thread: _ContentThread) -> Iterator[ContentEntry]:
    """Yield the parts of a thread. A turn's prompt size is yielded before the turn's last reply."""
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


def _call_of_thread(
    name: str, parent: str | None, folders: str | None, at: datetime, thread: _Thread
) -> CallFinished:
    """Combine all calls of a thread, based on its cumulative usage."""
    made = thread.model or _Model()
    model = made.model or "unknown"
    return CallFinished(
        at=at,
        session=parent or name,
        model=model,
        provider=provider_of(model) if made.provider in (None, "zed.dev") else str(made.provider),
        usage=(thread.cumulative_token_usage or _Tokens()).usage,
        request=name,
        workspace=(folders or "").split("\n")[0],
        category="subagent" if parent else "main",
    )
