"""Tests that a kind of text is calibrated only if almost all new text is of that kind."""

from __future__ import annotations

import pytest

from sidecar.context.conversation import Conversation
from sidecar.context.counter import Counter
from sidecar.context.model_counts import kinds_of_turns
from sidecar.counting.calibration import (
    Calibrations,
    ConversationCalibration,
    document_key,
    dominant_kind,
)
from sidecar.counting.model_tokenizers import Tokenizers
from sidecar.messages.turns import Turn
from sidecar.messages.usage import Usage
from tests.unit.context_fakes import calls, output, reply, user

MODEL = "claude-sonnet-4-5"
PROSE = "The committee met on Tuesday, and everyone agreed that the roof needs repair. "
JSON = '{"id": 18273, "hash": "9f8e7d6c", "values": [0.12345, 99.871, -3.25e-7]}\n'
CODE = "if (x == 1) { y[2] += f(x); }\n"


class ReportedChat:
    """A conversation whose reported prompt sizes are 300 tokens plus `ratio` times the estimate."""

    def __init__(self, ratio: float) -> None:
        tokenizer = Tokenizers().for_model(MODEL)
        self.ratio, self.name = ratio, tokenizer.name
        self.session = Conversation("s", Counter(MODEL, tokenizer))
        self.shared = Calibrations()
        self.calibration = ConversationCalibration(self.shared, MODEL, tokenizer.name)

    def say(self, *turns: Turn) -> None:
        """Append turns, followed by a short reply with its usage."""
        self.session.append(turns)
        prompt = round(300 + self.ratio * self.session.count_without_reports().tokens())
        usage = Usage(input_tokens=prompt, prompt_tokens=prompt, output_tokens=2)
        sample = self.session.append([reply("ok")], usage).sample
        assert sample is not None
        sample.apply_to(self.calibration, self.session.model_counts())

    def factors(self) -> dict[str, float]:
        """Return the calibration factor of each calibrated kind of document."""
        keys = {kind: document_key(MODEL, self.name, kind) for kind in ("prose", "json", "code")}
        found = {kind: self.shared.learned(key) for kind, key in keys.items()}
        return {kind: round(one.factor(), 2) for kind, one in found.items() if one}


def results(count: int = 6, text: str = JSON * 20) -> list[Turn]:
    """Return a turn with tool calls, followed by their results."""
    names = [f"c{number}" for number in range(count)]
    return [calls(*names), *(output(name, text) for name in names)]


def test_dominant_kind_of_added_text_is_calibrated() -> None:
    chat = ReportedChat(1.4)
    for _ in range(8):
        chat.say(*results(), reply(PROSE * 2), user(PROSE * 2))

    assert chat.factors() == {"json": pytest.approx(1.4, abs=0.05)}


def test_mixed_growth_calibrates_no_kind() -> None:
    chat = ReportedChat(1.4)
    for _ in range(8):
        chat.say(user(PROSE * 8), reply(CODE * 8), user(PROSE))

    assert chat.factors() == {}
    assert chat.calibration.factor > 1.25  # only the whole conversation is calibrated


def test_growth_of_the_system_prompt_calibrates_no_kind() -> None:
    chat = ReportedChat(1.4)
    for number in range(8):
        chat.session.set_system(JSON * 10 * (number + 1))
        chat.say(user(PROSE * 8))

    assert chat.factors() == {}


def test_turn_with_several_kinds_is_split_by_kind() -> None:
    blocks = [{"type": "text", "text": PROSE * 10}, {"type": "text", "text": CODE * 10}]
    grown = kinds_of_turns([(Turn(role="user", content=blocks), 200)])

    assert [kind for kind, _ in grown] == ["prose", "code"]
    assert sum(tokens for _, tokens in grown) == 200
    call = {"type": "tool_use", "id": "a", "name": "write", "input": {"text": "a", "id": 1}}
    assert kinds_of_turns([(Turn(role="assistant", content=[call]), 30)]) == (("json", 30),)


@pytest.mark.parametrize(
    "turn",
    [
        Turn(role="user", content=None),
        Turn(role="user", content=[{"type": "image_url", "image_url": {"url": "https://e.org/a"}}]),
        Turn(
            role="user",
            content=[
                {"type": "text", "text": PROSE},
                {"type": "image_url", "image_url": {"url": "https://e.org/a"}},
            ],
        ),
    ],
)
def test_pictures_and_empty_turns_have_no_kind(turn: Turn) -> None:
    assert kinds_of_turns([(turn, 900)]) == ((None, 900),)


def test_only_added_text_determines_the_kind() -> None:
    grown = (("json", 900), ("prose", 100))

    assert dominant_kind(grown, 100) == "prose"  # text before the latest reply is ignored
    assert dominant_kind(grown, 110) == "prose"
    assert dominant_kind(grown, 200) is None
    assert dominant_kind(grown, 1000) == "json"
    assert dominant_kind(grown, 2000) is None  # more tokens were added than the turns contain
    assert dominant_kind((), 100) is None
