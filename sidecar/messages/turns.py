"""Defines a conversation's turns, with their tool calls and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sidecar.messages.content import (
    RESULT_ROLES,
    Block,
    Place,
    blocks_of,
    call_entries,
    result_turn,
)

SYSTEM_ROLES = frozenset({"system", "developer"})
ASSISTANT_ROLES = frozenset({"assistant", "model"})

NO_OUTPUT = "(no output)"
"""Replaces an empty tool result, because vendors reject empty messages."""


class Turn(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message in a conversation, in any vendor's format."""

    role: str
    content: str | list[Any] | None = None
    """Text, a list of blocks in a vendor's format, or null."""
    name: str | UnsetType | None = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType | None = UNSET
    """The tool calls: `{id, name, arguments}`, or OpenAI's `{id, function: {name, arguments}}`."""
    tool_call_id: str | UnsetType | None = UNSET
    """If this turn is a tool result, the id of its tool call."""
    openai_tool_calls: list[dict[str, Any]] | UnsetType | None = msgspec.field(
        name="tool_calls", default=UNSET
    )
    """The tool calls, if they are in the field that OpenAI uses."""
    openai_tool_call_id: str | UnsetType | None = msgspec.field(name="tool_call_id", default=UNSET)
    """If OpenAI's field is used: the id of the tool call that this turn answers."""


def is_system(turn: Turn) -> bool:
    return turn.role in SYSTEM_ROLES


def is_assistant(turn: Turn) -> bool:
    return turn.role in ASSISTANT_ROLES


def parts(turn: Turn) -> list[Block]:
    """Return the tool calls and tool results in a turn, in order."""
    if isinstance(turn.content, str) and turn.role not in RESULT_ROLES and not field_calls(turn):
        return []
    blocks = [*call_entries(field_calls(turn)), *_listed(turn)]
    found = [block for block in blocks if block.kind in ("call", "result") and not block.by_vendor]
    if turn.role in RESULT_ROLES and not found:
        call_id = turn.tool_call_id or turn.openai_tool_call_id or ""
        return [result_turn(turn.content, call_id, turn.name or "")]
    return found


def field_calls(turn: Turn) -> list[dict[str, Any]]:
    """Return the tool calls in the field `toolCalls` or `tool_calls`."""
    return turn.tool_calls or turn.openai_tool_calls or []


def is_empty(turn: Turn) -> bool:
    return not field_calls(turn) and _empty_content(turn.content)


def has_own_text(turn: Turn) -> bool:
    """Return whether a turn contains text in addition to tool results."""
    if isinstance(turn.content, list):
        taken = {part.at for part in parts(turn) if part.place == "block"}
        rest = [block for index, block in enumerate(turn.content) if index not in taken]
        return not _empty_content(rest)
    return turn.role not in RESULT_ROLES and bool(turn.content)


def starts_exchange(turn: Turn) -> bool:
    """Return whether a turn is a user message that does not consist only of tool results."""
    return turn.role == "user" and (has_own_text(turn) or not parts(turn))


def without(turn: Turn, gone: set[tuple[Place, int]]) -> Turn:
    """Return a copy of a turn with some of its tool calls and results removed.

    Args:
        turn: The turn.
        gone: The place and index of each tool call and result to remove.
    """
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


def with_outputs(turn: Turn) -> Turn:
    """Return the turn with a placeholder in place of each empty tool result."""
    if not isinstance(turn.content, list):
        return turn
    made = [_with_output(block) for block in turn.content]
    return turn if made == turn.content else msgspec.structs.replace(turn, content=made)


def _with_output(block: Any) -> Any:
    read = next(iter(blocks_of([block])), None)
    if read is None or read.kind != "result" or read.by_vendor or not _is_blank(read):
        return block
    body = {**read.body, **_output(read.body, block)}
    return body if read.body is block else dict.fromkeys(block, body)


def _is_blank(result: Block) -> bool:
    response = result.body.get("response")
    if isinstance(response, Mapping):
        return not any(response.values())
    return not any(one.kind != "text" or one.text.strip() for one in result.inner)


def _output(body: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    if "toolResult" in block:
        return {"content": [{"text": NO_OUTPUT}]}
    if block is not body:  # in Gemini's format, the keys of the object show whether the call failed
        return {"response": dict.fromkeys(body.get("response") or ("output",), NO_OUTPUT)}
    output = body.get("output")
    if isinstance(output, Mapping):
        return {"output": {**output, "value": NO_OUTPUT}}
    named = "output" if str(body.get("type")).endswith("call_output") else "content"
    return {next((key for key in ("output", "result") if key in body), named): NO_OUTPUT}


def sends_reasoning(turn: Turn) -> bool:
    """Return whether a turn contains reasoning, which clients send back with later requests."""
    return any(block.kind == "thinking" for block in _listed(turn))


def own_text(turn: Turn) -> str:
    """Return the text of a turn, without tool calls and results."""
    return join_texts(blocks_of(turn.content))


def join_texts(blocks: list[Block]) -> str:
    return "\n".join([block.text for block in blocks if block.kind == "text" and block.text])


def _listed(turn: Turn) -> list[Block]:
    return blocks_of(turn.content) if isinstance(turn.content, list) else []


def _empty_content(content: object) -> bool:
    if isinstance(content, list):
        return all(_empty_block(block) for block in content)
    return not content


def _empty_block(block: object) -> bool:
    if isinstance(block, Mapping):
        return set(block) <= {"type", "text", "cache_control"} and not block.get("text")
    return not block
