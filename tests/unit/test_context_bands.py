"""Tests the error band of the occupancy with conversations made of held-out documents."""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

import pytest

from sidecar.conversations.changes import count_request
from sidecar.conversations.context_protocol import PreflightParams
from sidecar.conversations.conversation import Conversation, restore, save
from sidecar.conversations.occupancy import UNSEEN, context_usage, occupancy
from sidecar.conversations.turn_counts import MARKS, Counter, Sums, measure_of
from sidecar.counting.calibration import Calibrations, ConversationCalibration
from sidecar.counting.count_result import Measure
from sidecar.counting.estimators import kind_of
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage
from sidecar.models.window import Limit, Window
from tests.unit.held_out import DOCUMENTS

PHASES = (("prose", "code"), ("json", "log", "numbers", "base64"), ("cjk", "latin", "cyrillic"))


class Dialogue:
    """A conversation with a hidden prompt. Its template adds six tokens per message."""

    def __init__(self, model: str, generation: str, learned: Calibrations, hidden: int) -> None:
        tokenizer = Tokenizers().for_model(model)
        self.generation, self.real = generation, hidden
        self.session = Conversation("s", Counter(model, tokenizer))
        self.calibration = ConversationCalibration(learned, model, tokenizer.name, "editor")

    def ask(self, document: dict[str, Any]) -> tuple[Measure, bool]:
        self.session.append([Turn(role="user", content=document["text"])])
        self.real += document["tokens"][self.generation] + 6
        size = occupancy(self.session, self.calibration)
        assert size.error_percent is not None
        band = size.tokens * size.error_percent / 100 + 0.5
        return size, abs(self.real - size.tokens) <= band

    def answer(self, document: dict[str, Any]) -> None:
        output = document["tokens"][self.generation]
        usage = Usage(input_tokens=self.real, prompt_tokens=self.real, output_tokens=output)
        change = self.session.append([Turn(role="assistant", content=document["text"])], usage)
        self.real += output + 6
        if change.sample is not None:
            self.calibration.update(change.sample)


@pytest.mark.parametrize(
    ("model", "generation"),
    [
        ("claude-sonnet-4-5", "claude"),
        ("claude-opus-4-7", "claude-4.7"),
        ("gemini-3-pro", "gemma"),
        ("llama-3.3-70b", "llama3"),
    ],
)
def test_bands_of_a_conversation_hold_through_changes_of_content(
    model: str, generation: str
) -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in DOCUMENTS:
        by_kind.setdefault(kind_of(document["text"]), []).append(document)
    within, after_change, off, widths, firsts = [], [], [], [], []
    for seed in range(3):
        source, learned = random.Random(seed), Calibrations()
        hidden = source.randrange(500, 15_000)
        dialogue = Dialogue(model, generation, learned, hidden)
        for turn in range(30):
            kinds = PHASES[turn // 10]
            shown, held = dialogue.ask(source.choice(by_kind[source.choice(kinds)]))
            within.append(held)
            if turn:
                off.append(abs(shown.tokens - dialogue.real) / dialogue.real)
                widths.append(shown.error_percent or 0.0)
            if turn >= 10 and turn % 10 < 5:
                after_change.append(held)
            dialogue.answer(source.choice(by_kind[source.choice(kinds)]))
        second = Dialogue(model, generation, learned, round(1.04 * hidden))
        firsts.append(second.ask(source.choice(by_kind["prose"]))[1])

    assert mean(within) >= 0.9
    assert mean(after_change) >= 0.8
    assert mean(off) <= 0.01
    assert mean(widths) <= 5
    assert all(firsts)


def test_first_turn_has_a_note_on_unseen_parts() -> None:
    window, learned = Window(Limit(100_000, "catalogue"), 500), Calibrations()
    dialogue = Dialogue("claude-opus-4-7", "claude-4.7", learned, 4_000)
    dialogue.ask(DOCUMENTS[0])
    assert context_usage(dialogue.session, window, calibration=dialogue.calibration).note == UNSEEN
    for document in DOCUMENTS[1:4]:
        dialogue.answer(document)
        dialogue.ask(document)
    assert context_usage(dialogue.session, window, calibration=dialogue.calibration).note is None

    second = Dialogue("claude-opus-4-7", "claude-4.7", learned, 4_000)
    second.ask(DOCUMENTS[0])
    usage = context_usage(second.session, window, calibration=second.calibration)
    assert usage.note is None
    assert usage.tokens is not None
    assert usage.tokens > 3_000
    assert usage.breakdown is not None
    assert usage.breakdown.overhead > 3_000


def test_error_after_a_report_includes_the_markup() -> None:
    dialogue = Dialogue("gpt-4o", "llama3", Calibrations(), 4_000)
    dialogue.ask(DOCUMENTS[0])
    dialogue.answer(DOCUMENTS[1])
    shown, _ = dialogue.ask(DOCUMENTS[2])

    assert shown.error_percent is not None
    assert shown.error_percent * shown.tokens / 100 >= MARKS - 1


def test_band_covers_an_unknown_template() -> None:
    """With a local vocabulary, only the number of template tokens is unknown."""
    session = Conversation("s", Counter("gpt-4o", Tokenizers().for_model("gpt-4o")))
    calibration = ConversationCalibration(Calibrations(), "gpt-4o", "o200k_base", "editor")
    real = 9
    for number in range(8):
        text = f"{number}. {'Look at the failing test. ' * (number % 4 + 1)}"
        session.append([Turn(role="user", content=text)])
        real += session.counter.text(text).tokens + 8
        if number > 1:
            shown = occupancy(session, calibration)
            assert shown.error_percent is not None
            assert abs(shown.tokens - real) <= shown.tokens * shown.error_percent / 100 + 0.5
        usage = Usage(input_tokens=real, prompt_tokens=real, output_tokens=20)
        sample = session.append([Turn(role="assistant", content="Done. " * 10)], usage).sample
        real += 20 + 8
        if sample is not None:
            calibration.update(sample)

    session.append([Turn(role="user", content="And now?")])
    again = restore(save(session), session.counter)
    asked = PreflightParams(turns=[])
    assert occupancy(again, calibration).tokens == occupancy(session, calibration).tokens
    assert count_request(session, asked, calibration).tokens == (
        occupancy(session, calibration).tokens
    )


def test_small_error_is_never_rounded_to_zero() -> None:
    sums = Sums(exact=200_000, estimate=20, error=2.0)
    found = measure_of(sums, "t", None)
    assert (found.method, found.error_percent) == ("estimate", 0.01)


@pytest.mark.parametrize(
    ("model", "generation"), [("claude-sonnet-4-5", "claude"), ("claude-opus-4-7", "claude-4.7")]
)
def test_band_holds_after_a_change_to_other_code(model: str, generation: str) -> None:
    """The conversation switches to SCSS code, for which estimates have the largest error."""
    source = "scss"
    by_source: dict[str, list[dict[str, Any]]] = {}
    for document in DOCUMENTS:
        if kind_of(document["text"]) == "code":
            by_source.setdefault(document["source"], []).append(document)
    within = []
    for other in sorted(by_source):
        if other == source or len(by_source[other]) < 2:
            continue
        for seed in range(3):
            choice = random.Random(f"{other}{source}{seed}").choice
            dialogue = Dialogue(model, generation, Calibrations(), 3_000)
            for turn in range(18):
                documents = by_source[other if turn < 15 else source]
                _, held = dialogue.ask(choice(documents))
                if turn >= 15:
                    within.append(held)
                dialogue.answer(choice(documents))

    assert len(within) > 100
    assert mean(within) >= 0.9
