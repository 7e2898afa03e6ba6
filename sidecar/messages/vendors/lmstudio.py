"""LM Studio: its SDK's prediction results and packets, and its REST interfaces v1 and v0."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.reply import Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {
    "maxPredictedTokensReached": "output",
    "contextLengthReached": "window",
}


class _Fragment(msgspec.Struct):
    content: str | None = None
    reasoning_type: str | None = msgspec.field(name="reasoningType", default=None)


class _Request(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    arguments: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    type: str = ""
    content: str | None = None


class _Model(msgspec.Struct, rename="camel"):
    identifier: str | None = None
    model_key: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    type: str = ""
    content: str | None = None
    name: str | None = None
    stats: Any = None
    model_info: _Model | None = None
    fragment: _Fragment | None = None
    tool_call_id: str | None = None
    tool_call_request: _Request | None = None
    result: Loose | None = None
    output: list[_Output] | None = None
    response_id: str | None = msgspec.field(name="response_id", default=None)
    model_instance_id: str | None = msgspec.field(name="model_instance_id", default=None)


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a prediction result, a packet of a prediction, or a REST reply."""
    part = read_as(raw, _Part)
    if part.type == "chat.end" and part.result:
        draft.texts.clear()
        part = read_as(part.result, _Part)
    if part.fragment and part.fragment.reasoning_type in (None, "none"):
        draft.add_text(part.fragment.content)
    if part.type in ("", "message.delta"):
        draft.add_text(part.content)
    for output in part.output or ():
        draft.add_text(output.content if output.type == "message" else None)
    draft.set_origin(part.response_id, _model(part))
    _finish(draft, part)
    _call(draft, part)


def _model(part: _Part) -> str | None:
    if part.model_info:
        return part.model_info.identifier or part.model_info.model_key
    return part.model_instance_id


def _finish(draft: ReplyDraft, part: _Part) -> None:
    if part.stats is None:
        return
    draft.ended = True
    draft.add_usage(part.stats)
    if not isinstance(part.stats, dict):
        return
    reason = part.stats.get("stopReason", part.stats.get("stop_reason"))
    draft.set_stop_reason(reason if isinstance(reason, str) else None)


def _call(draft: ReplyDraft, part: _Part) -> None:
    last = len(draft.calls) - 1
    if part.type == "toolCallGenerationStart":
        draft.call(last + 1, part.tool_call_id)
    elif part.type == "toolCallGenerationNameReceived":
        draft.call(max(last, 0), None, part.name)
    elif part.type == "toolCallGenerationArgumentFragmentGenerated":
        draft.call(max(last, 0)).add_arguments(part.content)
    elif part.type == "toolCallGenerationFailed" and last >= 0:
        draft.call(last).broken = True
    elif part.type == "toolCallGenerationEnd" and part.tool_call_request:
        request = part.tool_call_request
        call = draft.call(max(last, 0), request.id, request.name)
        call.texts.clear()
        call.add_arguments(request.arguments or {})
