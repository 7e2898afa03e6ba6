"""Tests a session's occupancy, its parts and usage reports. No text is counted needlessly.

A simulated model server keeps the conversation, caches prompts, hides reasoning, and reports usage
like its vendor. The occupancy before each request is compared with the prompt size that the server
reports.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.conversations.context_protocol import SectionSpec, SetParams
from sidecar.conversations.conversation import (
    Conversation,
    apply_set,
    from_json,
    restore,
    save,
    to_json,
)
from sidecar.conversations.occupancy import context_usage, estimated_prompt, occupancy
from sidecar.conversations.sections import Section, TextSource
from sidecar.conversations.turn_counts import OTHER_PERCENT, Sums, TurnCounts, measure_of, shares
from sidecar.counting.count_result import Measure
from sidecar.errors import SidecarError
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage, normalize_usage
from tests.unit.context_fakes import (
    ENVELOPE,
    PRIMING,
    FakeCalibration,
    FakeCounter,
    Planner,
    calls,
    message_size,
    output,
    reply,
    session,
    user,
    window,
)


def usage(prompt: int, out: int, reasoning: int = 0, cached: int = 0) -> Usage:
    return Usage(
        input_tokens=prompt - cached,
        cache_read_tokens=cached,
        prompt_tokens=prompt,
        output_tokens=out,
        reasoning_tokens=reasoning,
    )


def set_params(**values: object) -> SetParams:
    return msgspec.convert(values, SetParams)


def count_chat(
    made: Conversation, total: int, turns: list[Turn], usage: Usage | None = None
) -> None:
    """Append turns, and apply an endpoint's count of the whole conversation."""
    first = len(made.turns)
    made.append(turns, usage)
    made.apply_chat_count(total, first)


def no_documents(spec: SectionSpec) -> TextSource:
    raise AssertionError(spec.name)


def test_the_breakdown_adds_up() -> None:
    conversation = session(turns=[user("a" * 10), calls("c1"), output("c1", "b" * 30)])
    conversation.set_system("s" * 20)
    conversation.set_tools([{"name": "read"}])
    conversation.sections = [Section(name="plan", source=TextSource("p" * 5))]
    shown = context_usage(conversation, window())
    parts = shown.breakdown
    assert parts is not None
    assert parts.system == 20 + ENVELOPE
    assert parts.tools == len('[{"name": "read"}]')
    assert parts.sections == 5
    assert parts.overhead == PRIMING
    assert shown.tokens == sum(msgspec.structs.astuple(parts))
    assert [part.label for part in shown.largest[:2]] == [
        "turn 1 (assistant: read)",
        "turn 2 (tool)",
    ]
    assert (shown.method, shown.error_percent) == ("exact", 0.0)


def test_each_turn_is_counted_once() -> None:
    counter = FakeCounter()
    conversation = session(counter)
    for number in range(300):
        conversation.append([user(f"turn {number}")])
        context_usage(conversation, window())
        context_usage(conversation, window())
    assert len(counter.asked) == 300


def test_a_model_switch_recounts_when_asked_and_only_once() -> None:
    first, other = FakeCounter("a"), FakeCounter("b", weight=2)
    conversation = session(first, [user("x" * 10), reply("y" * 10)])
    small = occupancy(conversation).tokens
    conversation.counter = other
    assert other.asked == []
    assert occupancy(conversation).tokens > small
    conversation.append([user("z")])
    conversation.counter = first
    assert occupancy(conversation).tokens == small + 1 + ENVELOPE
    conversation.counter = other
    occupancy(conversation)
    assert len(first.asked) == len(other.asked) == 3


def test_later_turns_are_added_to_reported_usage() -> None:
    conversation = session(turns=[user("x" * 50)])
    conversation.append([reply("y" * 40), user("z" * 10)], usage(1_000, 100, reasoning=30))
    assert occupancy(conversation).tokens == 1_000 + 100 - 30 + 10 + ENVELOPE
    assert occupancy(conversation).method == "endpoint"
    conversation.append([reply("!")], usage(1_111, 7))
    assert occupancy(conversation) == Measure(1_118, "endpoint", "fake-1-tokenizer", 0.0)


