"""Fitted approximations of vocabularies that are not public.

`python -m benchmarks fit-estimates` writes `estimates.json`. For each tokenizer generation it
contains the weights of o200k_base's tokens and of a text's features, and the bands that contain
95 of 100 documents. The weights were fitted to other documents.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from sidecar import typed

UNITS = 10_000
"""Units of weight per token."""
BASE_VOCABULARY = "o200k_base"


class Bands(msgspec.Struct, frozen=True):
    """Error bands by kind of text, as shares of the estimate."""

    any: float
    """For texts of unknown kind."""
    short: float
    """For a text of one token. It decreases with the square root of the tokens."""
    kinds: dict[str, float]
    """By `sidecar.counting.kinds.Kind`."""

    def percent(self, tokens: int, sample: str = "") -> float:
        """Return the 95 % error band of a count, in percent.

        Args:
            tokens: The count.
            sample: The beginning of the text.
        """
        from sidecar.counting.kinds import kind_of

        band = self.kinds.get(kind_of(sample), self.any) if sample else self.any
        return round(100 * math.hypot(band, self.short / math.sqrt(max(1, tokens))), 1)


class Approximation(msgspec.Struct, frozen=True):
    """The estimate for one tokenizer generation."""

    weights: tuple[int, ...]
    """In `UNITS`: per token of the base vocabulary, then per feature."""
    bands: Bands
    own: bool = True
    """Whether it was fitted to the generation's own vocabulary instead of similar ones."""
    method: Literal["calibrated", "estimate"] = "estimate"
    """`calibrated` if it was fitted to a server's counts, as ctok reconstructs them."""


class _Table(msgspec.Struct, frozen=True):
    generations: dict[str, Approximation]
    estimators: dict[str, Bands]
    """The bands of each estimator for unknown models."""


@cache
def _band_table() -> _Table:
    path = Path(__file__).with_name("estimates.json")
    return typed.decode(path.read_bytes(), _Table)


def approximation_of(generation: str) -> Approximation | None:
    return _band_table().generations.get(generation)


def generations() -> list[str]:
    """Return the generations that have an approximation."""
    return list(_band_table().generations)


def bands_of(estimator: str) -> Bands | None:
    """Return the error bands of an estimator over many vocabularies, or None for a plug-in."""
    return _band_table().estimators.get(estimator)
