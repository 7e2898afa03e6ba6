"""Anthropic's Messages, also from Bedrock and Vertex."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.billing import reported_cost
from sidecar.messages.reply import Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {
    "max_tokens": "output",
    "model_context_window_exceeded": "window",
}


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: str | list[_Block] | None = None
    stop_reason: str | None = None
    usage: Any = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a message object, or an event of its stream."""
    if raw.get("type", "message") == "message":
        _message(draft, read_as(raw, _Message))
        draft.cost = reported_cost(raw)
    else:
        _event(draft, read_as(raw, _Event))


def _message(draft: ReplyDraft, message: _Message) -> None:
    draft.set_origin(message.id, message.model)
    draft.add_usage(message.usage)
    draft.set_stop_reason(message.stop_reason)
    if isinstance(message.content, str):
        draft.add_text(message.content)
        return
    for index, block in enumerate(message.content or ()):
        _block(draft, index, block)
        if block.type == "tool_use":
            draft.call(index).add_arguments(block.input or {})


def _block(draft: ReplyDraft, index: int, block: _Block) -> None:
    if block.type == "text":
        draft.add_text(block.text)
    elif block.type == "tool_use":
        draft.call(index, block.id, block.name)


def _event(draft: ReplyDraft, event: _Event) -> None:
    draft.add_usage(event.usage)
    if event.message:
        _message(draft, event.message)
    if event.content_block:
        _block(draft, event.index, event.content_block)
    if event.delta:
        draft.set_stop_reason(event.delta.stop_reason)
        draft.add_text(event.delta.text if event.delta.type == "text_delta" else None)
    if event.delta and event.index in draft.calls:
        draft.calls[event.index].add_arguments(event.delta.partial_json)
    if event.type == "content_block_stop" and event.index in draft.calls:
        draft.calls[event.index].closed = True