def test_reasoning_that_is_sent_back_counts() -> None:
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text"}]
    conversation = session(turns=[user("x")])
    conversation.append([Turn(role="assistant", content=thought)], usage(100, 50, reasoning=30))
    assert occupancy(conversation).tokens == 150


def test_the_first_assistant_turn_after_a_response_adds_nothing() -> None:
    conversation = session(turns=[user("x")])
    conversation.apply_reply_usage(usage(500, 60))
    assert occupancy(conversation).tokens == 560
    conversation.append([reply("y" * 200), user("z")])
    assert occupancy(conversation).tokens == 560 + 1 + ENVELOPE
    conversation.append([reply("w" * 9)])
    assert occupancy(conversation).tokens == 560 + 1 + 9 + 2 * ENVELOPE


def test_the_question_of_a_reported_reply_was_in_its_prompt() -> None:
    conversation = session()
    conversation.apply_reply_usage(usage(500, 60))
    conversation.append([user("the question"), reply("the answer"), user("z")])
    assert occupancy(conversation).tokens == 560 + 1 + ENVELOPE


def test_usage_may_arrive_before_its_reply() -> None:
    conversation = session()
    conversation.append([user("x" * 30)], usage(44, 6))
    conversation.append([reply("y" * 30)])
    assert occupancy(conversation).tokens == 50


def test_report_without_a_prompt_is_ignored() -> None:
    conversation = session(turns=[user("x" * 30)])
    before = occupancy(conversation).tokens
    conversation.append([reply("y" * 20)], Usage(input_tokens=0, output_tokens=9))
    assert occupancy(conversation).tokens == before + 20 + ENVELOPE


def test_sections_that_change_after_a_report_change_the_number() -> None:
    conversation = session(turns=[user("x")])
    conversation.sections = [Section(name="file", source=TextSource("a" * 100))]
    conversation.append([reply("y")], usage(900, 10))
    conversation.sections = [Section(name="file", source=TextSource("a" * 130))]
    assert occupancy(conversation).tokens == 940


def test_a_capped_section_counts_its_cap() -> None:
    conversation = session()
    conversation.sections = [Section(name="file", source=TextSource("a" * 100), cap=40)]
    assert occupancy(conversation).tokens == 40 + PRIMING


def test_much_smaller_prompt_means_compaction() -> None:
    conversation = session(turns=[user("x" * 900)])
    assert not conversation.append([reply("y")], usage(1_000, 100)).compacted
    update = conversation.append([user("go on"), reply("z")], usage(300, 50))
    assert update.compacted
    assert update.sample is None
    shown = context_usage(conversation, window())
    assert (shown.tokens, shown.compacted) == (350, True)
    assert shown.breakdown is not None
    assert sum(msgspec.structs.astuple(shown.breakdown)) == 350
    assert all(part.tokens <= 350 for part in shown.largest)
    conversation.append([user("on"), reply("w")], usage(380, 10))
    assert context_usage(conversation, window()).compacted is False


def test_report_is_compared_with_the_estimate_of_its_prompt() -> None:
    conversation = session(turns=[user("x" * 50)])
    update = conversation.append([reply("y" * 10)], usage(100, 10))
    assert update.sample is not None
    assert (update.sample.estimated, update.sample.reported) == (50 + ENVELOPE + PRIMING, 100)


def test_estimate_before_sending_ignores_reports() -> None:
    conversation = session(turns=[user("x" * 50)])
    conversation.append([reply("y" * 10)], usage(900, 10))
    assert estimated_prompt(conversation).tokens == 60 + 2 * ENVELOPE + PRIMING


