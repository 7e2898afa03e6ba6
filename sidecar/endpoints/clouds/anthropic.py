"""Anthropic: counts of messages, free and rate limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.endpoints.chats import ChatMessage, PlainMessage, Tools, decoded, with_system
from sidecar.endpoints.clouds.base import Cloud, reported
from sidecar.endpoints.outcome import Fault
from sidecar.endpoints.servers.base import Request, Server, field
from sidecar.messages.tool_schemas import read_tools

_PATH = "/v1/messages/count_tokens"


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /v1/messages/count_tokens."""
    turns, system = with_system(messages)
    body: dict[str, Any] = {"model": model, "messages": [_message(turn) for turn in turns]}
    if not turns:
        raise Fault("unsupported", "Anthropic counts no conversation without a user's message")
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [
            {"name": t.name, "description": t.description, "input_schema": _schema(t.parameters)}
            for t in read_tools(tools)
        ]
    return Request(_PATH, body)


def _message(turn: PlainMessage) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": result.id, "content": result.text}
        for result in turn.results
    ]
    if turn.text:
        blocks.append({"type": "text", "text": turn.text})
    for call in turn.calls:
        use = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**use, "input": decoded(call)})
    return {"role": "assistant" if turn.role == "assistant" else "user", "content": blocks}


def _schema(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    return parameters if "type" in parameters else {"type": "object", **parameters}


def _headers(key: str) -> Mapping[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01"}


CLOUD = Cloud(
    server=Server(
        name="anthropic",
        chat=chat_request,
        read_chat=field("input_tokens"),
        text_by_chat=True,
        parses_specials=False,
    ),
    hosts=("api.anthropic.com",),
    headers=_headers,
    read_limit=reported("max_input_tokens"),
)
