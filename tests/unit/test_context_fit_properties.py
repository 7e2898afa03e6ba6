"""Tests properties of all pruning plans for generated conversations (`context/fit`)."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from sidecar.conversations.context_protocol import FitResult
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import occupancy
from sidecar.messages.turns import Turn
from sidecar.messages.vendor_usage import Usage
from tests.fuzz.conversations import Case, cases, check
from tests.unit.context_fakes import PRIMING, FakeCounter, Planner


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
