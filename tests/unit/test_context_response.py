"""Tests each vendor's replies that end inside a tool call. Only the tool call is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.conversations.changes import Outcome, apply_reply, exhausted_limit
from sidecar.conversations.context_protocol import ResponseResult
from sidecar.conversations.occupancy import occupancy
from sidecar.counting.calibration import Sample
from sidecar.messages.messages import read_tools
from sidecar.messages.replies import read_reply
from sidecar.models.window import Limit, LimitSource, Window
from tests.cases import read_rows
from tests.unit.context_fakes import (
    PRIMING,
    FakeCalibration,
    FakeCounter,
    Planner,
    reply,
    session,
    user,
    window,
)
from tests.unit.messages_vendor_forms import ARGS, BROKEN, BROKEN_OFF, FORMS, WHOLE, vendor_reply

PARAMETERS = {"type": "object", "properties": {}, "required": ["path", "text"]}
MORE = {"type": "object", "properties": {}, "required": ["path", "text", "mode"]}


def schemas(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": "write", "parameters": parameters}},
        {"type": "function", "name": "write", "parameters": parameters},
        {"name": "write", "input_schema": parameters},
        {"functionDeclarations": [{"name": "write", "parameters": parameters}]},
        {"toolSpec": {"name": "write", "inputSchema": {"json": parameters}}},
    ]


CUT_TEXT = [
    *(
        (vendor_reply(name, form.cut, BROKEN), format, "output")
        for name, form in FORMS.items()
        if form.cut and form.has_text_arguments
        for format in form.formats
    ),
    *((events, None, None) for events in BROKEN_OFF),
]
"""Replies that end inside the JSON of a tool call, their format, and the exhausted limit."""

CUT_VALUE = [vendor_reply(name, form.cut) for name, form in FORMS.items() if form.cut]
"""Replies that end after the JSON of a tool call."""

ENDED = [vendor_reply(name, form.whole) for name, form in FORMS.items() if form.whole]


def handled(
    response: Any, format: str | None, tools: list[dict[str, Any]]
) -> Outcome[ResponseResult]:
    conversation = session(turns=[user("write it")])
    return apply_reply(conversation, read_reply(response, format), window(), tools=tools)


@pytest.mark.parametrize(("response", "format", "exhausted"), CUT_TEXT)
@pytest.mark.parametrize("schema", [[], *([tool] for tool in schemas(PARAMETERS))])
def test_a_call_cut_inside_its_json_is_dropped(
    response: Any, format: str | None, exhausted: str | None, schema: list[dict[str, Any]]
) -> None:
    outcome = handled(response, format, schema)
    assert outcome.result.tool_calls == []
    assert [call.name for call in outcome.result.dropped] == ["write"]
    assert "JSON" in outcome.result.dropped[0].reason
    assert outcome.result.content == "Writing."
    kinds = [kind for kind, _ in outcome.warnings]
    assert kinds == (["exhausted"] if exhausted else []) + ["droppedToolCalls"]
    assert outcome.result.exhausted == exhausted


@pytest.mark.parametrize("response", CUT_VALUE)
@pytest.mark.parametrize("number", range(5))
def test_a_call_that_lacks_a_required_parameter_is_dropped(response: Any, number: int) -> None:
    outcome = handled(response, None, [schemas(MORE)[number]])
    assert outcome.result.tool_calls == []
    assert outcome.result.dropped[0].reason == "missing required parameters: mode"


@pytest.mark.parametrize("response", CUT_VALUE)
@pytest.mark.parametrize("number", range(5))
def test_a_whole_call_in_a_reply_that_was_cut_stays(response: Any, number: int) -> None:
    outcome = handled(response, None, [schemas(PARAMETERS)[number]])
    assert [call.arguments for call in outcome.result.tool_calls] == [ARGS]
    assert outcome.result.dropped == []
    assert [kind for kind, _ in outcome.warnings] == ["exhausted"]


@pytest.mark.parametrize("response", ENDED)
def test_complete_reply_is_not_checked_against_schemas(response: Any) -> None:
    outcome = handled(response, None, [schemas(MORE)[0]])
    assert [call.arguments for call in outcome.result.tool_calls] == [ARGS]
    assert (outcome.result.dropped, outcome.warnings, outcome.result.exhausted) == ([], [], None)


def test_invalid_call_in_a_complete_reply_is_not_reported_as_cut_off() -> None:
    outcome = handled(vendor_reply("openai-chat", "tool_calls", BROKEN), None, [])
    assert [call.reason for call in outcome.result.dropped] == ["its arguments are not valid JSON"]
    text = "Incomplete or invalid tool calls were dropped: write."
    assert outcome.warnings == [("droppedToolCalls", text)]


def test_complete_call_before_a_cut_off_call_is_kept() -> None:
    response = vendor_reply("openai-chat", "length", BROKEN)
    message = response["choices"][0]["message"]
    whole = {"id": "call_0", "function": {"name": "write", "arguments": WHOLE}}
    message["tool_calls"].insert(0, whole)
    result = handled(response, None, []).result
    assert [call.id for call in result.tool_calls] == ["call_0"]
    assert len(result.dropped) == 1


def test_dropped_call_does_not_reveal_its_arguments() -> None:
    outcome = handled(vendor_reply("openai-chat", "length", '{"path": "SECRET'), None, [])
    assert "SECRET" not in repr((outcome.result.dropped, outcome.warnings))


def test_malformed_schemas_require_nothing() -> None:
    odd: list[dict[str, Any]] = [
        {},
        {"function": 3},
        {"name": "n", "parameters": 3},
        {"functionDeclarations": [3]},
    ]
    assert [tool.name for tool in read_tools(odd)] == ["tool", "tool", "n", "tool"]
    assert not any(tool.required for tool in read_tools(odd))


def test_a_reply_that_fills_the_window_exhausted_the_window() -> None:
    conversation = session(
        turns=[user("x" * 900), reply("y" * 900), user("q"), reply("a"), user("now")]
    )
    response = vendor_reply("openai-chat", "length")
    response["usage"] = {"prompt_tokens": 1_900, "completion_tokens": 100}
    plans = Planner(conversation)
    outcome = apply_reply(conversation, read_reply(response), window(2_000), keep_turns=1)
    assert outcome.result.exhausted == "window"
    plan = outcome.result.plan
    assert plan is not None
    assert (plan.tokens_before, plan.fits) == (2_000, True)
    assert plan.tokens_after <= window(2_000).usable
    plans.apply(plan.plan_id)
    assert occupancy(conversation).tokens == plan.tokens_after


class NewestSample(FakeCalibration):
    """A calibration by the newest sample."""

    def update(self, sample: Sample) -> None:
        self.factor, self.samples = sample.reported / sample.estimated, 1


def test_a_refused_prompt_is_an_exact_sample_and_names_the_window() -> None:
    """llama.cpp's error response contains the prompt size and the window."""
    error = {"type": "exceed_context_size_error", "n_prompt_tokens": 5_031, "n_ctx": 1_024}
    counter = FakeCounter(method="estimate", error_percent=None)
    conversation = session(counter, [user("x" * 4_000), reply("y"), user("z")])
    learned = NewestSample(1.0, 0)

    outcome = apply_reply(
        conversation,
        read_reply({"error": error}),
        window(),
        keep_turns=1,
        calibration=learned,
    )
    assert outcome.result.exhausted == "window"
    assert outcome.refused_limit == 1_024
    sample = outcome.sample
    assert sample is not None
    assert (sample.reported, sample.estimated) == (5_031, 4_000 + 2 + 3 * 4 + PRIMING)
    assert occupancy(conversation).tokens == 5_031
    plan = outcome.result.plan
    assert plan is not None
    assert (plan.fits, [removal.index for removal in plan.removed]) == (True, [0, 1])
    assert plan.tokens_after <= 1_024 - 1_024 // 4
    assert outcome.result.calibration is not None
    assert outcome.result.calibration.samples == 1


