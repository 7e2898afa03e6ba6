"""Tests that the occupancy is consistent after requests in any order, and that undo restores it."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sidecar.conversations.conversation import Conversation, from_json, restore, save, to_json
from sidecar.conversations.occupancy import context_usage, occupancy
from sidecar.conversations.sections import Section, TextSource
from sidecar.messages.vendor_usage import Usage
from tests.fuzz.conversations import SHAPES, build, moves
from tests.unit.context_fakes import FakeCalibration, FakeCounter, Planner, window

COUNTERS = {
    "a": FakeCounter("a"),
    "b": FakeCounter("b", weight=2, method="estimate", error_percent=10.0),
    "c": FakeCounter("c", weight=3, method="calibrated", error_percent=None),
}
tokens = st.integers(0, 5_000)
reports = st.builds(
    lambda prompt, out, cached: Usage(
        input_tokens=prompt - min(prompt, cached),
        cache_read_tokens=min(prompt, cached),
        prompt_tokens=prompt,
        output_tokens=out,
        reasoning_tokens=out // 3,
    ),
    tokens,
    st.integers(0, 300),
    tokens,
)
usages = st.none() | reports


class AnyOrder(RuleBasedStateMachine):
    """A session that receives random requests."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Conversation("s", COUNTERS["a"])
        self.learned = FakeCalibration(1.0, 0)
        self.before_plan: tuple[int, list[Any]] | None = None

    @property
    def session(self) -> Conversation:
        return self.known

    def number(self) -> int:
        return occupancy(self.session, self.learned).tokens

    @rule(shape=st.sampled_from(SHAPES), made=moves, usage=usages, total=st.none() | tokens)
    def append(self, shape: str, made: Any, usage: Usage | None, total: int | None) -> None:
        first = len(self.session.turns)
        self.session.append(build(shape, made), usage)
        if total is not None:
            self.session.apply_chat_count(total, first)
        if total is not None and (usage is None or not usage.prompt_tokens):
            anchor = self.session.model_counts().anchor
            assert anchor is not None
        self.before_plan = None

    @rule(usage=reports)
    def respond(self, usage: Usage) -> None:
        self.session.apply_reply_usage(usage)
        assert occupancy(self.session).tokens == (
            usage.prompt_tokens + usage.output_tokens - usage.reasoning_tokens
        )
        self.before_plan = None

    @rule(total=tokens)
    def late_total(self, total: int) -> None:
        first = max(0, len(self.session.turns) - 2)
        self.session.apply_chat_count(total, first)
        self.before_plan = None

    @rule(prompt=st.integers(0, 40), text=st.integers(0, 40))
    def set(self, prompt: int, text: int) -> None:
        self.session.set_system("s" * prompt or None)
        self.session.set_tools([{"name": "t" * text}] if text else None)
        self.session.sections = [Section(name="n", source=TextSource("x" * text), cap=20)]
        self.session.touch()
        self.before_plan = None

    @rule(key=st.sampled_from("abc"), factor=st.sampled_from([1.0, 0.5, 1.7]))
    def switch(self, key: str, factor: float) -> None:
        self.session.counter = COUNTERS[key]
        self.learned = FakeCalibration(factor, 1 if factor != 1.0 else 0, 5.0)
        self.session.touch()
        self.before_plan = None

    @precondition(lambda self: not self.session.has_turns_without_text)
    @rule(most=tokens, keep=st.integers(0, 3), summarize=st.booleans())
    def prune(self, most: int, keep: int, summarize: bool) -> None:
        before, turns = self.number(), list(self.session.turns)
        plans = Planner(self.known)
        plan = plans.make(most, keep_turns=keep, summarize=summarize, calibration=self.learned)
        assert plan.tokens_before == before
        plans.apply(plan.plan_id)
        assert self.number() == plan.tokens_after
        assert plan.fits == (plan.tokens_after <= most)
        if self.session.turns != turns:
            self.before_plan = before, turns

    @precondition(lambda self: self.before_plan is not None)
    @rule()
    def undo(self) -> None:
        assert self.before_plan is not None
        before, turns = self.before_plan
        assert self.known.undo()
        assert (self.number(), self.session.turns) == (before, turns)
        assert not self.known.undo()
        self.before_plan = None

    @rule()
    def undo_any_edit(self) -> None:
        self.known.undo()
        self.before_plan = None

    @rule()
    def reset(self) -> None:
        self.known.reset()
        assert context_usage(self.session, window()).tokens is None
        self.before_plan = None

    @rule()
    def restart(self) -> None:
        number = self.number()
        saved = from_json(to_json(save(self.session)))
        assert saved is not None
        self.known = restore(saved, self.session.counter)
        assert self.number() == number
        self.before_plan = None

    @invariant()
    def one_number(self) -> None:
        usage = context_usage(self.session, window(), calibration=self.learned)
        if usage.tokens is None:
            assert usage.breakdown is None
            return
        assert usage.tokens == self.number() >= 0
        assert usage.breakdown is not None
        parts = msgspec.structs.astuple(usage.breakdown)
        assert sum(parts) == usage.tokens
        assert min(parts) >= 0
        assert [part.tokens for part in usage.largest] == sorted(
            (part.tokens for part in usage.largest), reverse=True
        )
        if usage.method in ("exact", "endpoint"):
            assert usage.error_percent == 0


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestAnyOrder = AnyOrder.TestCase
