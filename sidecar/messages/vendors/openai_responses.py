"""OpenAI's Responses."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.billing import reported_cost
from sidecar.messages.reply import Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {"max_output_tokens": "output", "max_tokens": "output"}
_UNFINISHED = ("in_progress", "queued", None)


class _Text(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[_Text] | None = None
    status: str | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    output: list[_Item] | None = None
    usage: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    delta: str | Loose | None = None
    arguments: str | None = None
    item: _Item | None = None
    response: Loose | None = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a response object, or an event of its stream."""
    if str(raw.get("type", "")).startswith("response."):
        _event(draft, read_as(raw, _Event))
    else:
        _whole(draft, raw)


def _whole(draft: ReplyDraft, raw: Loose) -> None:
    response = read_as(raw, _Response)
    draft.set_origin(response.id, response.model)
    draft.add_usage(response.usage)
    draft.cost = reported_cost(raw) or draft.cost
    if response.incomplete_details and response.incomplete_details.reason:
        draft.set_stop_reason(response.incomplete_details.reason)
    elif response.status not in _UNFINISHED:
        draft.set_stop_reason(response.status)
    if response.output:
        # The last event of a stream contains the whole output again.
        draft.texts.clear()
        draft.calls.clear()
    for index, item in enumerate(response.output or ()):
        _item(draft, index, item)


def _item(draft: ReplyDraft, index: int, item: _Item) -> None:
    for part in item.content or ():
        if item.type == "message" and part.type == "output_text":
            draft.add_text(part.text)
    if item.type not in ("function_call", "custom_tool_call"):
        return
    call = draft.call(index, item.call_id or item.id, item.name)
    call.broken = item.status == "incomplete"
    if item.type == "function_call":
        call.add_arguments(item.arguments)
    elif item.input is not None:
        call.add_arguments({"input": item.input})


def _event(draft: ReplyDraft, event: _Event) -> None:
    if event.response is not None:
        _whole(draft, event.response)
    elif event.type == "response.output_text.delta" and isinstance(event.delta, str):
        draft.add_text(event.delta)
    elif event.type == "response.output_item.added" and event.item:
        if event.item.type == "function_call":
            _item(draft, event.output_index, event.item)
    elif event.type == "response.function_call_arguments.delta":
        draft.call(event.output_index).add_arguments(event.delta)
    elif event.type == "response.function_call_arguments.done":
        draft.call(event.output_index).closed = True
