"""Amazon Bedrock's Converse."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.reply import Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {
    "max_tokens": "output",
    "model_context_window_exceeded": "window",
}


class _ToolUse(msgspec.Struct, rename="camel"):
    tool_use_id: str | None = None
    name: str | None = None
    input: str | dict[str, Any] | None = None


class _Block(msgspec.Struct, rename="camel"):
    text: str | None = None
    tool_use: _ToolUse | None = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None


class _Output(msgspec.Struct):
    message: _Message | None = None


class _Start(msgspec.Struct, rename="camel"):
    start: _Block | None = None
    content_block_index: int = 0


class _Delta(msgspec.Struct, rename="camel"):
    delta: _Block | None = None
    content_block_index: int = 0


class _BlockStop(msgspec.Struct, rename="camel"):
    content_block_index: int = 0


class _MessageStop(msgspec.Struct, rename="camel"):
    stop_reason: str | None = None


class _Metadata(msgspec.Struct):
    usage: Any = None


class _ResponseMetadata(msgspec.Struct):
    request_id: str | None = msgspec.field(name="RequestId", default=None)


class _Part(msgspec.Struct, rename="camel"):
    output: _Output | None = None
    stop_reason: str | None = None
    usage: Any = None
    response_metadata: _ResponseMetadata | None = msgspec.field(
        name="ResponseMetadata", default=None
    )
    content_block_start: _Start | None = None
    content_block_delta: _Delta | None = None
    content_block_stop: _BlockStop | None = None
    message_stop: _MessageStop | None = None
    metadata: _Metadata | None = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a Converse response, or an event of ConverseStream."""
    part = read_as(raw, _Part)
    _whole(draft, part)
    _event(draft, part)


def _whole(draft: ReplyDraft, part: _Part) -> None:
    draft.set_stop_reason(part.stop_reason)
    draft.add_usage(part.usage)
    draft.set_origin(part.response_metadata.request_id if part.response_metadata else None)
    message = part.output.message if part.output else None
    for index, block in enumerate(message.content or () if message else ()):
        _block(draft, index, block)


def _event(draft: ReplyDraft, part: _Part) -> None:
    if part.metadata:
        draft.add_usage(part.metadata.usage)
    if part.message_stop:
        draft.set_stop_reason(part.message_stop.stop_reason)
    if part.content_block_start and part.content_block_start.start:
        _block(draft, part.content_block_start.content_block_index, part.content_block_start.start)
    if part.content_block_delta and part.content_block_delta.delta:
        _block(draft, part.content_block_delta.content_block_index, part.content_block_delta.delta)
    if part.content_block_stop and part.content_block_stop.content_block_index in draft.calls:
        draft.calls[part.content_block_stop.content_block_index].closed = True


def _block(draft: ReplyDraft, index: int, block: _Block) -> None:
    draft.add_text(block.text)
    if block.tool_use:
        use = block.tool_use
        draft.call(index, use.tool_use_id, use.name).add_arguments(use.input)
