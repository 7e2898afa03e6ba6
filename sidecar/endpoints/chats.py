"""Converts messages and tools to the formats of the vendors' counting requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec

from sidecar import typed
from sidecar.endpoints.outcome import EndpointError
from sidecar.messages.content import Block, read_message, read_tools

ChatMessage: TypeAlias = Mapping[str, Any]
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class Chat(NamedTuple):
    """The messages and tools of one request."""

    messages: Sequence[ChatMessage]
    tools: Tools = ()


_OPENAI_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_ROLES = {"model": "assistant", "developer": "system"}


@dataclass
class PlainMessage:
    """A message with text, tool calls and tool results, in a vendor-neutral format."""

    role: str
    text: str = ""
    calls: list[Block] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)


class ToolResult(NamedTuple):
    id: str
    name: str
    text: str


def openai_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert messages to OpenAI's chat format.

    Raises:
        EndpointError: A message contains a part other than text, such as an image.
    """
    return [out for message in messages for out in _openai_message(message)]


def _openai_message(message: ChatMessage) -> list[dict[str, Any]]:
    message = {key: value for key, value in message.items() if value or key == "content"}
    if _is_openai(message):
        return [{key: message[key] for key in _OPENAI_KEYS if key in message}]
    turn = plain_message(message)
    tools = [{"role": "tool", "tool_call_id": r.id, "content": r.text} for r in turn.results]
    if turn.results and not turn.text:
        return tools
    out: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if message.get("name"):
        out["name"] = message["name"]
    if turn.calls:
        out["content"] = turn.text or None
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments or "{}"},
            }
            for c in turn.calls
        ]
    return [*tools, out]


def _is_openai(message: ChatMessage) -> bool:
    content = message.get("content")
    if "toolCalls" in message or "toolCallId" in message or "parts" in message:
        return False
    if any("function" not in call for call in _list_or_empty(message.get("tool_calls"))):
        return False
    if content is None or isinstance(content, str):
        return message.get("role") not in _ROLES
    return all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in _list_or_empty(content)
    )


def openai_tools(tools: Tools) -> list[dict[str, Any]]:
    """Convert tool schemas to OpenAI's chat format."""
    if all("function" in tool for tool in tools):
        return [dict(tool) for tool in tools]
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in read_tools(tools)
    ]


def plain_message(message: ChatMessage) -> PlainMessage:
    """Convert a message from any vendor's format.

    Raises:
        EndpointError: The message contains a part other than text, such as an image.
    """
    read = read_message(message)
    role = read.role or "user"
    plain = PlainMessage(_ROLES.get(role, role))
    for block in read.blocks:
        if block.kind == "call":
            plain.calls.append(block)
        elif block.kind == "result":
            text = "".join([_text_of_block(inner) for inner in block.inner])
            plain.results.append(ToolResult(block.id or block.name, block.name or block.id, text))
        else:
            plain.text += _text_of_block(block)
    return plain


def split_system(messages: Sequence[ChatMessage]) -> tuple[list[PlainMessage], str]:
    """Separate the text of system messages from the other messages."""
    turns = [plain_message(message) for message in messages]
    system = "\n\n".join(turn.text for turn in turns if turn.role == "system" and turn.text)
    return [turn for turn in turns if turn.role != "system"], system


def openai_body(chat: Chat, **more: Any) -> dict[str, Any]:
    """Return a request body in OpenAI's format. `more` contains additional fields.

    Raises:
        EndpointError: A message contains a part other than text, such as an image.
    """
    body = {**more, "messages": openai_messages(chat.messages)}
    return {**body, "tools": openai_tools(chat.tools)} if chat.tools else body


def call_arguments(call: Block) -> dict[str, Any]:
    """Return a tool call's arguments as an object, for vendors that do not accept JSON text."""
    try:
        return typed.decode(call.arguments or "{}", dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {"arguments": call.arguments}


def _text_of_block(block: Block) -> str:
    if block.kind in ("thinking", "nothing"):
        return ""
    if block.kind != "text":
        raise EndpointError(
            "unsupported", "a message contains a part other than text, such as an image"
        )
    return block.text


def _list_or_empty(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
