"""Evaluates predicted prompts in conversations that are made of held-out documents.

Most documents come from new sources. A conversation has thirty turns with two changes of content,
hidden tokens of a client (a system prompt and tools), and a template that differs from the known
formula. The first turn is ignored, because the hidden tokens are unknown before the first reported
usage. Finally, the first turn of a second conversation is predicted with the same calibration.
"""

from __future__ import annotations

import random
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

from sidecar.conversations.conversation import Conversation
from sidecar.conversations.occupancy import occupancy
from sidecar.conversations.turn_counts import Counter
from sidecar.counting.calibration import Calibrations, ConversationCalibration
from sidecar.messages.messages import Turn
from sidecar.messages.vendor_usage import Usage

if TYPE_CHECKING:
    from benchmarks.fitting.fit import Corpus
    from sidecar.counting.tokenizer_interface import Tokenizer

TURNS, PHASE, AFTER = 30, 10, 5
SEEDS = 6
_CONTENT = (
    ("prose", "code"),
    ("json", "log", "numbers", "base64"),
    ("cjk", "cyrillic", "arabic", "latin", "indic"),
)
_FEWEST = 8
"""Minimum number of documents per kind to choose from."""
MARKS = 6
"""Tokens that the template adds to each message."""


class Predicted(NamedTuple):
    """One prompt: its predicted tokens, half of its band in percent, and its reported tokens."""

    turn: int
    tokens: int
    band: float
    real: int

    @property
    def is_covered(self) -> bool:
        """Whether the band contains the reported number."""
        return abs(self.real - self.tokens) <= self.tokens * self.band / 100 + 0.5


class Dialogue:
    """A conversation with a simulated model. The true tokens of its texts are known."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, learned: Calibrations, hidden: int
    ) -> None:
        self.session = Conversation("benchmark", Counter(model, tokenizer))
        self.calibration = ConversationCalibration(learned, model, tokenizer.name, "benchmark")
        self.real = hidden

    def ask(self, text: str, tokens: int) -> Predicted:
        """Add a user's turn, and return the prompt as predicted and as reported."""
        self.session.append([Turn(role="user", content=text)])
        self.real += tokens + MARKS
        measure = occupancy(self.session, self.calibration)
        turn = (len(self.session.turns) + 1) // 2
        return Predicted(turn, measure.tokens, measure.error_percent or 0.0, self.real)

    def answer(self, text: str, tokens: int) -> None:
        """Add a reply, and report its usage."""
        usage = Usage(input_tokens=self.real, prompt_tokens=self.real, output_tokens=tokens)
        change = self.session.append([Turn(role="assistant", content=text)], usage)
        self.real += tokens + MARKS
        if change.sample is not None:
            self.calibration.update(change.sample)


def judge_dialogues(found: Corpus) -> None:
    """Print coverage, band widths and errors for each generation."""
    from benchmarks.fitting.judge import MODELS, _without_extras
    from sidecar.models.names import generation_of

    without = _without_extras()
    print(
        "\nConversations from turn 2 (%): covered, after a change, median ±, error; first turns again"
    )
    for generation, model in {generation_of(model): model for model in MODELS}.items():
        tokenizer = without.for_model(model)
        every, firsts = [], []
        for seed in range(SEEDS):
            predicted, first = _played(found, model, generation, tokenizer, seed)
            every += predicted
            firsts.append(first)
        _print(model, [one for one in every if one.turn > 1], firsts)


def _print(model: str, every: list[Predicted], firsts: list[Predicted]) -> None:
    changed = [
        one for one in every if (one.turn - 1) // PHASE > 0 and (one.turn - 1) % PHASE < AFTER
    ]
    print(
        f"{model:22} {100 * mean(one.is_covered for one in every):6.1f}"
        f" {100 * mean(one.is_covered for one in changed):6.1f}"
        f" {median(one.band for one in every):6.2f}"
        f" {100 * mean(abs(one.tokens - one.real) / one.real for one in every):6.2f}"
        f"   {sum(one.is_covered for one in firsts)} of {len(firsts)},"
        f" ±{median(one.band for one in firsts):.1f}"
    )


def _played(
    found: Corpus, model: str, generation: str, tokenizer: Tokenizer, seed: int
) -> tuple[list[Predicted], Predicted]:
    source, learned = random.Random(seed), Calibrations()
    hidden = source.randrange(500, 15_000)
    texts = _texts(found, generation)
    dialogue = Dialogue(model, tokenizer, learned, hidden)
    predicted = []
    for turn in range(TURNS):
        kinds = _CONTENT[turn // PHASE]
        predicted.append(dialogue.ask(*source.choice(texts[source.choice(kinds)])))
        dialogue.answer(*source.choice(texts[source.choice(kinds)]))
    again = Dialogue(model, tokenizer, learned, round(hidden * source.uniform(0.95, 1.05)))
    return predicted, again.ask(*source.choice(texts["prose"]))


def _texts(found: Corpus, generation: str) -> dict[str, list[tuple[str, int]]]:
    """Return held-out documents with their true tokens, by kind, and new sources first."""
    by_kind: dict[str, list[tuple[str, int]]] = {}
    for use in ("judge", "held"):
        for document, kind, tokens in zip(
            found.documents, found.kinds, found.truths[generation], strict=True
        ):
            some = by_kind.setdefault(str(kind), [])
            if document.use == use and (use == "judge" or len(some) < _FEWEST):
                some.append((document.text, int(tokens)))
    return by_kind
