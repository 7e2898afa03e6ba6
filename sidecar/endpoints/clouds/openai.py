"""OpenAI: counts of Responses' input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.endpoints.chats import ChatMessage, PlainMessage, Tools, plain_message
from sidecar.endpoints.clouds.base import Cloud
from sidecar.endpoints.servers.base import Request, Server, field
from sidecar.messages.tool_schemas import read_tools


def chat_request(model: str, messages: Sequence[ChatMessage], tools: Tools) -> Request:
    """POST /v1/responses/input_tokens."""
    items = [item for message in messages for item in _items(plain_message(message))]
    body: dict[str, Any] = {"model": model, "input": items}
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": False,
            }
            for tool in read_tools(tools)
        ]
    return Request("/v1/responses/input_tokens", body)


def _items(turn: PlainMessage) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"type": "function_call_output", "call_id": result.id, "output": result.text}
        for result in turn.results
    ]
    if turn.text:
        items.append({"role": turn.role, "content": turn.text})
    for call in turn.calls:
        item = {"type": "function_call", "call_id": call.id, "name": call.name}
        items.append({**item, "arguments": call.arguments or "{}"})
    return items


CLOUD = Cloud(
    server=Server(
        name="openai",
        chat=chat_request,
        read_chat=field("input_tokens"),
        text_by_chat=True,
        parses_specials=False,
    ),
    hosts=("api.openai.com",),
)
