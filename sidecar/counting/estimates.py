"""The table of fitted estimates: what stands for a vocabulary that cannot be run here.

`python -m benchmarks fit-estimates` writes `estimates.json`: for each tokenizer generation the
weights of o200k_base's tokens and of a text's features, and the bands that 95 of 100 documents were
within which the weights were not fitted to.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from sidecar import typed

UNITS = 10_000
"""Of a weight, to a token."""
BASIS = "o200k_base"


class Bands(msgspec.Struct, frozen=True):
    """How far estimates are off, by kind of text; shares of the estimate."""

    any: float
    """Of a text whose kind is not known."""
    short: float
    """What shortness adds to a text of one token; it falls with the root of the tokens."""
    kinds: dict[str, float]
    """By `sidecar.counting.kinds.Kind`."""

    def percent(self, tokens: int, sample: str = "") -> float:
        """Half of the 95 % band of a count, in percent; `sample`: how the text begins."""
        from sidecar.counting.kinds import kind_of  # not for the first count, which is exact

        band = self.kinds.get(kind_of(sample), self.any) if sample else self.any
        return round(100 * math.hypot(band, self.short / math.sqrt(max(1, tokens))), 1)


class Approximation(msgspec.Struct, frozen=True):
    """One generation's estimate."""

    weights: tuple[int, ...]
    """For a token of the basis, then for each feature of `sidecar.counting.features`; `UNITS`."""
    bands: Bands
    own: bool = True
    """Whether it was fitted to the generation's own vocabulary, or to those of others."""
    method: Literal["calibrated", "estimate"] = "estimate"
    """`calibrated`: to a server's own counts, as ctok reconstructs them."""


class _Table(msgspec.Struct, frozen=True):
    generations: dict[str, Approximation]
    estimators: dict[str, Bands]
    """By the estimator's name, for models that nothing is known of."""


@cache
def _table() -> _Table:
    path = Path(__file__).with_name("estimates.json")
    return typed.decode(path.read_bytes(), _Table)


def fitted(generation: str) -> Approximation | None:
    """What stands for a generation; None where nothing does."""
    return _table().generations.get(generation)


def generations() -> list[str]:
    """All that something stands for."""
    return list(_table().generations)


def bands_of(estimator: str) -> Bands | None:
    """How far an estimator is off, over many vocabularies; None for a plug-in."""
    return _table().estimators.get(estimator)
