"""Tests that counts, conversations and endpoints read every message format in the same way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sidecar.endpoints.chats import openai_tools, plain_message
from sidecar.endpoints.outcome import EndpointError
from sidecar.messages.content import read_message
from sidecar.messages.turns import Turn, join_texts, parts
from tests.cases import read_table

ARGUMENTS = {"city": "Bonn"}
BLOCKS = read_table("tool_blocks")
CALLS, RESULTS = BLOCKS["call"], BLOCKS["result"]


@pytest.mark.parametrize("form", CALLS)
def test_every_package_reads_the_same_tool_call(form: str) -> None:
    message = {"role": "assistant", **CALLS[form]}
    [counted] = [block for block in read_message(message).flat() if block.kind == "call"]
    [paired] = parts(msgspec.convert(message, Turn))
    [sent] = plain_message(message).calls

    for block in (counted, paired, sent):
        assert (block.id, block.name, json.loads(block.arguments)) == ("c1", "weather", ARGUMENTS)
    assert read_message(message).texts == []


@pytest.mark.parametrize("form", RESULTS)
def test_every_package_reads_the_same_tool_result(form: str) -> None:
    message = {"role": "user", **RESULTS[form]}
    [counted] = [block for block in read_message(message).flat() if block.kind == "result"]
    [paired] = parts(msgspec.convert(message, Turn))
    [sent] = plain_message(message).results

    assert [(block.id, join_texts(block.inner)) for block in (counted, paired)] == [
        ("c1", "Rain")
    ] * 2
    assert (sent.id, sent.text) == ("c1", "Rain")
    assert read_message(message).texts == ["Rain"]


def test_tools_that_the_vendor_runs_are_counted_and_never_paired() -> None:
    content: list[dict[str, Any]] = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "a"}]},
    ]
    kinds = [block.kind for block in read_message({"role": "assistant", "content": content}).blocks]
    assert kinds == ["call", "result"]
    assert parts(Turn(role="assistant", content=content)) == []


def test_reasoning_of_open_models_is_text() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    assert read_message(item).texts == ["hm"]


def test_deeply_nested_message_is_read_to_a_limit() -> None:
    block: dict[str, Any] = {"type": "text", "text": "deep"}
    for _ in range(900):
        block = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    assert len(list(read_message({"role": "user", "content": [block]}).flat())) < 20


def test_bedrock_schema_is_converted_for_an_endpoint() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"toolSpec": {"name": "weather", "inputSchema": {"json": schema}}}
    [sent] = openai_tools([tool])
    assert sent["function"]["name"] == "weather"
    assert sent["function"]["parameters"] == schema


def test_picture_is_refused_by_text_only_endpoints() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    for content in (
        [picture],
        [{"type": "tool_result", "tool_use_id": "c1", "content": [picture]}],
    ):
        with pytest.raises(EndpointError):
            plain_message({"role": "user", "content": content})
