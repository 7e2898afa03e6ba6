"""Conversations and tools, from whatever form a client holds them in to each vendor's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from sidecar.endpoints.outcome import Fault

Message: TypeAlias = Mapping[str, Any]
Tools: TypeAlias = Sequence[Mapping[str, Any]]

_OPENAI_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_TEXT_TYPES = ("text", "input_text", "output_text")
_THINKING = ("thinking", "redacted_thinking", "reasoning")
_ROLES = {"model": "assistant", "developer": "system"}


@dataclass
class Call:
    """A tool call."""

    id: str
    name: str
    arguments: str
    """JSON text."""

    def decoded(self) -> dict[str, Any]:
        """The arguments as an object, which is how some vendors take them."""
        try:
            return msgspec.json.decode(self.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError):
            return {"arguments": self.arguments}


@dataclass
class Result:
    """What a tool gave back."""

    id: str
    text: str


@dataclass
class Turn:
    """One message, apart from any vendor's form."""

    role: str
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


@dataclass(frozen=True)
class Tool:
    """A tool's schema, apart from any vendor's form."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """In OpenAI's chat form; a message that has it already goes through as it is. Raises Fault."""
    return [out for message in messages for out in _openai_message(message)]


def _openai_message(message: Message) -> list[dict[str, Any]]:
    message = {key: value for key, value in message.items() if value or key == "content"}
    if _is_openai(message):
        return [{key: message[key] for key in _OPENAI_KEYS if key in message}]
    turn = read_turn(message)
    tools = [{"role": "tool", "tool_call_id": r.id, "content": r.text} for r in turn.results]
    if turn.results and not turn.text:
        return tools
    out: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if message.get("name"):
        out["name"] = message["name"]
    if turn.calls:
        out["content"] = turn.text or None
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.calls
        ]
    return [*tools, out]


def _is_openai(message: Message) -> bool:
    content = message.get("content")
    if "toolCalls" in message or "toolCallId" in message or "parts" in message:
        return False
    if any("function" not in call for call in _list(message.get("tool_calls"))):
        return False
    if content is None or isinstance(content, str):
        return message.get("role") not in _ROLES
    return all(isinstance(part, Mapping) and part.get("type") == "text" for part in _list(content))


def openai_tools(tools: Tools) -> list[dict[str, Any]]:
    """In OpenAI's chat form; a tool that has it already goes through as it is."""
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


def read_turn(message: Message) -> Turn:
    """A message of any vendor's form. Raises Fault where a part of it is no text (an image)."""
    role = str(message.get("role", "user"))
    turn = Turn(_ROLES.get(role, role))
    content = message.get("content", message.get("parts"))
    if turn.role == "tool":
        call_id = str(message.get("toolCallId") or message.get("tool_call_id") or "")
        turn.results.append(Result(call_id, _plain(content)))
        return turn
    for block in [content] if isinstance(content, str) else _list(content):
        _read_block(turn, block)
    for call in _list(message.get("toolCalls", message.get("tool_calls"))):
        turn.calls.append(_read_call(call))
    return turn


def _read_block(turn: Turn, block: object) -> None:
    if isinstance(block, str):
        turn.text += block
        return
    if not isinstance(block, Mapping):
        raise Fault("unsupported", "a message holds a part that is not an object")
    kind = block.get("type")
    use = block.get("toolUse") or block.get("functionCall") or (kind == "tool_use" and block)
    result = block.get("toolResult") or block.get("functionResponse")
    result = result or (kind == "tool_result" and block)
    if use:
        turn.calls.append(_read_call(use))
    elif result:
        turn.results.append(_read_result(result))
    elif kind in _TEXT_TYPES or (kind is None and isinstance(block.get("text"), str)):
        turn.text += str(block.get("text", ""))
    elif kind not in _THINKING:
        raise Fault("unsupported", "a message holds a part that is no text, such as an image")


def _read_call(call: Mapping[str, Any]) -> Call:
    function = call.get("function", call)
    arguments: Any = next(
        (function[key] for key in ("arguments", "input", "args") if key in function), {}
    )
    text = arguments if isinstance(arguments, str) else _json(arguments)
    call_id = call.get("id") or call.get("toolUseId") or ""
    return Call(str(call_id), str(function.get("name", "")), text)


def _read_result(result: Mapping[str, Any]) -> Result:
    call_id = result.get("tool_use_id") or result.get("toolUseId") or result.get("name") or ""
    content = result.get("content", result.get("response"))
    return Result(str(call_id), _plain(content))


def _plain(content: object) -> str:
    """The text of a tool's result."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return _json(content)
    holder = Turn("tool")
    for block in content:
        if isinstance(block, Mapping) and "json" in block:
            holder.text += _json(block["json"])
        else:
            _read_block(holder, block)
    return holder.text


def read_tools(tools: Tools) -> list[Tool]:
    """Tools in OpenAI's, Anthropic's, Gemini's or MCP's form."""
    found = []
    for tool in tools:
        declared = tool.get("functionDeclarations", tool.get("function_declarations"))
        found += [_read_tool(one) for one in (_list(declared) or [tool.get("function", tool)])]
    return found


def _read_tool(tool: Mapping[str, Any]) -> Tool:
    keys = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
    schemas = [tool[key] for key in keys if isinstance(tool.get(key), Mapping)]
    description = str(tool.get("description") or "")
    return Tool(str(tool.get("name", "")), description, schemas[0] if schemas else {})


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
