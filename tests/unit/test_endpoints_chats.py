"""Tests that messages and tools in any vendor's format are converted to OpenAI's format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.endpoints.counting_requests import openai_messages, openai_tools
from sidecar.endpoints.outcome import EndpointError
from sidecar.messages.messages import read_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ARGUMENTS = {"city": "Bonn"}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)},
}
OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Rain"},
]


def told(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Convert messages to OpenAI's format, and decode the JSON in them for comparison."""
    rows: list[tuple[Any, ...]] = []
    for message in openai_messages(messages):
        content = message["content"]
        text = content if isinstance(content, str | None) else content[0]["text"]
        calls = [
            (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls", [])
        ]
        rows.append((message["role"], text, calls, message.get("tool_call_id")))
    return rows


def test_openai_messages_are_unchanged() -> None:
    """`test_messages_replies.py` tests the calls and results of all other forms."""
    assert openai_messages(OPENAI) == OPENAI


def test_reasoning_is_not_sent() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "a"},
    ]
    assert openai_messages([{"role": "assistant", "content": blocks}]) == [
        {"role": "assistant", "content": "a"}
    ]


def test_empty_fields_and_names() -> None:
    turn: dict[str, object] = {
        "role": "user",
        "content": "x",
        "name": "ann",
        "toolCalls": [],
        "toolCallId": None,
    }
    assert openai_messages([turn]) == [{"role": "user", "content": "x", "name": "ann"}]
    blocks = [{"type": "input_text", "text": "x"}]
    assert openai_messages([{**turn, "content": blocks}])[0] == {
        "role": "user",
        "content": "x",
        "name": "ann",
    }


def test_gemini_contents_are_converted() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "Weather?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": ARGUMENTS}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "response": {"sky": "rain"}}}],
        },
    ]
    assert told(contents) == [
        ("user", "Weather?", [], None),
        ("assistant", None, [("", "weather", ARGUMENTS)], None),
        ("tool", '{"sky":"rain"}', [], "weather"),
    ]


def test_developer_role_becomes_system() -> None:
    assert openai_messages([{"role": "developer", "content": "x"}])[0]["role"] == "system"


@pytest.mark.parametrize(
    "block", [{"type": "image_url", "image_url": {}}, {"type": "image"}, {"inlineData": {}}, 7]
)
def test_message_parts_other_than_text_are_refused(block: Any) -> None:
    with pytest.raises(EndpointError):
        openai_messages([{"role": "user", "content": [block]}])


FUNCTION = {"name": "weather", "description": "Tells", "parameters": SCHEMA}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": FUNCTION},
        {"type": "function", **FUNCTION},
        {"name": "weather", "description": "Tells", "input_schema": SCHEMA},
        {"name": "weather", "description": "Tells", "inputSchema": SCHEMA},
        {"functionDeclarations": [FUNCTION]},
        {"function_declarations": [FUNCTION]},
        {"toolSpec": {"name": "weather", "description": "Tells", "inputSchema": {"json": SCHEMA}}},
    ],
)
def test_tools_of_every_format_are_converted(tool: dict[str, Any]) -> None:
    assert openai_tools([tool]) == [{"type": "function", "function": FUNCTION}]
    assert read_tools([tool])[0].parameters == SCHEMA
