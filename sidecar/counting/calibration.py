"""Estimates that learn from every exact or reported count: `real / estimated`, with its error.

Conversations: one factor for each (model, tokenizer generation, what made the estimate), learned
from what prompts have *grown* by between two reports, so that a hidden system prompt or a template
does not look like a wrong factor. Documents: one factor for each buffer, renewed by every exact
count; one factor for mixed files is known to make estimates worse.

A factor is a ratio of sums in which older samples fade: long turns weigh more than short ones, and
one odd sample cannot throw it off. The error is predictive: what each sample was off by, by the
factor as it stood before the sample was learned.

Pure. What is kept holds numbers and model names only, never text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sidecar.counting.families import UNKNOWN, generation_of
from sidecar.counting.names import parse

FADE = 0.95
"""What is left of a sample's weight when the next one comes: half after 14 samples."""
TRUST = 300.0
"""Tokens of evidence that a factor starts with (1, or its generation's)."""
OUTLIER = 2.0
"""A sample further than this factor from what was expected is taken for this far off."""
LOWEST, HIGHEST = 0.25, 4.0
"""No vocabulary differs more than this from another."""
WHOLE = 0.25
"""Weight of a whole prompt, in which a template and hidden prompts hide, beside its growth."""
SMALLEST = 16
"""Tokens under which growth teaches nothing: rounding and templates are all of it."""
MOST_KEPT = 512


class Learned(msgspec.Struct, omit_defaults=True):
    """What was learned for one key; all fading sums."""

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    off: float = 0.0
    """Tokens that predictions were off by."""
    seen: float = 0.0
    """Tokens that were predicted."""

    def factor(self, start: float = 1.0) -> float:
        """Real tokens for one that was estimated."""
        ratio = (self.real + TRUST * start) / (self.estimated + TRUST)
        return min(max(ratio, LOWEST), HIGHEST)

    @property
    def error_percent(self) -> float | None:
        """Mean error of predictions, weighed by tokens; None while none was measured."""
        return round(100 * self.off / self.seen, 1) if self.seen else None

    def learn(self, estimated: float, real: float, weight: float = 1.0, start: float = 1.0) -> None:
        """Note one sample: what the estimate said, and what it really was."""
        expected = self.factor(start) * estimated
        self.off = FADE * self.off + weight * abs(expected - real)
        self.seen = FADE * self.seen + weight * real
        taken = min(max(real, expected / OUTLIER), expected * OUTLIER)
        self.real = FADE * self.real + weight * taken
        self.estimated = FADE * self.estimated + weight * estimated
        self.samples += 1


class Calibrations:
    """All that was learned, by model; shared by the conversations of a process."""

    def __init__(self) -> None:
        self._learned: dict[str, Learned] = {}
        self.touched: set[str] = set()
        """Keys that were learned for since this was made or read."""

    def learned(self, key: str) -> Learned | None:
        """What was learned for a key."""
        return self._learned.get(key)

    def start(self, key: str) -> float:
        """The factor of a key's generation, pooled over its models; 1 where there is none."""
        generation = _generation(key)
        if generation.startswith(f"{UNKNOWN} "):
            return 1.0  # unknown models have nothing in common
        same = [one for name, one in list(self._learned.items()) if _generation(name) == generation]
        real, estimated = sum([one.real for one in same]), sum([one.estimated for one in same])
        return Learned(real=real, estimated=estimated).factor() if same else 1.0

    def learn(self, key: str, estimated: float, real: float, weight: float) -> None:
        """Note one sample for a key."""
        start = self.start(key)
        if key not in self._learned and len(self._learned) >= MOST_KEPT:
            del self._learned[next(iter(self._learned))]
        one = self._learned.setdefault(key, Learned(real=0.0))
        one.learn(estimated, real, weight, start)
        self.touched.add(key)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers and model names."""
        entries = {key: msgspec.to_builtins(one) for key, one in list(self._learned.items())}
        return {"version": 1, "learned": entries}

    @classmethod
    def from_dict(cls, data: object) -> Calibrations:
        """What `to_dict` gave; entries that are not sound are left out. Never raises."""
        found = cls()
        entries = data.get("learned") if isinstance(data, dict) else None
        for key, value in entries.items() if isinstance(entries, dict) else ():
            one = _sound(value)
            if one is not None and isinstance(key, str):
                found._learned[key] = one
        return found

    def take(self, other: Calibrations) -> None:
        """Take over what another process has learned for keys that were not touched here."""
        for key, one in other._learned.items():
            if key not in self.touched:
                self._learned[key] = one


def _sound(value: object) -> Learned | None:
    try:
        one = msgspec.convert(value, Learned)
    except msgspec.ValidationError:
        return None
    numbers = (one.real, one.estimated, one.off, one.seen, float(one.samples))
    return one if all(0 <= number < 1e15 for number in numbers) else None


def key_of(model: str, tokenizer: str) -> str:
    """What a model's factor is kept under: its generation, what made the estimate, its name."""
    return f"{generation_of(model)} {tokenizer} {parse(model).bare}"