@pytest.mark.parametrize(("source", "total", "expected"), read_rows("context", "exhausted_limits"))
def test_output_limit_and_full_window_are_distinguished(
    source: LimitSource, total: int, expected: str
) -> None:
    response = vendor_reply("openai-chat", "length")
    response["usage"] = {"prompt_tokens": total - 100, "completion_tokens": 100}
    assert exhausted_limit(read_reply(response), Window(Limit(2_000, source))) == expected


def test_schemas_of_the_session_are_the_default() -> None:
    conversation = session()
    conversation.set_tools([schemas(MORE)[0]])
    reply = read_reply(vendor_reply("openai-chat", "length"))
    outcome = apply_reply(conversation, reply, window())
    assert outcome.result.dropped[0].reason == "missing required parameters: mode"
    assert outcome.result.plan is None


def test_reply_without_usage_does_not_change_the_occupancy() -> None:
    conversation = session(turns=[user("x")])
    before = occupancy(conversation)
    response = vendor_reply("openai-chat", "stop")
    del response["usage"]
    outcome = apply_reply(conversation, read_reply(response), window())
    assert (occupancy(conversation), outcome.result.usage) == (before, None)
    conversation.append([reply("y" * 7)])
    assert occupancy(conversation).tokens == before.tokens + 7 + 4


def test_reply_is_not_appended() -> None:
    conversation = session(turns=[user("x")])
    apply_reply(conversation, read_reply(vendor_reply("openai-chat", "stop")), window())
    assert conversation.turns == [user("x")]
    assert occupancy(conversation).tokens == 18


