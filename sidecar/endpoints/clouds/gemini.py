"""Google's Gemini."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from sidecar.endpoints.chats import ChatMessage, PlainMessage, Tools, decoded, with_system
from sidecar.endpoints.clouds.base import Cloud, reported
from sidecar.endpoints.servers.base import Request, Server, field
from sidecar.messages.tool_schemas import read_tools


def _path(model: str) -> str:
    return f"/v1beta/models/{quote(model.removeprefix('models/'), safe='')}:countTokens"


def text_request(model: str, text: str) -> Request:
    """POST models/M:countTokens."""
    return Request(_path(model), {"contents": [{"parts": [{"text": text}]}]})


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST models/M:countTokens of the whole request."""
    turns, system = with_system(messages)
    request: dict[str, Any] = {
        "model": f"models/{model.removeprefix('models/')}",
        "contents": [_content(turn) for turn in turns],
    }
    if system:
        request["systemInstruction"] = {"parts": [{"text": system}]}
    if tools:
        declared = [
            {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
            for t in read_tools(tools)
        ]
        request["tools"] = [{"functionDeclarations": declared}]
    return Request(_path(model), {"generateContentRequest": request})


def _content(turn: PlainMessage) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"functionResponse": {"name": result.name, "response": {"output": result.text}}}
        for result in turn.results
    ]
    if turn.text:
        parts.append({"text": turn.text})
    parts += [{"functionCall": {"name": c.name, "args": decoded(c)}} for c in turn.calls]
    return {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _headers(key: str) -> Mapping[str, str]:
    return {"x-goog-api-key": key}


CLOUD = Cloud(
    server=Server(
        name="google",
        text=text_request,
        read_text=field("totalTokens"),
        chat=chat_request,
        read_chat=field("totalTokens"),
    ),
    hosts=("generativelanguage.googleapis.com",),
    headers=_headers,
    show="/v1beta/models/{model}",
    read_limit=reported("inputTokenLimit"),
    suffixes=("/v1beta/openai", "/v1beta", "/v1"),
)
