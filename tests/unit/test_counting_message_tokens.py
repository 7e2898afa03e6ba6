"""Tests how messages and tools are counted.

This includes OpenAI's published example, all vendors' formats, images, and the methods.

"""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.counting.count_result import Measure
from sidecar.counting.message_tokens import count_message, count_messages, count_tools
from sidecar.counting.tokenizer_choice import CalibratedTokenizer, Tokenizers
from sidecar.messages.media import size_of

TOKENIZERS = Tokenizers()

# The example in OpenAI's cookbook "How to count tokens with tiktoken", and the usage reported by
# the API.
JARGON = [
    {
        "role": "system",
        "content": "You are a helpful, pattern-following assistant that translates corporate "
        "jargon into plain English.",
    },
    {
        "role": "system",
        "name": "example_user",
        "content": "New synergies will help drive top-line growth.",
    },
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Things working well together will increase revenue.",
    },
    {
        "role": "system",
        "name": "example_user",
        "content": "Let's circle back when we have more bandwidth to touch base on opportunities "
        "for increased leverage.",
    },
    {
        "role": "system",
        "name": "example_assistant",
        "content": "Let's talk later when we're less busy about how to do better.",
    },
    {
        "role": "user",
        "content": "This late pivot means we don't have time to boil the ocean for the client "
        "deliverable.",
    },
]
WEATHER = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {
                "type": "string",
                "description": "The city and state, e.g. San Francisco, CA",
            },
            "unit": {
                "type": "string",
                "description": "The unit of temperature to return",
                "enum": ["celsius", "fahrenheit"],
            },
        },
        "required": ["location"],
    },
}
ASKED = [
    {
        "role": "system",
        "content": "You are a helpful assistant that can answer to questions about the weather.",
    },
    {"role": "user", "content": "What's the weather like in San Francisco?"},
]


def count(messages: list[Any], model: str = "gpt-4o", tools: list[Any] | None = None) -> Measure:
    return count_messages(messages, tools, model, TOKENIZERS.for_model(model))


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gpt-3.5-turbo", 129), ("gpt-4-0613", 129), ("gpt-4o", 124), ("gpt-4o-mini", 124)],
)
def test_message_counts_equal_reported_usage(model: str, tokens: int) -> None:
    measure = count(JARGON, model)

    assert (measure.tokens, measure.method) == (tokens, "calibrated")
    assert measure.error_percent is not None
    assert 0 < measure.error_percent < 3


@pytest.mark.parametrize(("model", "tokens"), [("gpt-4", 105), ("gpt-4o", 101)])
def test_tool_counts_equal_reported_usage(model: str, tokens: int) -> None:
    tools = [{"type": "function", "function": WEATHER}]

    assert count(ASKED, model, tools).tokens == tokens


def test_empty_request_is_exactly_0_tokens() -> None:
    assert count([]) == Measure(0, "exact", "o200k_base", 0.0)
    assert count_tools([], "gpt-5", TOKENIZERS.for_model("gpt-5")).tokens == 0


def test_uncompared_formula_is_an_estimate() -> None:
    assert count(ASKED, "gpt-5").method == "estimate"
    assert count(ASKED, "claude-sonnet-4-5").method == "calibrated"
    unknown = count(ASKED, "no-such-model").error_percent
    assert unknown is not None
    assert unknown > 20


def test_tool_set_uses_the_current_band() -> None:
    """A usage report can narrow the band without changing the factor."""
    plain = TOKENIZERS.for_model("kimi-k2")
    first, then = (
        count_tools([WEATHER], "kimi-k2", CalibratedTokenizer(plain, 1.1, spread)).error_percent
        for spread in (1.0, 0.5)
    )
    assert first is not None
    assert then is not None
    assert then < first


def test_priming_tokens_widen_the_band() -> None:
    """Many vendors do not publish the number of priming tokens, so the band allows for an error."""
    message = {"role": "user", "content": "hello"}

    def margin(model: str) -> float:
        tokenizer = TOKENIZERS.for_model(model)
        whole = count_messages([message], None, model, tokenizer)
        alone = count_message(message, model, tokenizer)
        assert whole.error_percent is not None
        assert alone.error_percent is not None
        return whole.tokens * whole.error_percent / 100 - alone.tokens * alone.error_percent / 100

    assert margin("llama-3.3-70b") == pytest.approx(1.5, abs=0.02)
    assert margin("gpt-4o") == pytest.approx(0.3, abs=0.02)
    assert margin("gemini-3-pro") == pytest.approx(0, abs=0.02)


CALL = {"location": "Paris"}


def test_an_item_of_the_responses_api_is_read() -> None:
    call = {"name": "w", "arguments": '{"location":"Paris"}'}
    item = {"type": "function_call", "call_id": "1", **call}
    message = {"role": "assistant", "content": None, "toolCalls": [{"id": "1", **call}]}
    assert count([item]).tokens == count([message]).tokens


