"""Tests that messages and replies of all vendors are read alike: complete, streamed and cut off."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.endpoints.counting_requests import plain_message
from sidecar.endpoints.outcome import EndpointError
from sidecar.errors import VendorFormatError
from sidecar.messages.messages import Turn, join_texts, parts, read_message
from sidecar.messages.replies import FORMATS, Overflow, read_reply
from tests.cases import read_cases, read_rows, read_table
from tests.unit.messages_vendor_forms import ARGS, BROKEN, BROKEN_OFF, FORMS, vendor_reply

CUTS = [
    *((form, FORMS[form].cut, "output") for form in FORMS if FORMS[form].cut),
    ("openai-chat", "model_length", "window"),
    ("anthropic stream", "model_context_window_exceeded", "window"),
    ("bedrock", "model_context_window_exceeded", "window"),
]


@pytest.mark.parametrize(
    ("form", "format", "stop", "exhausted"),
    [
        (form, format, stop, exhausted)
        for form, stop, exhausted in CUTS
        for format in (None, *FORMS[form].formats)
        if format in (None, "mistral") or stop != "model_length"
    ],
)
def test_a_reply_cut_off_inside_a_tool_call(
    form: str, format: str | None, stop: str, exhausted: str
) -> None:
    """A call that was completed before the cut keeps its arguments."""
    reply = read_reply(vendor_reply(form, stop, BROKEN), format)
    [call] = reply.tool_calls
    assert (reply.content, reply.stop_reason, reply.exhausted) == ("Writing.", stop, exhausted)
    assert call.name == "write"
    if FORMS[form].has_text_arguments:
        assert (call.arguments_text, call.arguments) == (BROKEN, None)
    else:
        assert json.loads(call.arguments_text) == call.arguments == ARGS
    assert reply.cut_off
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.output_tokens) == (11, 7)


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form].whole])
def test_complete_reply_is_not_cut_off(form: str) -> None:
    stop = FORMS[form].whole
    reply = read_reply(vendor_reply(form, stop))
    assert (reply.format, reply.stop_reason, reply.exhausted) == (
        FORMS[form].formats[0],
        stop,
        None,
    )
    assert [call.arguments for call in reply.tool_calls] == [ARGS]
    assert reply.content == "Writing."
    assert not reply.cut_off


@pytest.mark.parametrize(
    ("form", "request_id", "model"),
    read_rows("messages", "request_ids", "form", "request_id", "model"),
)
def test_request_id_and_model_are_read_from_the_reply(
    form: str, request_id: str | None, model: str | None
) -> None:
    reply = read_reply(vendor_reply(form, "stop"))
    assert (reply.request_id, reply.model) == (request_id, model)


@pytest.mark.parametrize("events", BROKEN_OFF)
def test_interrupted_stream_is_cut_off(events: list[dict[str, Any]]) -> None:
    reply = read_reply(events)
    assert (reply.cut_off, reply.exhausted, reply.stop_reason) == (True, None, None)
    assert [call.arguments for call in reply.tool_calls] == [None]


def test_parallel_calls_of_a_stream_stay_separate() -> None:
    events = vendor_reply("openai-chat stream", "length")
    second = {"index": 1, "id": "call_2", "function": {"name": "read", "arguments": '{"pa'}}
    events.insert(-2, {"choices": [{"index": 0, "delta": {"tool_calls": [second]}}]})
    calls = read_reply(events).tool_calls
    assert [(call.id, call.arguments) for call in calls] == [("call_1", ARGS), ("call_2", None)]


def test_calls_with_different_ids_at_index_0_stay_separate() -> None:
    def event(call_id: str) -> dict[str, Any]:
        call = {"index": 0, "id": call_id, "function": {"name": "read", "arguments": "{}"}}
        return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}

    assert [call.id for call in read_reply([event("a"), event("b")]).tool_calls] == ["a", "b"]


def test_call_without_parameters_is_complete_unless_cut_off() -> None:
    assert read_reply(vendor_reply("openai-chat", "tool_calls", "")).tool_calls[0].arguments == {}
    assert read_reply(vendor_reply("openai-chat", "length", "")).tool_calls[0].arguments is None
    assert (
        read_reply(vendor_reply("anthropic stream", "tool_use", "")).tool_calls[0].arguments == {}
    )


def test_full_window_in_lm_studio() -> None:
    reply = read_reply(vendor_reply("lmstudio", "contextLengthReached"))
    assert (reply.content, reply.exhausted) == ("Writing.", "window")


def test_lm_studio_rest_replies() -> None:
    v1 = {
        "model_instance_id": "qwen3-4b",
        "output": [{"type": "reasoning", "content": "hm"}, {"type": "message", "content": "Hi"}],
        "stats": {"input_tokens": 11, "total_output_tokens": 7},
        "response_id": "resp_9",
    }
    reply = read_reply([{"type": "chat.start"}, {"type": "chat.end", "result": v1}])
    assert (reply.content, reply.request_id, reply.cut_off) == ("Hi", "resp_9", False)
    v0 = {
        **vendor_reply("openai-chat", "length", BROKEN),
        "stats": {"stop_reason": "contextLengthReached"},
    }
    assert read_reply(v0).exhausted == "window"


def test_blocked_gemini_prompt_has_a_stop_reason() -> None:
    assert read_reply({"promptFeedback": {"blockReason": "SAFETY"}}).stop_reason == "SAFETY"


@pytest.mark.parametrize("cost", ["0.00123", "0"])
def test_reported_cost_is_part_of_the_reply(cost: str) -> None:
    response = vendor_reply("openai-chat", "stop")
    response["usage"]["cost"] = float(cost)
    assert read_reply(response).cost == Decimal(cost)
    chunks = vendor_reply("openai-chat stream", "stop")
    chunks[-1]["usage"]["cost"] = float(cost)
    assert read_reply([*chunks, {"choices": []}]).cost == Decimal(cost)


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\\\uD83D"])
def test_half_a_character_in_a_reply_loses_no_usage(half: str) -> None:
    """A stream may divide an emoji between two events."""
    choice = {"index": 0, "delta": {"content": "smile HALF"}}
    events = [
        {"choices": [choice]},
        {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "note": "HALF"}},
    ]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events).replace("HALF", half)
    reply = read_reply(text, "openai-chat")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.output_tokens) == (7, 3)


def test_streams_may_be_lines_of_text() -> None:
    chunks = vendor_reply("openai-chat stream", "length", BROKEN)
    lines = [f"data: {json.dumps(chunk)}" for chunk in chunks]
    expected = read_reply(chunks)
    assert read_reply([*lines, "data: [DONE]"]) == expected
    assert read_reply("\n\n".join([*lines, "data: [DONE]"])) == expected
    events = vendor_reply("anthropic stream", "max_tokens", BROKEN)
    wrapped = [{"event": event["type"], "data": event} for event in events]
    assert read_reply(wrapped) == read_reply(events)
    assert (
        read_reply("\n".join(map(json.dumps, vendor_reply("ollama stream", "stop")))).content
        == "Writing."
    )


class OverflowCase(msgspec.Struct):
    response: Any
    prompt: int | None = None
    limit: int | None = None


@pytest.mark.parametrize("format", [None, "openai-chat", "anthropic"])
@pytest.mark.parametrize("case", read_cases("overflows", OverflowCase))
def test_prompt_too_long_error_is_a_full_window(case: OverflowCase, format: str | None) -> None:
    reply = read_reply(case.response, format)
    assert (reply.exhausted, reply.cut_off) == ("window", True)
    assert reply.overflow == Overflow(case.prompt, case.limit)


PROSE = "correct horse battery staple"


@pytest.mark.parametrize("format", [None, *FORMATS])
@pytest.mark.parametrize(
    "response",
    [
        None,
        7,
        "",
        PROSE,
        [],
        {},
        [[]],
        {"text_of_mine": PROSE},
        {"error": {"type": "rate_limit_error", "message": PROSE}},
        {"type": "error", "error": {"type": "overloaded_error", "message": PROSE}, "id": "x"},
        {"error": PROSE},
    ],
)
def test_invalid_reply_is_refused_without_quoting_it(response: object, format: str | None) -> None:
    with pytest.raises(VendorFormatError) as caught:
        read_reply(response, format)
    assert PROSE not in str(caught.value)


def test_unknown_format_error_lists_the_known_formats() -> None:
    with pytest.raises(VendorFormatError, match="openai-responses"):
        read_reply(vendor_reply("openai-chat", "stop"), "telnet")


def test_error_names_a_field_of_the_wrong_type() -> None:
    with pytest.raises(VendorFormatError, match="choices"):
        read_reply({"choices": [{"message": {"content": 7}}]})


KEYS = (
    "choices type message content candidates parts usage output delta stats done error response "
    "item index tool_calls prompt_tokens input_tokens event_type stopReason data object"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, *FORMATS]))
def test_reader_never_crashes(response: object, format: str | None) -> None:
    try:
        reply = read_reply(response, format)
    except VendorFormatError:
        return
    assert reply.format in FORMATS


def test_failed_call_has_no_arguments() -> None:
    """If a tool has no parameters, a successful call has the arguments `{}`, not None."""
    packets = [
        {"type": "toolCallGenerationStart", "toolCallId": "c"},
        {"type": "toolCallGenerationNameReceived", "name": "write"},
        {"type": "toolCallGenerationFailed"},
        {"stats": {"stopReason": "eosFound", "promptTokensCount": 1, "predictedTokensCount": 1}},
    ]
    reply = read_reply(packets, "lmstudio")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("write", None)]


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


def test_tool_message_with_blocks_of_the_vendors_tools_is_the_result_of_its_call() -> None:
    content = [{"type": "web_search_tool_result", "tool_use_id": "s1", "content": "Rain"}]
    message = {"role": "tool", "tool_call_id": "c1", "content": content}
    [paired] = parts(msgspec.convert(message, Turn))
    assert (paired.kind, paired.id, paired.place) == ("result", "c1", "turn")
    counted = read_message(message)
    assert [(block.kind, block.id) for block in counted.blocks] == [("result", "c1")]
    assert counted.texts == ["Rain"]


def test_tool_message_with_parts_of_text_is_a_result_with_them() -> None:
    message = {"role": "function", "name": "weather", "parts": [{"text": "Rain"}]}
    counted = read_message(message)
    assert [(block.kind, block.name) for block in counted.blocks] == [("result", "weather")]
    assert counted.texts == ["Rain"]


def test_reasoning_of_open_models_is_text() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}
    assert read_message(item).texts == ["hm"]


def test_deeply_nested_message_is_read_to_a_limit() -> None:
    block: dict[str, Any] = {"type": "text", "text": "deep"}
    for _ in range(900):
        block = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    assert len(list(read_message({"role": "user", "content": [block]}).flat())) < 20


def test_picture_is_refused_by_text_only_endpoints() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    for content in (
        [picture],
        [{"type": "tool_result", "tool_use_id": "c1", "content": [picture]}],
    ):
        with pytest.raises(EndpointError):
            plain_message({"role": "user", "content": content})
