"""Reads Kimi CLI's `sessions/<md5 of the folder>/<session>/wire.jsonl`.

The status updates in this file contain the context size. The messages are in `context.jsonl`, which
Kimi CLI replaces after a compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import Content, ContextSizes
from sidecar.agents.file_reading import (
    Record,
    TokenCount,
    parse_time,
    reported_usage,
    try_decode_file,
)
from sidecar.agents.folders import folder_digest
from sidecar.agents.session_events import CallFinished, CallSize, Store
from sidecar.agents.stores import LineReader, Lines, SessionLines, SessionState, read_records
from sidecar.messages.vendor_usage import Usage

PROVIDER = "moonshotai"
_HEAD = 200
_COMPACTIONS = ("CompactionBegin", "CompactionEnd")


class _Tokens(Record):
    input_other: TokenCount = None
    output: TokenCount = None
    input_cache_read: TokenCount = None
    input_cache_creation: TokenCount = None

    @property
    def usage(self) -> Usage:
        cached = self.input_cache_read, self.input_cache_creation
        return reported_usage(self.input_other, self.output, *cached, includes_cached=False)


class _Payload(Record):
    token_usage: _Tokens | None = None
    context_tokens: TokenCount = None
    max_context_tokens: TokenCount = None
    message_id: str | None = None
    model: str | None = None


class _Message(Record):
    type: str | None = None
    payload: _Payload | None = None


class _Entry(Record):
    timestamp: float | None = None
    message: _Message | None = None

    @property
    def status(self) -> _Payload | None:
        """A status update's payload, or None for other lines."""
        message = self.message
        return message.payload if message and message.type == "StatusUpdate" else None


class _WorkDir(Record):
    path: str | None = None


class _Known(Record):
    work_dirs: list[_WorkDir] | None = None


_entry = typed.decoder(_Entry)


class KimiCli(LineReader):
    inner = ("sessions",)
    pattern = r".*wire\.jsonl"

    def begin(self, store: Store) -> _Wire:
        folder = Path(store.path).parent
        session = SessionState(folder.name)
        session.work_in(_folder_of_session(folder) or f"md5:{folder.parent.name}")
        return _Wire(session)

    def measure(self, path: str, session: str, sizes: ContextSizes) -> None:  # noqa: ARG002
        before = 0
        for line in read_records(str(Path(path).with_name("context.jsonl")), _context_line):
            if before and line.role == "assistant":
                sizes.add_prompt(before, has_all_before=True)
            # Ignore counts that include the reply, and estimates made after a compaction.
            before = line.token_count or 0
            line.add_parts(sizes)


READER = KimiCli()

_COMPACTED = b"Previous context has been compacted"
"""The beginning of the message that contains the summary."""


class _Function(Record):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b"")


class _ToolCall(Record):
    id: str | None = None
    function: _Function | None = None


class _ContextLine(Record):
    role: str | None = None
    token_count: TokenCount = None
    content: Content = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def is_summary(self) -> bool:
        first = self.content[:1] if isinstance(self.content, list) else ()
        return any(_COMPACTED in bytes(block.text)[:_HEAD] for block in first)

    def add_parts(self, sizes: ContextSizes) -> None:
        if self.role == "tool":
            sizes.add_message(self.content, "result", sizes.end_call(self.tool_call_id))
        elif self.role == "user":
            sizes.add_message(self.content, "summary" if self.is_summary else "user")
        elif self.role == "assistant":
            sizes.add_message(self.content, "assistant")
            for call in self.tool_calls or ():
                function = call.function or _Function()
                sizes.add("call", function.arguments, sizes.begin_call(call.id, function.name))


_context_line = typed.decoder(_ContextLine)


class _Wire(SessionLines):
    def read(self, lines: Lines) -> Iterator[CallFinished]:
        session = self.session
        for entry in lines.records(_entry):
            kind = entry.message.type if entry.message else None
            session.touch(parse_time(entry.timestamp))
            session.active = session.active if kind is None else kind != "TurnEnd"
            if kind in _COMPACTIONS:
                session.track = session.track.compaction()
            elif entry.status is not None:
                self._measure(entry.status)
                yield from self._calls_of_status(entry, entry.status)

    def _measure(self, status: _Payload) -> None:
        session = self.session
        session.window = status.max_context_tokens or session.window
        if status.token_usage is not None:
            reading = CallSize.of(status.token_usage.usage, status.model)
            session.track = session.track.call(reading)
        elif status.context_tokens:
            session.track = session.track.call(CallSize(status.context_tokens, 0, status.model))

    def _calls_of_status(self, entry: _Entry, status: _Payload) -> Iterator[CallFinished]:
        if status.token_usage is not None:
            usage = status.token_usage.usage
            # A fork is a copy under a new session id, and not all providers name their messages.
            copied = f"{entry.timestamp}/{usage.prompt_tokens}/{usage.output_tokens}"
            yield from self.session.call(
                parse_time(entry.timestamp),
                usage,
                status.message_id or copied,
                status.model,
                PROVIDER,
            )


def _folder_of_session(session: Path) -> str | None:
    known = try_decode_file(session.parents[2] / "kimi.json", _Known) or _Known()
    paths = (one.path for one in known.work_dirs or () if one.path)
    return next((one for one in paths if folder_digest("md5", one) == session.parent.name), None)