def test_ids_and_signatures_are_not_counted() -> None:
    plain = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
    signed = [{**plain[0], "signature": "x" * 4000}, {**plain[1], "id": "y" * 400}]
    hidden = [*plain, {"type": "redacted_thinking", "data": "z" * 4000}]
    encrypted = [*plain, {"type": "reasoning", "summary": [], "encrypted_content": "z" * 4000}]

    for content in (signed, hidden, encrypted):
        assert count([{"role": "assistant", "content": content}], "claude-opus-4-7") == count(
            [{"role": "assistant", "content": plain}], "claude-opus-4-7"
        )


def test_struct_has_the_count_of_its_encoded_form() -> None:
    class Turn(msgspec.Struct, rename="camel"):
        role: str
        content: str
        tool_calls: list[dict[str, Any]]

    turn = Turn("assistant", "text", [{"id": "1", "name": "w", "arguments": CALL}])
    assert count([turn]) == count([msgspec.to_builtins(turn)])


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02"
    return base64.b64encode(head + bytes(64)).decode()


def jpeg(width: int, height: int) -> str:
    preview = b"\xff\xe1" + struct.pack(">H", 3000) + bytes(2998)
    frame = b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + bytes(20)
    return base64.b64encode(b"\xff\xd8" + preview + frame).decode()


def webp(width: int, height: int) -> str:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return base64.b64encode(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sizes).decode()


def gif(width: int, height: int) -> str:
    return base64.b64encode(b"GIF89a" + struct.pack("<HH", width, height) + bytes(8)).decode()


def avif(width: int, height: int) -> str:
    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", 8 + len(content)) + kind + content

    sizes = box(b"ispe", struct.pack(">III", 0, width, height))
    meta = box(b"meta", bytes(4) + box(b"iprp", box(b"ipco", sizes)))
    return base64.b64encode(box(b"ftyp", b"avif" + bytes(4) + b"avifmif1") + meta).decode()


@pytest.mark.parametrize("make", [png, jpeg, webp, gif, avif])
def test_sizes_are_read_from_the_data(make: Any) -> None:
    assert size_of({"type": "base64", "data": make(640, 481)}) == (640, 481)
    assert size_of({"url": f"data:image/x;base64,{make(640, 481)}"}) == (640, 481)


@given(st.one_of(st.text(), st.binary().map(lambda b: base64.b64encode(b).decode())))
def test_size_of_never_raises(data: str) -> None:
    size = size_of(data)
    assert size is None or min(size) > 0


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "data": png(1000, 1000)}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png(1000, 1000)}},
        {"type": "input_image", "image_url": "data:image/png;base64," + png(1000, 1000)},
        {"inlineData": {"mimeType": "image/png", "data": png(1000, 1000)}},
        {"image": {"format": "png", "source": {"bytes": png(1000, 1000)}}},
    ],
)
def test_picture_of_known_size_keeps_the_error_band(block: dict[str, Any]) -> None:
    measure = count([{"role": "user", "content": [block]}], "gpt-5")

    assert measure.tokens == 4 + 3 + 630
    assert measure.error_percent is not None


def test_picture_of_unknown_size_is_an_estimate() -> None:
    block = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    measure = count([{"role": "user", "content": [block]}])

    assert measure.method == "estimate"
    assert measure.tokens > 700
    assert (measure.error_percent or 0) > 60


KEYS = [
    *("type", "text", "content", "image", "source", "data", "toolUse", "functionCall"),
    *("tool_calls", "toolResult", "function", "arguments", "input", "name", "parts", "parameters"),
    *("properties", "enum", "items", "image_url", "reasoningContent", "functionDeclarations"),
    *("role", "toolSpec", "inlineData", "mimeType", "videoMetadata", "startOffset", "endOffset"),
    "fps",
]
KINDS = ["image", "tool_use", "tool_result", "document", "text", "function_call_output", "user"]
NUMBERS = [7, 1.5, -1, 1e308, 10**400, "7s", "9" * 400 + "s"]
LEAVES = st.sampled_from([None, True, *NUMBERS, "", "text", "{", "video/mp4", *KINDS])
BLOCKS = st.dictionaries(st.sampled_from(KEYS), LEAVES, max_size=4)
NESTED = st.dictionaries(st.sampled_from(KEYS), LEAVES | BLOCKS | st.lists(BLOCKS, max_size=2))
JSON = LEAVES | NESTED | st.lists(NESTED, max_size=2)


@settings(deadline=None)  # the first count loads a vocabulary
@given(messages=st.lists(JSON, max_size=3), tools=st.lists(JSON, max_size=3))
def test_counting_never_raises_for_any_message(messages: list[Any], tools: list[Any]) -> None:
    assert count(messages, "gpt-5", tools).tokens >= 0
