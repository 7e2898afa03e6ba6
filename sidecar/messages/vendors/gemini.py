"""Google's Gemini, by its own interface and by Vertex."""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.messages.reply import Exhausted, Loose, ReplyDraft, read_as

EXHAUSTED: dict[str, Exhausted] = {"MAX_TOKENS": "output"}


class _Call(msgspec.Struct):
    name: str | None = None
    id: str | None = None
    args: dict[str, Any] | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str | None = None
    thought: bool = False
    function_call: _Call | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    index: int = 0


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Response(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    model_version: str | None = None
    response_id: str | None = None


def add(draft: ReplyDraft, raw: Loose) -> None:
    """Add the first candidate of a response, or of each response in a stream."""
    response = read_as(raw, _Response)
    draft.set_origin(response.response_id, response.model_version)
    draft.add_usage(response.usage_metadata)
    draft.set_stop_reason(
        response.prompt_feedback.block_reason if response.prompt_feedback else None
    )
    for candidate in response.candidates or ():
        if candidate.index == 0:
            _candidate(draft, candidate)


def _candidate(draft: ReplyDraft, candidate: _Candidate) -> None:
    draft.set_stop_reason(candidate.finish_reason)
    for part in candidate.content.parts or () if candidate.content else ():
        if not part.thought:
            draft.add_text(part.text)
        if part.function_call:
            call = part.function_call
            draft.call(len(draft.calls), call.id, call.name).add_arguments(call.args or {})