def _generation(key: str) -> str:
    """Generation and what made the estimate: what a key shares with others of its generation."""
    return " ".join(key.split(" ")[:2])


class ConversationCalibration:
    """What reported usage teaches about one conversation's estimates.

    Estimates and reports are of whole prompts, in tokens. A report comes after the estimate of the
    same prompt; what was learned is shared with later conversations of the same model.
    """

    def __init__(self, shared: Calibrations, model: str, tokenizer: str) -> None:
        self._shared = shared
        self._key = key_of(model, tokenizer)
        self._last: tuple[int, int] | None = None

    @property
    def factor(self) -> float:
        """Real tokens for one that was estimated; the generation's, or 1, before any sample."""
        learned = self._shared.learned(self._key)
        start = self._shared.start(self._key)
        return learned.factor(start) if learned else start

    @property
    def samples(self) -> int:
        """Reports learned from, of earlier conversations too."""
        learned = self._shared.learned(self._key)
        return learned.samples if learned else 0

    @property
    def error_percent(self) -> float | None:
        """Mean error of corrected estimates in percent; None while not measured."""
        learned = self._shared.learned(self._key)
        return learned.error_percent if learned else None

    def switch(self, model: str, tokenizer: str) -> None:
        """Another model: its own factor, its generation's, or 1. Reports of the last one end."""
        key = key_of(model, tokenizer)
        if key != self._key:
            self._key, self._last = key, None

    def predict(self, estimated: int) -> int:
        """Tokens of a prompt that is estimated at so many: the last report and what is new."""
        if self._last is None or estimated < self._last[0]:
            return max(0, round(self.factor * estimated))
        before, reported = self._last
        return reported + round(self.factor * (estimated - before))

    def learn(self, estimated: int, reported: int) -> None:
        """Note the reported number of a prompt beside what it was estimated at.

        A prompt that shrank (it was pruned), or the first one, is a sample of its own if what is
        hidden in it cannot be most of it.
        """
        if estimated <= 0 or reported <= 0:
            return
        before, self._last = self._last, (estimated, reported)
        if before is not None and estimated >= before[0] and reported >= before[1]:
            grown, really = estimated - before[0], reported - before[1]
            if grown >= SMALLEST:
                self._shared.learn(self._key, grown, really, 1.0)
        elif self._is_likely(estimated, reported):
            self._shared.learn(self._key, estimated, reported, WHOLE)

    def replied(self, estimated: int, output: int) -> None:
        """Note a reply that goes back with the next prompt, beside its reported tokens.

        Both of the reply's texts alone, without what a template puts around them, and without
        reasoning that is not sent back.
        """
        if self._last is None or estimated < 0 or output < 0:
            return
        before, reported = self._last
        self._last = (before + estimated, reported + output)
        if estimated >= SMALLEST:
            self._shared.learn(self._key, estimated, output, 1.0)

    def _is_likely(self, estimated: int, reported: int) -> bool:
        expected = self.factor * estimated
        likely = expected / OUTLIER <= reported <= expected * OUTLIER
        return likely and estimated >= SMALLEST


class DocumentCalibration:
    """A buffer's own factor: renewed whenever an exact count of it arrives."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.samples = 0
        self.error_percent: float | None = None
        """What the last prediction was off by, in percent; None while there was none."""

    def predict(self, estimated: int) -> int:
        """Tokens of the buffer, estimated at so many now."""
        return max(0, round(self.factor * estimated))

    def learn(self, estimated: int, real: int) -> None:
        """Note an exact count beside the estimate of the same text."""
        if estimated <= 0 or real <= 0:
            return
        if self.samples:
            self.error_percent = round(100 * abs(self.predict(estimated) - real) / real, 1)
        self.factor = min(max(real / estimated, LOWEST), HIGHEST)
        self.samples += 1
