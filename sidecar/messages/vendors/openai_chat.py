"""OpenAI's chat completions, also from xAI, DeepSeek, Mistral, OpenRouter, llama.cpp, vLLM and
others."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.billing import reported_cost
from sidecar.messages.reply import CalledFunction, Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {
    "length": "output",
    "max_tokens": "output",
    "model_length": "window",  # Mistral
    "maxPredictedTokensReached": "output",  # LM Studio
    "contextLengthReached": "window",
}


class _Call(msgspec.Struct):
    id: str | None = None
    index: int | None = None
    function: CalledFunction | None = None


class _TextPart(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_TextPart] | None = None
    tool_calls: list[_Call] | None = None
    function_call: CalledFunction | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _Stats(msgspec.Struct):
    stop_reason: str | None = None


class _Part(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: Any = None
    timings: Any = None
    stats: _Stats | None = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add the first choice of a chat completion, whole or in chunks."""
    part = read_as(raw, _Part)
    draft.set_origin(part.id, part.model)
    draft.add_usage(part.timings)
    draft.add_usage(part.usage)
    draft.cost = reported_cost(raw) or draft.cost
    for choice in part.choices or ():
        if choice.index == 0:
            _add_choice(draft, choice)
    if part.stats:
        draft.set_stop_reason(part.stats.stop_reason)


def _add_choice(draft: ReplyDraft, choice: _Choice) -> None:
    draft.set_stop_reason(choice.finish_reason)
    if choice.message:
        _add_message(draft, choice.message)
    if choice.delta:
        _add_message(draft, choice.delta)


def _add_message(draft: ReplyDraft, message: _Message) -> None:
    if isinstance(message.content, str):
        draft.add_text(message.content)
    else:
        for part in message.content or ():
            draft.add_text(part.text if part.type == "text" else None)
    for position, call in enumerate(message.tool_calls or ()):
        function = call.function or CalledFunction()
        target = draft.call(_key(draft, call, position), call.id, function.name)
        target.add_arguments(function.arguments)
    if message.function_call:
        legacy = message.function_call
        draft.call("function_call", None, legacy.name).add_arguments(legacy.arguments)


def _key(draft: ReplyDraft, call: _Call, position: int) -> object:
    """Return the key of the call that a piece belongs to: its index, unless another id begins
    there.

    Gemini's OpenAI-compatible stream sends every call at index 0 with its own id.
    """
    index = position if call.index is None else call.index
    at_index = [key for key in draft.calls if key == index or _begun_at(key, index)]
    if not at_index:
        return index
    last = at_index[-1]
    if call.id and draft.calls[last].id and draft.calls[last].id != call.id:
        return (index, call.id)
    return last


def _begun_at(key: object, index: int) -> bool:
    return isinstance(key, tuple) and key[0] == index
