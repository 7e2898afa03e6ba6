"""Cohere's chat, version 2 and version 1."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.reply import CalledFunction, Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {"MAX_TOKENS": "output", "ERROR_LIMIT": "window"}


class _Call(msgspec.Struct):
    """A tool call: `function` in version 2, `name` and `parameters` in version 1."""

    id: str | None = None
    function: CalledFunction | None = None
    name: str | None = None
    parameters: dict[str, Any] | None = None


class _Text(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Message(msgspec.Struct):
    """A message. Events have a single `content` and `tool_calls`, whole replies lists of them."""

    content: str | list[_Text] | _Text | None = None
    tool_calls: list[_Call] | _Call | None = None


class _Delta(msgspec.Struct):
    message: _Message | None = None
    finish_reason: str | None = None
    usage: Any = None


class _Part(msgspec.Struct):
    type: str = ""
    id: str | None = None
    response_id: str | None = None
    index: int = 0
    delta: _Delta | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    usage: Any = None
    text: str | None = None
    tool_calls: list[_Call] | None = None
    meta: Loose | None = None
    response: Loose | None = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a chat reply, or an event of its stream."""
    part = read_as(raw, _Part)
    if part.response is not None:  # version 1: `stream-end` repeats the whole reply
        draft.texts.clear()
        draft.calls.clear()
        add(draft, part.response)
        return
    draft.set_origin(part.id or part.response_id)
    draft.add_text(part.text)
    draft.set_stop_reason(part.finish_reason)
    draft.add_usage(part.usage or part.meta)
    if part.message:
        _message(draft, part.message, part.index)
    for call in part.tool_calls or ():
        _call(draft, len(draft.calls), call)
    if part.delta:
        draft.set_stop_reason(part.delta.finish_reason)
        draft.add_usage(part.delta.usage)
    if part.delta and part.delta.message:
        _message(draft, part.delta.message, part.index)
    if part.type == "tool-call-end" and part.index in draft.calls:
        draft.calls[part.index].closed = True


def _message(draft: ReplyDraft, message: _Message, index: int) -> None:
    content = message.content
    texts = [content] if isinstance(content, _Text) else content
    for text in [_Text(text=texts)] if isinstance(texts, str) else texts or ():
        draft.add_text(text.text if text.type == "text" else None)
    if isinstance(message.tool_calls, _Call):
        _call(draft, index, message.tool_calls)
    else:
        for position, call in enumerate(message.tool_calls or ()):
            _call(draft, position, call)


def _call(draft: ReplyDraft, key: int, call: _Call) -> None:
    function = call.function or CalledFunction(name=call.name, arguments=call.parameters)
    draft.call(key, call.id, function.name).add_arguments(function.arguments)
