"""Qwen Code: `projects/<project>/chats/*.jsonl`, a line a message and one for each event.

New versions write `ui_telemetry` for each call, also for those without a message: sub-agents,
memory, compression and discarded retries. In older chats the replies themselves are the calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar import typed
from sidecar.agents.fields import CamelRecord, Record, TokenCount, provider_of, when
from sidecar.agents.folding import Folded, fold_lines
from sidecar.agents.line_files import Decoded, LineFiles, lines_of, state_of
from sidecar.agents.occupancy import Track, occupancy
from sidecar.agents.tail import first_lines
from sidecar.agents.values import Batch, Call, Found, Glance, Mark, Reading, stored
from sidecar.messages.usage import Usage, included

if TYPE_CHECKING:
    from sidecar.agents.reader import Look

AGENT = "qwen-code"
_HEAD = 64 << 10
_KINDS = re.compile(
    rb'"type"\s*:\s*"(?:user|assistant|tool_result)"|"subtype"\s*:\s*"(?:ui_|chat_|custom_)'
)
_KIND_WITHIN = 640
"""Bytes: ids, the folder and the time stand before a line's type."""
_RESPONSE = "qwen-code.api_response"
_UNMATCHED = 50
"""Calls of which a line of the other kind may come yet."""


class _Usage(CamelRecord):
    """Of a reply, in Gemini's form."""

    prompt_token_count: TokenCount = None
    candidates_token_count: TokenCount = None
    thoughts_token_count: TokenCount = None
    cached_content_token_count: TokenCount = None
    total_token_count: TokenCount = None

    @property
    def usage(self) -> Usage:
        return _usage(
            self.prompt_token_count,
            self.cached_content_token_count,
            self.candidates_token_count,
            self.thoughts_token_count,
            self.total_token_count,
        )


