"""Reads Qwen Code's `projects/<project>/chats/*.jsonl`, with one line per message or event.

New versions write a `ui_telemetry` event for every call, even if the reply is not stored. Replies
are not stored for calls from sub-agents, calls for memory or compression, and discarded retries. In
older chats, only replies report usage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from sidecar import typed
from sidecar.agents.context_sizes import GeminiPart, PartKind
from sidecar.agents.file_reading import (
    CamelRecord,
    Record,
    TokenCount,
    parse_iso_time,
    reported_usage,
)
from sidecar.agents.session_events import CallFinished, CallSize, Category, Store
from sidecar.agents.stores import (
    LineReader,
    Lines,
    SessionLines,
    SessionState,
    record_at,
)
from sidecar.messages.vendor_usage import Usage

_RESPONSE = "qwen-code.api_response"
_UNMATCHED = 50
"""The maximum number of unmatched calls and replies to remember."""


class _Usage(CamelRecord):
    prompt_token_count: TokenCount = None
    candidates_token_count: TokenCount = None
    thoughts_token_count: TokenCount = None
    cached_content_token_count: TokenCount = None
    total_token_count: TokenCount = None

    @property
    def usage(self) -> Usage:
        return _make_usage(
            self.prompt_token_count,
            self.cached_content_token_count,
            self.candidates_token_count,
            self.thoughts_token_count,
            self.total_token_count,
        )


class _Event(Record):
    name: str | None = msgspec.field(default=None, name="event.name")
    response_id: str | None = None
    prompt_id: str | None = None
    subagent_name: str | None = None
    model: str | None = None
    input_token_count: TokenCount = None
    output_token_count: TokenCount = None
    cached_content_token_count: TokenCount = None
    thoughts_token_count: TokenCount = None
    total_token_count: TokenCount = None

    @property
    def usage(self) -> Usage:
        return _make_usage(
            self.input_token_count,
            self.cached_content_token_count,
            self.output_token_count,
            self.thoughts_token_count,
            self.total_token_count,
        )

    @property
    def category(self) -> Literal["main", "subagent", "summary"]:
        if self.subagent_name:
            return "subagent"
        return "summary" if (self.prompt_id or "").startswith("compress-") else "main"


class _Compression(CamelRecord):
    new_token_count: TokenCount = None


class _Payload(CamelRecord):
    ui_event: _Event | None = None
    info: _Compression | None = None
    custom_title: str | None = None
    compressed_history: msgspec.Raw = msgspec.Raw(b"")


class _Message(Record):
    parts: list[GeminiPart] | None = None


class _Origin(CamelRecord):
    """The line that a fork copied. A fork changes the ids of the session and of the prompts."""

    message_uuid: str | None = None


class _Line(CamelRecord):
    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    session_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    git_branch: str | None = None
    version: str | None = None
    parent_uuid: str | None = None
    model: str | None = None
    context_window_size: TokenCount = None
    custom_title: str | None = None
    usage_metadata: _Usage | None = None
    system_payload: _Payload | None = None
    message: _Message | None = None
    forked_from: _Origin | None = None
    provenance: str | None = None

    @property
    def title(self) -> str | None:
        payload = self.system_payload or _Payload()
        return payload.custom_title or self.custom_title

    @property
    def calls_tools(self) -> bool:
        parts = (self.message.parts if self.message else None) or ()
        return any(part.function_call is not None for part in parts)

    @property
    def kind(self) -> PartKind:
        """The kind of the message's texts."""
        if self.type == "assistant":
            return "assistant"
        is_own = self.type == "user" and self.provenance not in (None, "real_user")
        return "instructions" if is_own else "user"


_line = typed.decoder(_Line)


class QwenCode(LineReader):
    inner = ("projects",)
    pattern = r".*/chats/(archive/)?[^/.]*\.jsonl"

    def begin(self, store: Store) -> _Chat:
        return _Chat(SessionState(Path(store.path).stem))

    def title(self, store: Store, title_at: str) -> str | None:
        line = record_at(store.path, title_at, _line)
        return line.title if line else None


READER = QwenCode()


