"""Turns as clients send them, and where in them tool calls and results are, in any vendor's form.

A call is an entry of `toolCalls` (the contract's form or OpenAI's) or a content block: Anthropic
`tool_use`, Bedrock `toolUse`, Gemini `functionCall`, OpenAI Responses `function_call`. A result is
a whole turn of role `tool` or `function`, or the block that answers one of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

SYSTEM_ROLES = frozenset({"system", "developer"})
ASSISTANT_ROLES = frozenset({"assistant", "model"})
RESULT_ROLES = frozenset({"tool", "function"})

NO_OUTPUT = "(no output)"
"""Stands for a tool result without content: no message may leave empty."""


class Turn(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One message of a conversation, in the form in which the client sent it."""

    role: str
    content: str | list[Any] | None = None
    """A string, a list of a vendor's blocks, or null."""
    name: str | UnsetType | None = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType | None = UNSET
    """`{id, name, arguments}` each; OpenAI's `{id, function: {name, arguments}}` is read too."""
    tool_call_id: str | UnsetType | None = UNSET
    """Which call this turn is the result of."""
    openai_tool_calls: list[dict[str, Any]] | UnsetType | None = msgspec.field(
        name="tool_calls", default=UNSET
    )
    """`toolCalls` as OpenAI's API spells it."""
    openai_tool_call_id: str | UnsetType | None = msgspec.field(name="tool_call_id", default=UNSET)
    """`toolCallId` as OpenAI's API spells it."""


class Part(NamedTuple):
    """A tool call or a tool result inside a turn."""

    kind: Literal["call", "result"]
    id: str | None
    name: str | None
    place: Literal["field", "block", "turn"]
    """An entry of `toolCalls`, a block of `content`, or the turn as a whole."""
    at: int
    """Which entry or block, from 0; 0 for a turn."""


def is_system(turn: Turn) -> bool:
    """Whether the turn instructs, and so is never pruned."""
    return turn.role in SYSTEM_ROLES


def is_assistant(turn: Turn) -> bool:
    """Whether the model wrote the turn."""
    return turn.role in ASSISTANT_ROLES


def parts(turn: Turn) -> list[Part]:
    """The tool calls and results of a turn, in their order. Empty for most turns."""
    found = [
        Part("call", _text(call.get("id")), _call_name(call), "field", index)
        for index, call in enumerate(field_calls(turn))
    ]
    if isinstance(turn.content, list):
        found += _block_parts(turn.content)
    if turn.role in RESULT_ROLES and not found:
        found.append(Part("result", call_id(turn), _given(turn.name), "turn", 0))
    return found


def field_calls(turn: Turn) -> list[dict[str, Any]]:
    """The entries of `toolCalls`, however the client spelled it."""
    for calls in (turn.tool_calls, turn.openai_tool_calls):
        if calls:
            return calls
    return []


def call_id(turn: Turn) -> str | None:
    """The id of the call that the turn answers."""
    return _given(turn.tool_call_id) or _given(turn.openai_tool_call_id)


def is_empty(turn: Turn) -> bool:
    """Whether nothing would be sent with this turn: no content, no tool calls."""
    return not field_calls(turn) and _empty_content(turn.content)


def has_own_text(turn: Turn) -> bool:
    """Whether a turn with tool results says anything beside them."""
    if isinstance(turn.content, list):
        taken = {part.at for part in _block_parts(turn.content)}
        rest = [block for index, block in enumerate(turn.content) if index not in taken]
        return not _empty_content(rest)
    return turn.role not in RESULT_ROLES and bool(turn.content)


def starts_exchange(turn: Turn) -> bool:
    """Whether a person speaks here: a user's turn that is more than tool results."""
    return turn.role == "user" and (has_own_text(turn) or not parts(turn))


def without(turn: Turn, gone: set[tuple[str, int]]) -> Turn:
    """The turn without the parts at these (place, index); a part that is the turn empties it."""
    if ("turn", 0) in gone:
        return msgspec.structs.replace(turn, content=None)
    changes: dict[str, Any] = {}
    if isinstance(turn.content, list):
        changes["content"] = [
            block for index, block in enumerate(turn.content) if ("block", index) not in gone
        ]
    calls = [call for index, call in enumerate(field_calls(turn)) if ("field", index) not in gone]
    field = "tool_calls" if turn.tool_calls else "openai_tool_calls"
    if field_calls(turn):
        changes[field] = calls or UNSET
    return msgspec.structs.replace(turn, **changes)


