"""Tests that conversations calibrate their own estimates, but not those of documents."""

from __future__ import annotations

import pytest

from sidecar.conversations.conversation import Conversation
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import Calibrations, ConversationCalibration, key_of
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.vendor_usage import Usage
from tests.unit.context_fakes import calls, output, reply, user

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
