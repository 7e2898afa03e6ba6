"""The learned factor of one key, and the tokens that a client hides, each with its error.

A factor is a ratio of sums in which older samples fade: long turns weigh more than short ones, and
one odd sample cannot throw it off. The error is predictive: what each sample was off by, by the
factor as it stood before the sample was learned. A band is what 95 of 100 of the recent samples
were within, in units of the band that the estimate has of itself, so that it keeps to the kind of
text; it narrows with the samples that confirm it, and is as wide as ever for a kind that is new.
"""

from __future__ import annotations

import math

import msgspec

FADE = 0.95
"""What is left of a sample's weight when the next one comes: half after 14 samples."""
TRUST = 300.0
"""Tokens of evidence that a factor starts with (1, or its generation's)."""
OUTLIER = 2.0
"""A sample further than this factor from what was expected is taken for this far off."""
LOWEST, HIGHEST = 0.25, 4.0
"""No vocabulary differs more than this from another."""
RECENT = 24
"""Samples that a band is made of."""
NARROWEST = 0.8
"""Narrowest band that samples can confirm, as a share of the estimate's own; from 3 samples on.

Narrower ones held for 93 % of the turns of held-out conversations."""
SPREAD_MARGIN = 1.2
"""A band is wider by this than the recent samples needed: the largest of 24 says little."""
HIDDEN_SHARE = 0.25
"""Of what is hidden around the texts, may be another share the next time; known from one report."""
HIDDEN_LEAST = 24.0
"""Tokens that it may always be off by."""


class LearnedFactor(msgspec.Struct, omit_defaults=True):
    """What was learned for one key; all fading sums."""

    real: float = 0.0
    estimated: float = 0.0
    samples: int = 0
    misses: tuple[float, ...] = ()
    """What the recent predictions were off by, as shares of what was predicted."""
    strays: tuple[float, ...] = ()
    """The same as shares of the bands that their estimates had."""

    def factor(self, start: float = 1.0) -> float:
        """Real tokens for one that was estimated."""
        ratio = (self.real + TRUST * start) / (self.estimated + TRUST)
        return min(max(ratio, LOWEST), HIGHEST)

    @property
    def error_percent(self) -> float | None:
        """What 95 of 100 recent predictions were within; None while none was measured."""
        return round(100 * _within(self.misses), 1) if self.misses else None

    def spread(self) -> float:
        """Half of the band of what is predicted, to the one that the estimate has of itself."""
        known = len(self.strays)
        least = max(NARROWEST, 1 / (1 + known / 12))
        needed = _within(self.strays) * (SPREAD_MARGIN + 1 / (known + 1))
        return max(least, needed) if known else 1.0

    def learn(
        self,
        estimated: float,
        real: float,
        weight: float = 1.0,
        start: float = 1.0,
        doubt: float | None = None,
    ) -> None:
        """Note one sample: what the estimate said, and what it really was.

        `doubt`: half of the estimate's own band, in tokens; None where that says nothing.
        """
        factor = self.factor(start)
        expected = factor * estimated
        off = abs(expected - real)
        self.misses = (*self.misses, round(off / max(1.0, expected), 4))[-RECENT:]
        if doubt is not None:
            self.strays = (*self.strays, round(off / max(2.0, doubt * factor), 3))[-RECENT:]
        taken = min(max(real, expected / OUTLIER), expected * OUTLIER)
        self.real = FADE * self.real + weight * taken
        self.estimated = FADE * self.estimated + weight * estimated
        self.samples += 1


def _within(shares: tuple[float, ...]) -> float:
    """The order statistic that 95 of 100 further ones are within; the largest of a few."""
    rank = min(len(shares), math.ceil(0.95 * (len(shares) + 1)))
    return sorted(shares)[rank - 1] if shares else 0.0


class HiddenTokens(msgspec.Struct, frozen=True):
    """What stands around a client's texts that was never seen, in tokens."""

    tokens: float
    doubt: float = 0.0
    """What it was off by at most, fading."""
    samples: int = 1

    def after(self, tokens: float) -> HiddenTokens:
        """With what another conversation showed."""
        doubt = max(0.8 * self.doubt, abs(tokens - self.tokens))
        return HiddenTokens((self.tokens + tokens) / 2, doubt, self.samples + 1)

    @property
    def half_width(self) -> float:
        """Half of the band, in tokens."""
        share = HIDDEN_SHARE * self.tokens / math.sqrt(self.samples)
        return max(HIDDEN_LEAST, share, 1.5 * self.doubt)
