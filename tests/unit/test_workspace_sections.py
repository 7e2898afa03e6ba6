"""Tests that after a usage report, only a section's growth is added to the reported tokens."""

from __future__ import annotations

import msgspec
import pytest

from sidecar.config.settings import Settings
from sidecar.conversations.conversation import Conversation
from sidecar.conversations.sections import Section, SectionCount, TextSource
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import Calibrations, ConversationCalibration, document_key
from sidecar.counting.count_result import Measure
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage
from sidecar.workspace.conversations import SectionCounts
from sidecar.workspace.services import Services

MODEL = "claude-sonnet-4-5"
PROSE = "The quick brown fox jumps over the lazy dog and then some more. " * 40
JSON = '{"a": [1, 2, {"b": "c"}], "d": null, "e": [true, false]}\n' * 60
SETTINGS = Settings()


class Chat:
    """A conversation with one section, which is counted the way the server counts it."""

    def __init__(self) -> None:
        self.shared = Services()
        self.counts = SectionCounts(self.shared.counts, self.shared.documents)
        self.tokenizer = self.shared.counts.tokenizers(SETTINGS).for_model(MODEL)
        self.session = Conversation("a", Counter(MODEL, self.tokenizer))
        self.session.sections = [Section(name="doc", source=TextSource(PROSE))]

    async def write(self, text: str) -> int:
        """Replace the section's text, and return the conversation's token count."""
        (section,) = self.session.sections
        self.session.sections = [msgspec.structs.replace(section, source=TextSource(text))]
        await self.counts.refresh(self.session, SETTINGS)
        return self.session.total().tokens()

    def section(self) -> int:
        (section,) = self.session.sections
        return section.measure(self.session.counter).tokens

    def teach(self, kind: str, factor: float) -> None:
        """Set the calibration factor for a kind of document."""
        known = self.shared.calibrations.loaded()
        key = document_key(MODEL, self.tokenizer.name, kind)
        known.update(key, 3_000, round(3_000 * factor), 1.0)


async def test_restored_text_has_its_original_count() -> None:
    """Alternates between two kinds of text with different calibration factors."""
    chat = Chat()
    chat.teach("json", 1.3)
    await chat.write(PROSE)
    first = chat.section()
    chat.session.apply_reply_usage(Usage(input_tokens=900, prompt_tokens=900, output_tokens=10))
    for _ in range(5):
        other = await chat.write(JSON)
        assert other == 910 + chat.section() - first
        assert await chat.write(PROSE) == 910


async def test_calibration_between_two_texts_is_not_growth() -> None:
    """After a calibration, prose and JSON are estimated with different factors."""
    chat = Chat()
    await chat.write(PROSE)
    chat.session.apply_reply_usage(Usage(input_tokens=900, prompt_tokens=900, output_tokens=10))
    await chat.write(JSON)
    chat.teach("json", 1.5)
    chat.teach("prose", 1.2)
    swapped = await chat.write(JSON + " ")
    by_now = chat.section()
    assert await chat.write(PROSE) == 910
    assert swapped == 910 + by_now - chat.section()


@pytest.mark.parametrize("step", [0, 2_000])
def test_error_of_a_section_does_not_calibrate_turns(step: int) -> None:
    """Tests a section that does not change, and a section that grows between two reports."""
    chat = Chat()
    session, name = chat.session, chat.tokenizer.name
    calibration = ConversationCalibration(Calibrations(), MODEL, name)
    for number in range(8):
        if step or not number:
            thought = Measure(8_000 + step * number, "estimate", name, 17.0)
            source = TextSource("x" * number)
            (section,) = session.sections
            session.sections = [msgspec.structs.replace(section, source=source)]
            session.update_section(0, SectionCount(MODEL, thought, source), section.reported)
        session.append([Turn(role="user", content="What is wrong with this function? " * 9)])
        section_tokens = chat.section()
        turns = session.count_without_reports().tokens() - section_tokens
        real = turns + round(1.1 * section_tokens)
        usage = Usage(input_tokens=real, prompt_tokens=real, output_tokens=60)
        found = session.append([Turn(role="assistant", content="It looks right. " * 9)], usage)
        if found.sample is not None:
            calibration.update(found.sample)
    assert 0.95 < calibration.factor < 1.05
    assert calibration.hidden is None
    assert calibration.samples == (0 if step else 7)