def test_a_dropped_call_leaves_the_occupancy() -> None:
    conversation = session(turns=[user("x" * 993)])
    broken = '{"path": "a", "text": "' + "y" * 4_077
    cut = vendor_reply("openai-chat", "length", broken)
    cut["choices"][0]["message"]["content"] = "z" * 150
    cut["usage"] = {"prompt_tokens": 1_000, "completion_tokens": 150 + len("write ") + len(broken)}
    outcome = apply_reply(conversation, read_reply(cut), window())
    assert [call.name for call in outcome.result.dropped] == ["write"]
    assert occupancy(conversation).tokens == 1_150
    conversation.append([reply("z" * 150)])
    assert occupancy(conversation).tokens == 1_150
    again = vendor_reply("openai-chat", "tool_calls")
    again["usage"] = {"prompt_tokens": 1_160, "completion_tokens": 10}
    after = apply_reply(conversation, read_reply(again), window())
    assert after.warnings == []


def cut_call(kept: str, arguments: str, usage: dict[str, int]) -> dict[str, Any]:
    """Return a reply with text and a tool call that is cut off partway through its arguments."""
    cut: dict[str, Any] = vendor_reply("openai-chat", "length", arguments)
    cut["choices"][0]["message"]["content"] = kept
    cut["usage"] = usage
    return cut


def test_missing_part_of_a_call_does_not_count_as_text() -> None:
    # Some vendors do not send incomplete tool calls.
    conversation = session(FakeCounter(method="estimate", error_percent=5.0), [user("x" * 993)])
    cut = cut_call("z" * 250, '{"', {"prompt_tokens": 1_001, "completion_tokens": 1_000})
    apply_reply(conversation, read_reply(cut), window())
    size = occupancy(conversation)
    assert (size.tokens, size.method) == (1_251, "estimate")
    assert size.error_percent
    conversation.append([reply("z" * 250)])
    assert occupancy(conversation).tokens == 1_251


def test_a_short_cut_call_is_subtracted_from_a_long_reply() -> None:
    conversation = session(FakeCounter(method="estimate", error_percent=10.0), [user("x" * 993)])
    broken = '{"path": "a", "text": "b'
    gone = len("write ") + len(broken)
    # The text is estimated at 5,000 tokens, but 4,750 tokens are reported for it.
    cut = cut_call("z" * 5_000, broken, {"prompt_tokens": 1_000, "completion_tokens": 4_750 + gone})
    apply_reply(conversation, read_reply(cut), window())
    size = occupancy(conversation)
    assert (size.tokens, size.method) == (5_750, "estimate")
    assert 0 < (size.error_percent or 0) < 1


def test_a_reply_of_which_nothing_is_kept_leaves_the_reported_prompt() -> None:
    conversation = session(FakeCounter(method="estimate", error_percent=5.0), [user("x" * 993)])
    cut = cut_call("", '{"path"', {"prompt_tokens": 1_001, "completion_tokens": 1_000})
    apply_reply(conversation, read_reply(cut), window())
    size = occupancy(conversation)
    assert (size.tokens, size.method, size.error_percent) == (1_001, "endpoint", 0.0)


def test_discarded_reply_is_not_a_compaction() -> None:
    conversation = session(FakeCounter(method="estimate", error_percent=5.0), [user("x" * 493)])
    cut = cut_call("z" * 900, '{"', {"prompt_tokens": 500, "completion_tokens": 2_000})
    apply_reply(conversation, read_reply(cut), window())
    conversation.append([user("y" * 16)])
    again = vendor_reply("openai-chat", "tool_calls")
    again["usage"] = {"prompt_tokens": 520, "completion_tokens": 10}
    assert apply_reply(conversation, read_reply(again), window()).warnings == []


@pytest.mark.parametrize("appended", [True, False])
def test_a_retry_after_a_cut_off_is_no_compaction(appended: bool) -> None:
    conversation = session(turns=[user("x" * 993)])
    for _ in range(3):
        cut = vendor_reply("openai-chat", "length", "")
        cut["choices"][0]["message"] = {"role": "assistant", "content": "y" * 4_000}
        cut["usage"] = {"prompt_tokens": 1_000, "completion_tokens": 4_000}
        outcome = apply_reply(conversation, read_reply(cut), window())
        assert [kind for kind, _ in outcome.warnings] == ["exhausted"]
        if appended:
            conversation.append([reply("y" * 4_000)])
    shorter = vendor_reply("openai-chat", "stop", "")
    shorter["choices"][0]["message"] = {"role": "assistant", "content": "ok"}
    shorter["usage"] = {"prompt_tokens": 300, "completion_tokens": 1}
    outcome = apply_reply(conversation, read_reply(shorter), window())
    assert [kind for kind, _ in outcome.warnings] == ["compacted"]


def test_cut_off_call_without_schema_is_kept_as_unchecked() -> None:
    cut, whole = vendor_reply("openai-chat", "length"), vendor_reply("openai-chat", "tool_calls")
    outcome = handled(cut, None, [])
    assert (
        [call.name for call in outcome.result.tool_calls] == outcome.result.unchecked == ["write"]
    )
    assert any("write" in message for kind, message in outcome.warnings if kind == "exhausted")
    assert handled(cut, None, [schemas(PARAMETERS)[0]]).result.unchecked == []
    assert handled(whole, None, []).result.unchecked == []
    assert (outcome.result.model, outcome.result.request_id) == (cut.get("model"), cut.get("id"))