class _Chat(SessionLines):
    newest: str | None = None
    """The id of the last line. Lines form a tree."""
    without_reply: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """The prompt and output tokens of telemetry calls without a matching reply."""
    without_telemetry: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """The prompt and output tokens of replies without a matching telemetry call."""
    undecided: list[CallFinished] = msgspec.field(default_factory=list)
    """The calls since the last reply. Their category depends on the lines that follow."""

    def read(self, lines: Lines) -> Iterator[CallFinished]:
        for line in lines.records(_line):
            yield from self._calls_of_line(line)
            if line.title:
                self.session.title_at = lines.position

    def _calls_of_line(self, line: _Line) -> Iterator[CallFinished]:
        session, payload = self.session, line.system_payload or _Payload()
        session.id = line.session_id or session.id
        session.work_in(line.cwd)
        is_rewound = self.newest is not None and line.parent_uuid != self.newest
        session.note(version=line.version, is_rewound=is_rewound or None)
        self.newest = line.uuid
        session.branch = line.git_branch or session.branch
        if line.type in ("user", "assistant", "tool_result"):
            session.touch(parse_iso_time(line.timestamp))
            session.active = line.type != "assistant" or line.calls_tools
            yield from self._categorize_pending("main")
            if line.type == "assistant" and line.usage_metadata is not None:
                session.sizes.add_prompt(line.usage_metadata.usage.prompt_tokens)
            if line.message is not None:
                session.sizes.add_gemini_message(line.message.parts or (), line.kind)
        if line.type == "assistant" and line.usage_metadata is not None:
            yield from self._reply(line, line.usage_metadata.usage)
        elif line.subtype == "chat_compression":
            yield from self._categorize_pending("summary")
            left = payload.info.new_token_count if payload.info else None
            session.note(is_compacted=True)
            session.track = session.track.compaction().estimate(left or 0, session.model)
            session.sizes.compact()
            session.sizes.add("summary", payload.compressed_history)
        elif line.subtype == "ui_telemetry":
            event = payload.ui_event
            if event is not None and event.name == _RESPONSE:
                yield from self._call_of_telemetry(line, event)

    def _categorize_pending(self, category: Literal["main", "summary"]) -> Iterator[CallFinished]:
        for call in self.undecided:
            yield msgspec.structs.replace(call, category=category)
        self.undecided.clear()

    def _reply(self, line: _Line, usage: Usage) -> Iterator[CallFinished]:
        """Apply a reply, and yield its call unless telemetry has already reported it."""
        session = self.session
        session.model = line.model or session.model
        reading = CallSize.of(usage, line.model, line.context_window_size)
        session.track = session.track.call(reading)
        if not _is_matched(usage, self.without_reply, self.without_telemetry):
            request = line.uuid or f"{session.id}/{line.timestamp}"
            yield from self._call(line, line.model, usage, request)

    def _call_of_telemetry(self, line: _Line, event: _Event) -> Iterator[CallFinished]:
        usage = event.usage
        is_own = event.subagent_name is None
        if is_own and _is_matched(usage, self.without_telemetry, self.without_reply):
            return
        name = event.response_id or line.uuid or event.prompt_id
        request = f"{name}/{line.timestamp}"
        calls = self._call(line, event.model, usage, request, event.category)
        if event.category != "main":
            yield from calls
        else:
            self.undecided += calls
        if len(self.undecided) > _UNMATCHED:
            yield self.undecided.pop(0)

    def _call(
        self,
        line: _Line,
        model: str | None,
        usage: Usage,
        request: str,
        category: Category = "main",
    ) -> list[CallFinished]:
        at, model = parse_iso_time(line.timestamp), model or self.session.model
        calls = self.session.call(at, usage, request, model, category=category)
        if line.forked_from is None:
            return calls
        return [msgspec.structs.replace(call, is_copy=True) for call in calls]


def _is_matched(usage: Usage, others: list[tuple[int, int]], own: list[tuple[int, int]]) -> bool:
    tokens = usage.prompt_tokens, usage.output_tokens
    if tokens in others:
        others.remove(tokens)
        return True
    own.append(tokens)
    del own[:-_UNMATCHED]
    return False


def _make_usage(
    prompt: int | None,
    cached: int | None,
    output: int | None,
    thoughts: int | None,
    total: int | None,
) -> Usage:
    """Convert token counts to a usage value.

    Thinking tokens are added to the output if the total shows that the output excludes them.
    """
    whole = (output or 0) + (thoughts or 0)
    excludes_thoughts = total == (prompt or 0) + whole
    return reported_usage(
        prompt, whole if excludes_thoughts else output, cached, reasoning=thoughts
    )
