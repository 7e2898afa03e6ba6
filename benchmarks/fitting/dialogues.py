"""Conversations of held-out documents, predicted turn by turn before their usage is reported.

The documents are of sources that nothing was fitted to, and of others where a kind has none.
Thirty turns with two changes of content; around them what a client hides (a system prompt and
tools) and the marks of a template that is not the one that the formula knows. The first turn is not
counted: nobody can know what is hidden before the first report, and the context says so. Then the first turn
of a second workspace, by what the first one taught.
"""

from __future__ import annotations

import random
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

from sidecar.context.conversation import Conversation
from sidecar.context.counter import Counter
from sidecar.context.occupancy import occupancy
from sidecar.counting.calibration import Calibrations, ConversationCalibration
from sidecar.messages.turns import Turn
from sidecar.messages.usage import Usage

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
"""Documents of a kind to draw from."""
MARKS = 6
"""Tokens that the template puts around each message."""


class Predicted(NamedTuple):
    """One prompt: tokens as predicted, half of its band in percent, tokens as reported."""

    turn: int
    tokens: int
    band: float
    real: int

    @property
    def is_covered(self) -> bool:
        """Whether the truth lies in the band."""
        return abs(self.real - self.tokens) <= self.tokens * self.band / 100 + 0.5


class Dialogue:
    """One conversation with a model, whose texts cost what its vocabulary says."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, learned: Calibrations, hidden: int
    ) -> None:
        self.session = Conversation("benchmark", Counter(model, tokenizer))
        self.calibration = ConversationCalibration(learned, model, tokenizer.name, "benchmark")
        self.real = hidden

    def ask(self, text: str, tokens: int) -> Predicted:
        """A user's turn; what is then sent, as predicted and as it really is."""
        self.session.append([Turn(role="user", content=text)])
        self.real += tokens + MARKS
        measure = occupancy(self.session, self.calibration)
        turn = (len(self.session.turns) + 1) // 2
        return Predicted(turn, measure.tokens, measure.error_percent or 0.0, self.real)

    def answer(self, text: str, tokens: int) -> None:
        """The reply, with the usage that a server reports."""
        usage = Usage(input_tokens=self.real, prompt_tokens=self.real, output_tokens=tokens)
        change = self.session.append([Turn(role="assistant", content=text)], usage)
        self.real += tokens + MARKS
        if change.sample is not None:
            change.sample.apply_to(self.calibration, self.session.model_counts())


def judge_dialogues(found: Corpus) -> None:
    """Print coverage, widths and errors for each generation."""
    from benchmarks.fitting.judge import MODELS, _without_extras
    from sidecar.models.families import generation_of

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
    """Held-out documents by kind, with what they really cost; those of new sources first."""
    by_kind: dict[str, list[tuple[str, int]]] = {}
    for use in ("judge", "held"):
        for document, kind, tokens in zip(
            found.documents, found.kinds, found.truths[generation], strict=True
        ):
            some = by_kind.setdefault(str(kind), [])
            if document.use == use and (use == "judge" or len(some) < _FEWEST):
                some.append((document.text, int(tokens)))
    return by_kind