class TestChatTotals:
    """Tests conversations that an endpoint counts as a whole."""

    def test_the_total_is_the_number_at_every_append(self) -> None:
        conversation = session()
        for number, total in enumerate((31, 55, 54, 120)):
            count_chat(conversation, total, [user("x" * number), reply("y" * 5)])
            assert occupancy(conversation) == Measure(total, "endpoint", "fake-1-tokenizer", 0.0)

    def test_growth_is_distributed_in_proportion(self) -> None:
        conversation = session()
        count_chat(conversation, 100, [user("x" * 6)])
        count_chat(conversation, 190, [user("a" * 16), user("b" * 36)])
        counts = conversation.model_counts().turns
        assert [counts[1].tokens, counts[2].tokens] == [30, 60]
        assert counts[1].method == "endpoint"

    def test_sections_are_added_to_the_chat(self) -> None:
        conversation = session()
        conversation.sections = [Section(name="file", source=TextSource("a" * 100))]
        count_chat(conversation, 70, [user("x")])
        assert occupancy(conversation).tokens == 170

    def test_a_system_prompt_that_changes_after_the_count_is_added(self) -> None:
        conversation = session()
        count_chat(conversation, 70, [user("x")])
        conversation.set_system("s" * 10)
        assert occupancy(conversation).tokens == 70 + 10 + ENVELOPE

    def test_endpoint_count_replaces_usage_of_the_same_chat(self) -> None:
        conversation = session()
        count_chat(conversation, 90, [user("x" * 20)])
        count_chat(conversation, 106, [reply("y" * 10)], usage(90, 12))
        assert occupancy(conversation).tokens == 106

    def test_usage_of_a_larger_request_grows_by_endpoint_counts(self) -> None:
        conversation = session()
        count_chat(conversation, 90, [user("x" * 20)])
        count_chat(conversation, 106, [reply("y" * 10)], usage(1_000, 50))
        assert occupancy(conversation).tokens == 1_050
        count_chat(conversation, 126, [user("z" * 10)])
        assert occupancy(conversation).tokens == 1_070

    def test_missing_total_is_corrected_by_the_next(self) -> None:
        conversation = session()
        count_chat(conversation, 90, [user("x" * 20)])
        conversation.append([user("y" * 10)])
        count_chat(conversation, 130, [user("z" * 10)])
        assert [measure.tokens for measure in conversation.model_counts().turns.measures[1:]] == [
            20,
            20,
        ]

    def test_after_a_plan_the_next_total_is_the_number_again(self) -> None:
        conversation = session()
        for number in range(5):
            count_chat(conversation, 100 * (number + 1), [user("x" * 90), reply("y")])
        plans = Planner(conversation)
        plans.apply(plans.make(260, keep_turns=1).plan_id)
        assert occupancy(conversation).tokens == 500 - 297
        count_chat(conversation, 222, [user("z")])
        assert occupancy(conversation).tokens == 222


@given(st.integers(-5, 10**6), st.lists(st.integers(0, 1000), max_size=30))
def test_shares_add_up_and_are_in_proportion(total: int, weights: list[int]) -> None:
    made = shares(total, weights)
    assert len(made) == len(weights)
    assert sum(made) == (max(0, total) if weights else 0)
    whole = sum(weights)
    for share, weight in zip(made, weights, strict=True):
        if whole:
            assert abs(share - max(0, total) * weight / whole) <= 1


@given(st.lists(st.integers(0, 500), max_size=60))
def test_the_largest_turns_and_any_sum(sizes: list[int]) -> None:
    counts = TurnCounts([Measure(size, "exact", "t") for size in sizes])
    expected = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    assert counts.largest() == [(index, sizes[index]) for index in expected[:16]]
    for start in range(len(sizes)):
        assert counts.between(start).tokens() == sum(sizes[start:])


def test_methods_and_errors_of_a_sum() -> None:
    exact, server = Sums(exact=100), Sums(endpoint=50)
    guess = Sums(estimate=50, error=10.0)
    assert measure_of(exact, "t", None) == Measure(100, "exact", "t", 0.0)
    assert measure_of(exact.plus(server), "t", None) == Measure(150, "endpoint", "t", 0.0)
    assert measure_of(exact.plus(guess), "t", None) == Measure(150, "estimate", "t", 6.67)
    unknown = Sums(estimate=50, unmeasured=50)
    assert measure_of(unknown, "t", None) == Measure(50, "estimate", "t", None)
    learned = FakeCalibration(1.2, samples=3, error_percent=4.0)
    assert measure_of(exact.plus(guess), "t", learned) == Measure(160, "calibrated", "t", 3.75)
    assert measure_of(exact, "t", learned) == Measure(100, "exact", "t", 0.0)
    nothing = FakeCalibration(1.0, samples=0)
    assert measure_of(unknown, "t", nothing) == Measure(50, "estimate", "t", None)
    generation = FakeCalibration(1.5, samples=0)
    assert measure_of(unknown, "t", generation) == Measure(75, "calibrated", "t", None)


