"""Tests that a conversation has the same token count as its messages in `tokens/count`, and that it
calibrates its own estimates, but not those of documents.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import context_usage, occupancy
from sidecar.conversations.sections import PRESETS, Section, TextSource, render
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import Calibrations, ConversationCalibration, Sample, key_of
from sidecar.counting.message_tokens import count_messages
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage
from tests.unit.context_fakes import Planner, calls, output, reply, user, window

TOOLS: list[dict[str, Any]] = [
    {"name": "read", "description": "Read a file", "parameters": {"properties": {"path": {}}}}
]
SOURCE = "def f(x: int) -> int:\n    return x * 2  # twice\n" * 30


def counter(model: str) -> Counter:
    return Counter(model, Tokenizers().for_model(model))


@pytest.mark.parametrize("model", ["gpt-5", "gpt-4", "claude-opus-4-5", "qwen-3", "unknown-9"])
def test_session_has_the_count_of_the_same_request(model: str) -> None:
    turns = [
        user("What does this do?\n" + SOURCE),
        calls("c1", text="Let me look."),
        output("c1", SOURCE),
        Turn(role="user", content=[{"type": "text", "text": "And 这个? 🙂"}], name="ann"),
        reply("It doubles."),
    ]
    session = Conversation("s", counter(model))
    session.set_system("You are terse.")
    session.set_tools(TOOLS)
    session.append(turns)
    system = {"role": "system", "content": "You are terse."}
    messages = [system, *map(msgspec.to_builtins, turns)]
    whole = count_messages(messages, TOOLS, model, Tokenizers().for_model(model))
    assert occupancy(session).tokens == whole.tokens
    assert occupancy(session).method == whole.method


def test_rendered_preset_is_within_its_limits() -> None:
    made = counter("gpt-5")
    sections = [Section(name=name, source=TextSource(SOURCE * 30)) for name in PRESETS["mind"].caps]
    context = render(sections, made, "mind").text
    assert 7_600 < made.text(context).tokens <= 8_000
    one = render(sections[:1], made, "mind").text
    body = one.removeprefix("## intent_summary\n\n")
    assert made.text(body).tokens <= 300


@pytest.mark.parametrize("summarize", [False, True])
def test_pruning_with_a_real_tokenizer(summarize: bool) -> None:
    session = Conversation("s", counter("gpt-5"))
    for number in range(40):
        turns = [user(f"Look at file {number}."), calls(f"c{number}"), output(f"c{number}", SOURCE)]
        session.append([*turns, reply(f"We decided to keep file {number}, because it is fine.")])
    plans = Planner(session)
    plan = plans.make(6_000, summarize=summarize)
    assert plan.fits
    assert 5_000 < plan.tokens_after <= 6_000
    assert (plan.summary is not None) == summarize
    plans.apply(plan.plan_id)
    assert occupancy(session).tokens == plan.tokens_after


def test_reports_calibrate_later_estimates() -> None:
    """The model needs 1.4 times as many tokens as estimated, plus 900 for a hidden prompt."""
    session = Conversation("s", counter("unknown-9"))
    learned = ConversationCalibration(Calibrations(), "unknown-9", session.counter.tokenizer)
    off = []
    for number in range(30):
        session.append([user(f"Question {number}: " + SOURCE[: 200 + 40 * (number % 7)])])
        real = 900 + round(1.4 * session.count_without_reports().tokens())
        if number > 3:
            off.append(abs(occupancy(session, learned).tokens - real) / real)
        update = session.append(
            [reply("Answer. " * 30)],
            Usage(input_tokens=real, prompt_tokens=real, output_tokens=84),
        )
        assert update.sample is not None
        learned.update(Sample(update.sample.estimated, update.sample.reported))
    assert sum(off) / len(off) < 0.03
    usage = context_usage(session, window(), calibration=learned)
    assert usage.calibration is not None
    assert 1.2 < usage.calibration.factor < 1.5


PROSE = "The committee met on Tuesday, and everyone agreed that the roof needs repair. "
JSON = '{"id": 18273, "hash": "9f8e7d6c", "values": [0.12345, 99.871, -3.25e-7]}\n'
CODE = "if (x == 1) { y[2] += f(x); }\n"


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-7", "grok-4"])
@pytest.mark.parametrize("text", [PROSE, JSON, CODE, PROSE + CODE])
def test_reports_calibrate_conversations_but_no_documents(model: str, text: str) -> None:
    """The reported prompts are 300 tokens plus 1.4 times the estimate."""
    tokenizer = Tokenizers().for_model(model)
    session, shared = Conversation("s", Counter(model, tokenizer)), Calibrations()
    calibration = ConversationCalibration(shared, model, tokenizer.name)
    for _ in range(8):
        session.append([calls("a"), output("a", text * 20), reply(text), user(text * 8)])
        prompt = round(300 + 1.4 * session.count_without_reports().tokens())
        usage = Usage(input_tokens=prompt, prompt_tokens=prompt, output_tokens=2)
        sample = session.append([reply("ok")], usage).sample
        assert sample is not None
        calibration.update(sample)

    assert calibration.factor == pytest.approx(1.4, abs=0.1)
    assert [*shared.to_dict()["learned"]] == [key_of(model, tokenizer.name)]