class _Event(Record):
    """A `ui_telemetry` event."""

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
        return _usage(
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


class _Part(CamelRecord):
    function_call: msgspec.Raw = msgspec.Raw(b"")


class _Message(Record):
    parts: list[_Part] | None = None


class _Line(CamelRecord):
    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    session_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    model: str | None = None
    context_window_size: TokenCount = None
    custom_title: str | None = None
    usage_metadata: _Usage | None = None
    system_payload: _Payload | None = None
    message: _Message | None = None

    @property
    def calls_tools(self) -> bool:
        parts = (self.message.parts if self.message else None) or ()
        return any(bytes(part.function_call) not in (b"", b"null") for part in parts)


class _State(msgspec.Struct):
    """Of a chat, after some of its lines."""

    session: str
    workspace: str = ""
    timestamp: str | None = None
    """Of the newest line of the conversation."""
    title: str | None = None
    active: bool | None = None
    model: str | None = None
    track: Track = Track()
    told: list[tuple[int, int]] = []
    """Tokens of calls that telemetry told and no reply showed."""
    shown: list[tuple[int, int]] = []
    """Tokens of calls that a reply showed and no telemetry told."""


_line = typed.decoder(_Line)


class QwenCode(LineFiles):
    """See `sidecar.agents.reader.Reader`."""

    agent = AGENT
    inner = "projects"

    def is_store(self, path: str) -> bool:
        return super().is_store(path) and os.path.basename(os.path.dirname(path)) == "chats"

    def glance(self, look: Look) -> Glance:
        found, start = look.found, _State(Path(look.found.path).stem)
        first = _first_cwd(found.path)
        read = partial(fold_lines, found, start=start, fold=_fold)
        state, mark = state_of(read, look.before, start)
        skipped = mark.skipped if mark else 0
        cwd = next(filter(look.roots.hold, (state.workspace, first)), None)
        if cwd is None:
            return Glance(found, memory=mark, skipped=skipped)
        session = stored(
            found,
            state.session,
            cwd,
            when(state.timestamp),
            occupancy(state.track),
            model=state.model,
            title=state.title,
            active=state.active,
        )
        return Glance(found, (session,), skipped, mark)

    def read(self, found: Found, mark: Mark | None = None) -> Iterator[Batch]:
        return fold_lines(found, mark, _State(Path(found.path).stem), _fold_untitled)


READER = QwenCode()


def _fold(before: _State, data: bytes) -> Folded[_State]:
    state = msgspec.structs.replace(before, told=[*before.told], shown=[*before.shown])
    lines = Decoded(lines_of(data, _KINDS, _KIND_WITHIN), _line)
    calls = [call for line in lines if (call := _apply(state, line))]
    return Folded(state, calls, lines.skipped)


def _fold_untitled(before: _State, data: bytes) -> Folded[_State]:
    """What the ledger keeps: a title may be made of what was said."""
    folded = _fold(before, data)
    folded.state.title = None
    return folded


def _apply(state: _State, line: _Line) -> Call | None:
    """Apply a line to the state; the call that it reports, if it reports a new one."""
    state.session, state.workspace = line.session_id or state.session, line.cwd or state.workspace
    state.title = line.custom_title or state.title
    payload = line.system_payload or _Payload()
    if line.type in ("user", "assistant", "tool_result"):
        state.timestamp = line.timestamp or state.timestamp
        state.active = line.type != "assistant" or line.calls_tools
    if line.type == "assistant" and line.usage_metadata is not None:
        return _reply(state, line, line.usage_metadata.usage)
    if line.subtype == "chat_compression":
        left = payload.info.new_token_count if payload.info else None
        state.track = state.track.compaction().estimate(left or 0, state.model)
    elif line.subtype == "ui_telemetry" and payload.ui_event and payload.ui_event.name == _RESPONSE:
        return _response(state, line, payload.ui_event)
    return None


def _reply(state: _State, line: _Line, usage: Usage) -> Call | None:
    """A reply of the conversation; its call where no telemetry told it."""
    state.model = line.model or state.model
    state.track = state.track.call(Reading.of(usage, line.model, line.context_window_size))
    if _is_matched(usage, state.told, state.shown):
        return None
    return _call(state, line, line.model, usage, f"{state.session}/{line.uuid or line.timestamp}")


def _response(state: _State, line: _Line, event: _Event) -> Call | None:
    """A call that telemetry tells; its reply comes after it, or before."""
    usage = event.usage
    if event.subagent_name is None and _is_matched(usage, state.shown, state.told):
        return None
    name = event.response_id or event.prompt_id or line.uuid
    call = _call(state, line, event.model, usage, f"{name}/{line.timestamp}")
    return call and msgspec.structs.replace(call, category=event.category)


def _is_matched(usage: Usage, others: list[tuple[int, int]], own: list[tuple[int, int]]) -> bool:
    """Whether a line of the other kind is about the same call; if not, it may come yet."""
    tokens = usage.prompt_tokens, usage.output_tokens
    if tokens in others:
        others.remove(tokens)
        return True
    own.append(tokens)
    del own[:-_UNMATCHED]
    return False


def _call(state: _State, line: _Line, model: str | None, usage: Usage, request: str) -> Call | None:
    at, name = when(line.timestamp), model or state.model or "unknown"
    if at is None:
        return None
    return Call(
        at=at,
        agent=AGENT,
        session=state.session,
        model=name,
        provider=provider_of(name),
        usage=usage,
        request=request,
        workspace=state.workspace,
    )


def _usage(
    prompt: int | None,
    cached: int | None,
    output: int | None,
    thoughts: int | None,
    total: int | None,
) -> Usage:
    """In parts that do not overlap: the total shows whether thoughts are part of the output."""
    sent, got, thought = prompt or 0, output or 0, thoughts or 0
    if total == sent + got + thought:
        got += thought
    return included(sent, cached or 0, 0, 0, got, thought)


def _first_cwd(path: str) -> str | None:
    """The folder that a session was begun in."""
    entries = Decoded(first_lines(path, _HEAD), _line)
    return next((entry.cwd for entry in entries if entry.cwd), None)
