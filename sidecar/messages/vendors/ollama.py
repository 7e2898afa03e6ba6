"""Ollama's own /api/chat and /api/generate."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.reply import CalledFunction, Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {"length": "output"}


class _Call(msgspec.Struct):
    id: str | None = None
    function: CalledFunction | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Part(msgspec.Struct):
    model: str | None = None
    message: _Message | None = None
    response: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: Any = None
    eval_count: Any = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add a reply with `stream` off, or an object of its stream; the last one is `done`."""
    part = read_as(raw, _Part)
    draft.set_origin(None, part.model)
    draft.add_text(part.response)
    draft.set_stop_reason(part.done_reason)
    draft.ended = draft.ended or part.done
    draft.add_usage({"prompt_eval_count": part.prompt_eval_count, "eval_count": part.eval_count})
    if part.message:
        _message(draft, part.message)


def _message(draft: ReplyDraft, message: _Message) -> None:
    draft.add_text(message.content)
    for call in message.tool_calls or ():
        function = call.function or CalledFunction()
        draft.call(len(draft.calls), call.id, function.name).add_arguments(function.arguments or {})