class TestSet:
    """Tests `context/set`."""

    def test_omitted_params_stay_and_null_removes(self) -> None:
        conversation = session()
        apply_set(
            conversation, set_params(systemPrompt="s", limit=9, tools=[{"name": "a"}]), no_documents
        )
        apply_set(conversation, set_params(reserve=1), no_documents)
        assert (conversation.limit, conversation.reserve, conversation.system is None) == (
            9,
            1,
            False,
        )
        apply_set(conversation, set_params(systemPrompt=None, limit=None), no_documents)
        assert (conversation.limit, conversation.system, conversation.tools is None) == (
            None,
            None,
            False,
        )

    def test_the_same_inputs_are_not_counted_again(self) -> None:
        counter = FakeCounter()
        conversation = session(counter)
        params = set_params(
            systemPrompt="s", tools=[{"name": "a"}], sections=[{"name": "n", "text": "t"}]
        )
        for _ in range(3):
            apply_set(conversation, params, no_documents)
            context_usage(conversation, window())
        assert len(counter.asked) == 3

    @pytest.mark.parametrize(
        "section", [{"name": "n"}, {"name": "n", "text": "t", "textDocument": {"uri": "u"}}]
    )
    def test_a_section_is_a_text_or_a_document(self, section: dict[str, object]) -> None:
        conversation = session()
        params = set_params(systemPrompt="s", sections=[section])
        with pytest.raises(SidecarError) as raised:
            apply_set(conversation, params, no_documents)
        assert raised.value.kind == "badParams"
        assert conversation.system is None


def test_reset_clears_all_but_the_model() -> None:
    conversation = session(FakeCounter("gpt-x"), [user("x")])
    apply_set(conversation, set_params(systemPrompt="s", limit=100, reserve=7), no_documents)
    conversation.reset()
    shown = context_usage(conversation, window())
    assert (shown.tokens, shown.turns, shown.model) == (None, 0, "gpt-x")
    assert (conversation.limit, conversation.reserve) == (None, None)


class TestRestart:
    """Tests that conversations are saved and restored."""

    def saved_conversation(self) -> bytes:
        conversation = session(turns=[user("SECRET question")])
        conversation.set_system("SECRET prompt")
        conversation.set_tools([{"name": "read", "description": "SECRET"}])
        conversation.sections = [Section(name="plan", source=TextSource("SECRET plan"))]
        conversation.append([reply("SECRET answer"), user("SECRET more")], usage(700, 30))
        return to_json(save(conversation))

    def test_no_text_is_saved(self) -> None:
        assert b"SECRET" not in self.saved_conversation()

    def test_restored_occupancy_is_the_same_and_grows(self) -> None:
        saved = from_json(self.saved_conversation())
        assert saved is not None
        counter = FakeCounter()
        conversation = restore(saved, counter)
        assert occupancy(conversation).tokens == 730 + 11 + ENVELOPE
        assert counter.asked == []
        conversation.append([reply("four")])
        assert occupancy(conversation).tokens == 730 + 11 + 4 + 2 * ENVELOPE
        assert context_usage(conversation, window()).largest[0].label == "tools"

    def test_restored_session_is_estimated_for_another_model(self) -> None:
        saved = from_json(self.saved_conversation())
        assert saved is not None
        conversation = restore(saved, FakeCounter())
        conversation.counter = FakeCounter("other")
        size = occupancy(conversation)
        assert size.method == "estimate"
        assert size.error_percent is not None
        assert 0.5 * OTHER_PERCENT < size.error_percent <= OTHER_PERCENT

    def test_restored_session_cannot_be_pruned(self) -> None:
        saved = from_json(self.saved_conversation())
        assert saved is not None
        with pytest.raises(SidecarError) as raised:
            Planner(restore(saved, FakeCounter())).make(10)
        assert raised.value.kind == "noText"

    @pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff"])
    def test_damaged_sessions_are_not_restored(self, damage: bytes) -> None:
        assert from_json(damage) is None
        assert from_json(self.saved_conversation().replace(b'"version":1', b'"version":2')) is None