def sends_reasoning(turn: Turn) -> bool:
    """Whether the turn carries its reasoning, so that the next request sends it back."""
    if not isinstance(turn.content, list):
        return False
    kinds = ("thinking", "redacted_thinking", "reasoning")
    return any(
        isinstance(block, Mapping) and (block.get("type") in kinds or "reasoningContent" in block)
        for block in turn.content
    )


def plain_text(content: object) -> str:
    """All text in a content, blocks joined by newlines; what is no text is left out."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _block_text(content)
    if isinstance(content, list):
        return "\n".join(text for text in map(plain_text, content) if text)
    return ""


def result_body(turn: Turn, part: Part) -> tuple[str, bool]:
    """The text of a tool result, and whether the tool said that it failed."""
    if part.place == "turn" or not isinstance(turn.content, list):
        return plain_text(turn.content), False
    block = turn.content[part.at]
    inner = next((block[key] for key in _RESULT_WRAPPERS if key in block), block)
    body = next((inner[key] for key in _RESULT_BODIES if inner.get(key) is not None), "")
    text = plain_text(body) or ("" if body in ("", [], {}) else json.dumps(body, default=str))
    return text, bool(inner.get("is_error")) or inner.get("status") in ("error", "incomplete")


_RESULT_WRAPPERS = ("toolResult", "functionResponse", "function_response")
_RESULT_BODIES = ("content", "output", "response", "result")

_TYPED: dict[str, tuple[Literal["call", "result"], tuple[str, ...], tuple[str, ...]]] = {
    "tool_use": ("call", ("id",), ("name",)),
    "tool_result": ("result", ("tool_use_id",), ()),
    "function_call": ("call", ("call_id", "id"), ("name",)),
    "function_call_output": ("result", ("call_id",), ()),
    "custom_tool_call": ("call", ("call_id", "id"), ("name",)),
    "custom_tool_call_output": ("result", ("call_id",), ()),
    "tool-call": ("call", ("toolCallId",), ("toolName",)),
    "tool-result": ("result", ("toolCallId",), ("toolName",)),
}
"""Blocks that say what they are by `type`: kind, keys of the id, keys of the tool's name."""

_KEYED: dict[str, tuple[Literal["call", "result"], tuple[str, ...], tuple[str, ...]]] = {
    "toolUse": ("call", ("toolUseId",), ("name",)),
    "toolResult": ("result", ("toolUseId",), ()),
    "functionCall": ("call", ("id",), ("name",)),
    "functionResponse": ("result", ("id",), ("name",)),
    "function_call": ("call", ("id",), ("name",)),
    "function_response": ("result", ("id",), ("name",)),
}
"""Blocks whose one key says what they are (Bedrock, Gemini)."""


def _block_parts(blocks: list[Any]) -> Iterator[Part]:
    for index, block in enumerate(blocks):
        if isinstance(block, Mapping):
            part = _block_part(block, index)
            if part is not None:
                yield part


def _block_part(block: Mapping[str, Any], index: int) -> Part | None:
    typed = _TYPED.get(str(block.get("type")))
    if typed is not None:
        kind, ids, names = typed
        return Part(kind, _first(block, ids), _first(block, names), "block", index)
    for key, (kind, ids, names) in _KEYED.items():
        inner = block.get(key)
        if isinstance(inner, Mapping):
            return Part(kind, _first(inner, ids), _first(inner, names), "block", index)
    return None


def _call_name(call: Mapping[str, Any]) -> str | None:
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    return _text(inner.get("name"))


def _first(block: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((text for text in (_text(block.get(key)) for key in keys) if text), None)


def _empty_content(content: object) -> bool:
    if isinstance(content, list):
        return all(_empty_block(block) for block in content)
    return not content


def _empty_block(block: object) -> bool:
    if isinstance(block, Mapping):
        return set(block) <= {"type", "text", "cache_control"} and not block.get("text")
    return not block


def _block_text(block: Mapping[str, Any]) -> str:
    text = block.get("text")
    if isinstance(text, str):
        return text
    return plain_text(block.get("content"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _given(value: str | UnsetType | None) -> str | None:
    return value if isinstance(value, str) and value else None
