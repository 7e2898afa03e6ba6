"""Tests pruning plans: the order of removal, what is kept, costs and undo; and their properties
for generated conversations.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from sidecar.conversations import pruning as plans_module
from sidecar.conversations.context_protocol import FitResult
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import context_usage, occupancy
from sidecar.conversations.pruning import HEAD, apply_plan, make_plan, summarize_turns
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.count_result import Measure
from sidecar.errors import SidecarError
from sidecar.messages.messages import NO_OUTPUT, Turn
from sidecar.messages.vendor_usage import Usage
from tests.fuzz.conversations import Case, cases, check
from tests.unit.context_fakes import (
    ENVELOPE,
    PRIMING,
    FakeCalibration,
    FakeCounter,
    Planner,
    calls,
    output,
    reply,
    session,
    user,
    window,
)


class UnrecordedCounter(FakeCounter):
    """A counter that does not record its calls."""

    def text(self, text: str) -> Measure:
        made = super().text(text)
        self.asked.clear()
        return made


def exchange(number: int, size: int = 100) -> list[Turn]:
    """Return a question, a tool call with its result, and an answer."""
    name = f"c{number}"
    return [
        user(f"q{number}" + "?" * size),
        calls(name),
        output(name, "r" * size),
        reply(f"a{number}" + "!" * size),
    ]


def long_session(exchanges: int = 6) -> Planner:
    conversation = session()
    conversation.set_system("system")
    for number in range(exchanges):
        conversation.append(exchange(number))
    return Planner(conversation)


def indexes(plans: Planner, *, most: int, keep_turns: int = 4) -> list[int]:
    return [one.index for one in plans.make(most, keep_turns=keep_turns).removed]


def test_tool_outputs_go_before_dialogue_and_the_oldest_first() -> None:
    plans = long_session()
    whole = plans.make(10**6).tokens_before
    assert indexes(plans, most=whole) == []
    assert indexes(plans, most=whole - 1) == [1, 2]
    assert indexes(plans, most=whole - 300) == [1, 2, 5, 6]
    plan = plans.make(whole - 500)
    assert [(removal.index, removal.reason) for removal in plan.removed] == [
        (0, "dialogue"),
        (1, "toolOutput"),
        (2, "toolOutput"),
        (3, "dialogue"),
        (5, "toolOutput"),
        (6, "toolOutput"),
    ]
    assert plan.tokens_before - plan.tokens_after == sum(removal.tokens for removal in plan.removed)


def test_last_turns_stay_even_if_the_conversation_does_not_fit() -> None:
    plans = long_session()
    plan = plans.make(10, keep_turns=4)
    assert [removal.index for removal in plan.removed] == list(range(8))
    assert not plan.fits
    assert plan.reason is not None
    assert "the last 4 user turns" in plan.reason
    assert indexes(plans, most=10, keep_turns=0) == list(range(20))
    assert indexes(plans, most=10, keep_turns=9) == []


def test_a_pending_call_stays() -> None:
    conversation = session(turns=[*exchange(0), user("q"), calls("p1", "p2"), output("p1")])
    plan = Planner(conversation).make(0, keep_turns=0)
    assert [removal.index for removal in plan.removed] == [0, 1, 2, 3, 4]
    assert plan.messages == conversation.turns[5:]


def test_turns_that_vendors_refuse_are_always_removed() -> None:
    turns = [
        output("never called"),
        user("q"),
        calls("answered", "passed over", text="let me see"),
        output("answered", ""),
        Turn(role="assistant", content=""),
        user("next"),
    ]
    plan = Planner(session(turns=turns)).make(10**6)
    assert [(removal.index, removal.reason) for removal in plan.removed] == [
        (0, "orphan"),
        (2, "orphan"),
        (4, "empty"),
    ]
    assert plan.messages == [
        turns[1],
        calls("answered", text="let me see"),
        output("answered", NO_OUTPUT),
        turns[5],
    ]
    assert plan.fits


def test_nothing_else_is_removed_if_that_makes_room() -> None:
    turns = [*exchange(0), output("never called", "x" * 500), user("q")]
    whole = occupancy(session(turns=turns)).tokens
    plan = Planner(session(turns=turns)).make(whole - 500, keep_turns=1)
    assert [(removal.index, removal.reason) for removal in plan.removed] == [(4, "orphan")]


def test_a_result_in_two_parts_is_no_orphan() -> None:
    turns = [user("q"), calls("c"), output("c", "one"), output("c", "two"), user("r")]
    plans = Planner(session(turns=turns))
    assert plans.make(10**6).removed == []
    assert [one.index for one in plans.make(15, keep_turns=1).removed] == [1, 2, 3]


def test_calls_without_ids_are_paired_by_order_and_name() -> None:
    """Gemini and Ollama do not send tool call ids."""
    asks = [
        {"functionCall": {"name": "a", "args": {}}},
        {"functionCall": {"name": "b", "args": {}}},
    ]
    answers = [
        {"functionResponse": {"name": "b", "response": {"x": 1}}},
        {"functionResponse": {"name": "a", "response": {"x": 2}}},
    ]
    gemini = [
        user("q"),
        Turn(role="model", content=asks),
        Turn(role="user", content=answers),
        user("and"),
    ]
    assert Planner(session(turns=gemini)).make(10**6).removed == []
    gone = Planner(session(turns=gemini)).make(40, keep_turns=1).removed
    assert [one.index for one in gone] == [1, 2]
    ollama = [
        user("q"),
        Turn(role="assistant", tool_calls=[{"function": {"name": "a", "arguments": {}}}]),
        Turn(role="tool", content="x", name="a"),
        Turn(role="tool", content="too many", name="a"),
    ]
    removed = Planner(session(turns=ollama)).make(10**6).removed
    assert [(one.index, one.reason) for one in removed] == [(3, "orphan")]


class TestApply:
    """Tests applying a plan, applying it again, and undoing it."""

    def test_applied_plan_has_the_planned_size(self) -> None:
        plans = long_session()
        made = plans.conversation
        made.append([reply("x")], Usage(input_tokens=3_000, output_tokens=9, prompt_tokens=3_000))
        plan = plans.make(2_000)
        assert (plan.tokens_before, occupancy(made).tokens) == (3_009, 3_009)
        plans.apply(plan.plan_id)
        assert occupancy(made).tokens == plan.tokens_after
        assert context_usage(made, window()).compacted
        made.append([user("y" * 10)])
        assert occupancy(made).tokens == plan.tokens_after + 10 + ENVELOPE

    def test_undo_restores_removed_turns_and_keeps_new_ones(self) -> None:
        plans = long_session()
        made = plans.conversation
        before, turns = occupancy(made).tokens, list(made.turns)
        plans.apply(plans.make(500).plan_id)
        made.append([user("since")])
        assert plans.undo()
        assert made.turns == [*turns, user("since")]
        assert occupancy(made).tokens == before + 5 + ENVELOPE
        assert not context_usage(made, window()).compacted
        assert not plans.undo()

    def test_undo_after_the_pruned_request_was_reported(self) -> None:
        plans = long_session()
        made = plans.conversation
        plan = plans.make(500)
        plans.apply(plan.plan_id)
        made.append(
            [user("go"), reply("on")], Usage(input_tokens=700, output_tokens=5, prompt_tokens=700)
        )
        assert occupancy(made).tokens == 705
        plans.undo()
        assert occupancy(made).tokens == 705 + plan.tokens_before - plan.tokens_after

    def test_undo_after_a_model_switch_counts_again(self) -> None:
        plans = long_session()
        made = plans.conversation
        turns = list(made.turns)
        plans.apply(plans.make(500).plan_id)
        made.counter = FakeCounter("other", weight=2)
        occupancy(made)
        plans.undo()
        assert made.turns == turns
        both = session(FakeCounter("other", weight=2), turns)
        both.set_system("system")
        assert occupancy(made).tokens == occupancy(both).tokens

    @pytest.mark.parametrize("is_reported", [False, True])
    def test_undo_after_a_new_tokenizer_is_as_if_nothing_was_removed(
        self, is_reported: bool
    ) -> None:
        edited, other = long_session(), long_session()
        usage = Usage(input_tokens=3_000, output_tokens=9, prompt_tokens=3_000)
        for plans in (edited, other):
            plans.conversation.append([reply("x")], usage if is_reported else None)
        edited.apply(edited.make(500).plan_id)
        for plans in (edited, other):
            plans.conversation.counter = again = FakeCounter(weight=2)
            again.basis_name = "new"
            occupancy(plans.conversation)
            plans.conversation.append([user("since")])
        edited.undo()
        assert edited.conversation.turns == other.conversation.turns
        assert occupancy(edited.conversation) == occupancy(other.conversation)

    def test_turns_are_not_counted_again(self) -> None:
        plans = long_session()
        counter = plans.conversation.counter
        assert isinstance(counter, FakeCounter)
        counter.asked.clear()
        plan = plans.make(500)
        plans.apply(plan.plan_id)
        occupancy(plans.conversation)
        plans.undo()
        occupancy(plans.conversation)
        assert counter.asked.count("tool") == counter.asked.count("assistant") == 0

    def test_outdated_plan_is_refused(self) -> None:
        plans = long_session()
        plan = plans.make(500)
        plans.conversation.append([user("more")])
        for plan_id in (plan.plan_id, "s1/99"):
            with pytest.raises(SidecarError) as raised:
                plans.apply(plan_id)
            assert raised.value.kind == "badParams"

    def test_a_reset_forgets_plans(self) -> None:
        conversation = long_session().conversation
        plan = make_plan(conversation, 500)
        apply_plan(conversation, plan.plan_id)
        conversation.reset()
        with pytest.raises(SidecarError):
            apply_plan(conversation, plan.plan_id)
        assert not conversation.undo()


def test_plan_includes_the_number_of_cached_tokens_lost() -> None:
    plans = long_session()
    made = plans.conversation
    cached = Usage(input_tokens=100, cache_read_tokens=900, prompt_tokens=1_000, output_tokens=5)
    made.append([reply("x")], cached)
    plan = plans.make(800)
    assert plan.removed[0].index == 1
    before = 6 + ENVELOPE + 102 + ENVELOPE
    assert plan.cached_tokens_lost == 900 - before
    assert plans.make(10**6).cached_tokens_lost == 0
    plans.apply(plan.plan_id)
    assert plans.make(10).cached_tokens_lost <= before


def test_calibrated_estimates_decide_what_is_pruned() -> None:
    conversation = session(FakeCounter(method="estimate", error_percent=10.0))
    for number in range(8):
        conversation.append(exchange(number))
    plain, learned = Planner(conversation).make(3_000), FakeCalibration(1.5, 4, 2.0)
    corrected = Planner(conversation).make(3_000, calibration=learned)
    assert len(corrected.removed) > len(plain.removed)
    assert corrected.tokens_before == occupancy(conversation, learned).tokens
    assert corrected.tokens_after <= 3_000


class TestSummary:
    """Tests pruning plans that use the `summarize` strategy."""

    def long(self) -> Planner:
        conversation = session()
        for number in range(6):
            conversation.append(
                [
                    user(f"question {number} " + "?" * 300),
                    calls(f"c{number}", name="run_tests"),
                    output(f"c{number}", "noise\n" * 60 + f"{number} passed"),
                    reply("Thinking aloud. " * 20 + f"We decided on option {number}."),
                ]
            )
        return Planner(conversation)

    def test_summary_stays_within_its_cap(self) -> None:
        plans = self.long()
        plan = plans.make(4_000, keep_turns=2, summarize=True)
        assert plan.summary is not None
        assert plan.fits
        assert plan.tokens_after <= 4_000
        assert "- run_tests c0: ok, 61 lines: 0 passed" in plan.summary
        assert "- We decided on option 0." in plan.summary
        assert plan.summary.index("3 passed") < plan.summary.index("0 passed")
        assert len(plan.summary) <= 500
        summaries = [turn for turn in plan.messages if turn.content == plan.summary]
        assert [turn.role for turn in summaries] == ["user"]
        plans.apply(plan.plan_id)
        assert occupancy(plans.conversation).tokens == plan.tokens_after

    def test_a_summary_of_a_summary_keeps_its_lines(self) -> None:
        plans = self.long()
        made = plans.conversation
        plans.apply(plans.make(4_000, keep_turns=2, summarize=True).plan_id)
        made.append([user("x" * 900), reply("y" * 900), user("z"), reply("!")])
        again = plans.make(3_900, keep_turns=2, summarize=True)
        assert again.summary is not None
        assert "option 0" in again.summary
        assert sum(HEAD in str(turn.content) for turn in again.messages) == 1

    def test_a_summary_that_fails_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(turns: object, counter: object, cap: object) -> str:
            raise RuntimeError("SECRET")

        monkeypatch.setattr(plans_module, "summarize_turns", broken)
        plan = self.long().make(4_000, keep_turns=2, summarize=True)
        assert plan.summary is None
        assert plan.fits
        assert plan.removed

    def test_a_summary_that_is_too_long_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def talkative(turns: Sequence[Turn], counter: Counter, cap: int) -> str:
            return "s" * (cap + 1)

        monkeypatch.setattr(plans_module, "summarize_turns", talkative)
        assert self.long().make(4_000, keep_turns=2, summarize=True).summary is None

    def test_without_pruning_there_is_no_summary(self) -> None:
        assert self.long().make(10**6, summarize=True).summary is None

    @pytest.mark.parametrize(
        ("text", "outcome"),
        [
            ("12 passed, 0 failed", "ok: 12 passed, 0 failed"),
            ("no errors found", "ok: no errors found"),
            ("0 errors\n1 test failed\n", "failed: 1 test failed"),
            (" \n", "no output"),
            ("Permission denied", "failed: Permission denied"),
        ],
    )
    def test_summary_shows_how_a_tool_ended(self, text: str, outcome: str) -> None:
        turns = [calls("a", name="t"), output("a", text)]
        assert summarize_turns(turns, FakeCounter(), 1_000) == f"{HEAD}\n- t a: {outcome}"

    def test_summary_shows_what_tools_returned(self) -> None:
        turns = [
            calls("a", name="build"),
            output("a", "compiling\nerror: no such file\nexit 1"),
            Turn(
                role="user",
                content=[{"type": "tool_result", "tool_use_id": "b", "is_error": True}],
            ),
            user("[please] " + "go on " * 100),
        ]
        summary = summarize_turns(turns, FakeCounter(), 10_000)
        assert summary is not None
        head, asked, failed, build = summary.splitlines()
        assert head == HEAD
        assert build == "- build a: failed: error: no such file"
        assert failed == "- tool: failed"
        assert asked.startswith("- asked: [please] go on go on")
        assert len(asked) < 180
        assert set(asked.removeprefix("- asked: ").split()) == {"[please]", "go", "on", "…"}
        without_question = summarize_turns(turns, FakeCounter(), len(summary) - 1)
        assert without_question == "\n".join([head, failed, build])
        assert summarize_turns(turns, FakeCounter(), 60) == f"{HEAD}\n{failed}"
        assert summarize_turns([user("q")], FakeCounter(), 5) is None

    def test_summary_names_the_main_argument_of_a_tool(self) -> None:
        call = {"id": "a", "name": "read_file", "arguments": '{"limit": 5, "path": "src/a.py"}'}
        turns = [
            Turn(role="assistant", tool_calls=[call]),
            output("a", "x = 1\n" * 120),
            reply("We decided to keep it."),
        ]
        text = f"{HEAD}\n- We decided to keep it.\n- read_file src/a.py: ok, 120 lines"
        assert summarize_turns(turns, FakeCounter(), 1_000) == text
        short = summarize_turns(turns, FakeCounter(), len(text) - 1)
        assert short == f"{HEAD}\n- read_file src/a.py: ok, 120 lines"

    @pytest.mark.parametrize("most", range(0, 4_000, 200))
    def test_summary_is_smaller_than_the_removed_turns(self, most: int) -> None:
        plans = self.long()
        plan = plans.make(most, keep_turns=0, summarize=True)
        pruned = sum(removal.tokens for removal in plan.removed)
        if plan.summary is not None:
            assert len(plan.summary) + ENVELOPE < pruned
            assert all(line.startswith("- ") for line in plan.summary.splitlines()[1:])

    @pytest.mark.parametrize("summarize", [True, False])
    def test_keeping_no_turns_leaves_a_conversation(self, summarize: bool) -> None:
        plans = self.long()
        plan = plans.make(0, keep_turns=0, summarize=summarize)
        assert plan.messages == plans.conversation.turns[-4:]
        assert not plan.fits


def test_pruning_2000_turns_stays_within_a_bound_on_memory() -> None:
    conversation = session(UnrecordedCounter())
    for number in range(500):
        conversation.append(exchange(number, size=400))
    plans = Planner(conversation)
    occupancy(conversation)
    tracemalloc.start()
    for most in range(20_000, 100_000, 8_000):
        plan = plans.make(most, summarize=True)
    plans.apply(plan.plan_id)
    plans.undo()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(conversation.turns) == 2_000
    assert kept < 2_500_000
    assert peak < 4_000_000


def test_number_of_counts_does_not_grow_with_the_turns() -> None:
    def asked(exchanges: int) -> int:
        plans = long_session(exchanges)
        counter = plans.conversation.counter
        assert isinstance(counter, FakeCounter)
        counter.asked.clear()
        plans.make(500, summarize=True)
        return len(counter.asked)

    assert asked(400) <= asked(20) + 2


NOTHING: list[dict[str, Any]] = [{}, {"content": ""}, {"content": []}]
BLANK: list[dict[str, Any]] = [*NOTHING, {"content": [{"type": "text", "text": ""}]}]
FLAGS: list[dict[str, Any]] = [{}, {"is_error": True}]
RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({}, "output"),
    ({"response": {}}, "output"),
    ({"response": {"error": ""}}, "error"),
]
OUTPUTS: list[dict[str, Any]] = [{}, {"output": ""}, {"output": []}]
EMPTY_RESULTS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    *(
        (
            {"type": "tool_use", "id": "1", "name": "t", "input": {}},
            {"type": "tool_result", "tool_use_id": "1", **given, **flag},
            {"type": "tool_result", "tool_use_id": "1", "content": NO_OUTPUT, **flag},
        )
        for given in BLANK
        for flag in FLAGS
    ),
    *(
        (
            {"toolUse": {"toolUseId": "1", "name": "t", "input": {}}},
            {"toolResult": {"toolUseId": "1", **given, "status": "error"}},
            {"toolResult": {"toolUseId": "1", "content": [{"text": NO_OUTPUT}], "status": "error"}},
        )
        for given in NOTHING
    ),
    *(
        (
            {"functionCall": {"name": "t", "args": {}}},
            {"functionResponse": {"name": "t", **given}},
            {"functionResponse": {"name": "t", "response": {key: NO_OUTPUT}}},
        )
        for given, key in RESPONSES
    ),
    *(
        (
            {"type": "function_call", "call_id": "1", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", **given},
            {"type": "function_call_output", "call_id": "1", "output": NO_OUTPUT},
        )
        for given in OUTPUTS
    ),
]


@pytest.mark.parametrize(("call", "given", "sent"), EMPTY_RESULTS)
def test_empty_tool_result_gets_a_text_and_keeps_its_flag(
    call: dict[str, Any], given: dict[str, Any], sent: dict[str, Any]
) -> None:
    turns = [user("q"), Turn(role="assistant", content=[call]), Turn(role="user", content=[given])]
    plan = Planner(session(turns=[*turns, reply("a")])).make(10**6)
    assert plan.messages == [*turns[:2], Turn(role="user", content=[sent]), reply("a")]
    assert plan.removed == []


@pytest.mark.parametrize("content", ["", [], None])
def test_empty_tool_turn_gets_a_text(content: Any) -> None:
    turns = [user("q"), calls("c"), msgspec.structs.replace(output("c"), content=content)]
    plan = Planner(session(turns=[*turns, reply("a")])).make(10**6)
    assert plan.messages[2] == output("c", NO_OUTPUT)


def fit_case(case: Case) -> FitResult:
    """Plan, apply, plan again, apply again and undo, checking all properties after each step."""
    session = Conversation("s", FakeCounter())
    session.set_system(case.system)
    usage = None
    if case.usage is not None:
        prompt, out = case.usage
        usage = Usage(input_tokens=prompt, output_tokens=out, prompt_tokens=prompt)
    session.append(case.turns, usage)
    plans = Planner(session)
    before = occupancy(session).tokens
    plan = plans.make(case.max_tokens, keep_turns=case.keep_turns, summarize=case.summarize)
    assert plan.tokens_before == before
    assert session.turns == case.turns, "the plan was applied"
    check(case, plan)
    if case.usage is None and plan.messages:
        counted = sum(session.counter.message(turn).tokens for turn in plan.messages) + PRIMING
        assert plan.tokens_after == counted
    assert plans.apply(plan.plan_id) == plan
    after = occupancy(session).tokens
    assert after == plan.tokens_after
    assert plans.apply(plan.plan_id) == plan
    _again(case, session, plans)
    assert session.undo() == (plan.messages != _all_messages(case))
    assert session.turns == case.turns
    assert occupancy(session).tokens == before
    return plan


def _again(case: Case, session: Conversation, plans: Planner) -> None:
    """Check that a pruned conversation is not pruned again."""
    turns = list(session.turns)
    again = plans.make(case.max_tokens, keep_turns=case.keep_turns, summarize=case.summarize)
    assert again.removed == []
    assert again.tokens_after == again.tokens_before
    plans.apply(again.plan_id)
    assert session.turns == turns


def _all_messages(case: Case) -> list[Turn]:
    head = [Turn(role="system", content=case.system)] if case.system else []
    return [*head, *case.turns]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases)
def test_any_plan(case: Case) -> None:
    fit_case(case)