def test_usage_of_2000_turns_takes_no_more_work_than_of_20() -> None:
    def peak(number: int) -> int:
        conversation = session(turns=[user("x" * 50) for _ in range(number)])
        context_usage(conversation, window())
        tracemalloc.start()
        context_usage(conversation, window())
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(2_000) <= 2 * peak(20)


MARKS = 4
"""The number of template tokens after each reply. The reported usage does not include them."""


class Server:
    """A simulated model server whose tokenizer produces 1.2 tokens per character."""

    def __init__(self, shape: Callable[[int, int, int, int], dict[str, Any]]) -> None:
        self._shape = shape
        self.chat: list[Turn] = []
        self.cumulative = 0
        self._cached = 0

    def size(self) -> int:
        return 6 + sum(map(self.size_of, self.chat))

    @staticmethod
    def size_of(turn: Turn) -> int:
        return int(1.2 * message_size(turn)) + 5

    def answer(self, made: Turn, reasoning: int) -> tuple[int, dict[str, Any]]:
        """Return the request's tokens, and the usage in the vendor's format."""
        prompt = self.size()
        cached = min(self._cached, prompt)
        self._cached = prompt
        self.chat.append(made)
        out = self.size() - prompt - MARKS + reasoning
        self.cumulative += prompt + out
        return prompt, self._shape(prompt, cached, out, reasoning)

    def compact(self) -> None:
        self.chat = [user("summary of what was said"), *self.chat[-2:]]
        self._cached = 0


def openai(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def anthropic(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    fresh = min(20, prompt - cached)
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": prompt - cached - fresh,
        "output_tokens": out - reasoning,  # the server stores the reasoning with its turns
    }


def ollama(prompt: int, cached: int, out: int, reasoning: int) -> dict[str, Any]:
    return {"prompt_eval_count": prompt, "eval_count": out - reasoning, "done_reason": "stop"}


@pytest.mark.parametrize("shape", [openai, anthropic, ollama])
@pytest.mark.parametrize("seed", range(5))
def test_occupancy_is_the_size_of_the_next_request(
    shape: Callable[[int, int, int, int], dict[str, Any]], seed: int
) -> None:
    rng = random.Random(seed)
    server = Server(shape)
    session = Conversation("s", FakeCounter(weight=1))
    for number in range(40):
        asked = user("q" * rng.randrange(1, 4))
        if number % 7 == 3:
            asked = output(f"c{number}", "r" * 3)
            made = calls(f"c{number}")
            _, usage = server.answer(made, 0)
            session.append([made], normalize_usage(usage))
        if number in (15, 28):
            server.compact()
        predicted = occupancy(session).tokens
        server.chat.append(asked)
        session.append([asked])
        added = occupancy(session).tokens - predicted
        made = reply("a" * rng.randrange(20, 300))
        sent, usage = server.answer(made, rng.choice([0, 0, 200]))
        if number and number not in (15, 28):
            error = abs(added - server.size_of(asked))
            assert abs(predicted + added - sent) <= MARKS + error
        session.append([made], normalize_usage(usage))
    assert server.cumulative > 20 * occupancy(session).tokens


@pytest.mark.parametrize("shape", [openai, anthropic, ollama])
def test_only_compactions_are_reported_as_compactions(
    shape: Callable[[int, int, int, int], dict[str, Any]],
) -> None:
    server, session = Server(shape), Conversation("s", FakeCounter(weight=1))
    noticed = []
    for number in range(20):
        if number == 12:
            server.compact()
        server.chat.append(user("q" * 100))
        _, usage = server.answer(reply("a" * 200), 0)
        turns = [user("q" * 100), reply("a" * 200)]
        if session.append(turns, normalize_usage(usage)).compacted:
            noticed.append(number)
    assert noticed == [12]
    server.chat.append(user("q"))
    assert abs(occupancy(session).tokens - server.size()) <= 4 * MARKS
