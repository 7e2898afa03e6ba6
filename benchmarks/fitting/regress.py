"""Weights and bands from one half of the documents.

Weights are those of least relative error, drawn to a plain factor on o200k_base where the
documents say little. Bands are conformal: the order statistic of what documents were off by that
95 of 100 further ones are within, each document judged by weights that were fitted without it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sidecar.counting.features import NAMES
from sidecar.counting.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT = 10_000
"""Of a weight, to a token."""
COVERED = 0.965
"""More than is promised: held-out documents are never quite like the others."""
_RIDGE = 3e-3
_FEWEST_TERMS = 3e-3
"""Of a token, in the root mean square over all documents: what is rarer than this says little of its
own weight, and would get any that mends the few documents that have it."""
_ROUNDS = 8
_FOLDS = 5
_FEWEST = 24
"""Documents of a kind that a band of its own takes."""
SHORT_GRID = (0.3, 0.5, 0.8, 1.2, 1.8, 2.5)

_LEAST = -0.4
"""Tokens: a character is one token of o200k_base more often than not, and must not make a text less."""
_BOUNDED = np.array([False, *(name[:6] == "class " and name[6] not in "aA0 tn." for name in NAMES)])

Matrix = Any


class Fit(NamedTuple):
    """What stands for a generation in the table."""

    weights: list[int]
    """The first for a token of o200k_base, then one for each feature; in `UNIT`s."""
    short: float
    """The band of a text of one token, as far as it comes of shortness; 1 = 100 %."""
    bands: dict[str, float]
    """By kind; `any` for a text of unknown or mixed kind."""


def fitted_weights(terms: Matrix, truths: Matrix) -> Matrix:
    """Weights by which `terms @ weights` is nearest to `truths`, in relative terms."""
    relative = terms / truths[:, None]
    factor = float(np.median(truths / terms[:, 0]))
    prior = np.zeros(terms.shape[1])
    prior[0] = factor
    scale = np.maximum(np.sqrt((relative**2).mean(axis=0)), _FEWEST_TERMS)
    heavy, target = np.ones(len(truths)), np.ones(len(truths))
    weights = prior
    for _ in range(_ROUNDS):
        weighed = relative * heavy[:, None]
        ridge = np.diag(_RIDGE * len(truths) * scale**2 + 1e-12)
        left = weighed.T @ relative + ridge
        weights = _no_less(left, weighed.T @ target + ridge @ prior)
        heavy = 1 / np.maximum(np.abs(relative @ weights - 1), 0.03)
        heavy /= heavy.mean()
    return weights


def _no_less(left: Matrix, right: Matrix) -> Matrix:
    """The solution in which no character's class takes more from a text than `_LEAST`."""
    weights = np.linalg.solve(left, right)
    low = np.zeros(len(weights), bool)
    while (lower := _BOUNDED & ~low & (weights < _LEAST)).any():
        low |= lower
        weights = np.full(len(weights), _LEAST)
        rest = right[~low] - left[~low][:, low] @ weights[low]
        weights[~low] = np.linalg.solve(left[~low][:, ~low], rest)
    return weights


def judged_apart(terms: Matrix, truths: Matrix) -> Matrix:
    """Each document's estimate by weights that were fitted without its fold."""
    made = np.zeros(len(truths))
    fold = np.arange(len(truths)) % _FOLDS
    for one in range(_FOLDS):
        weights = fitted_weights(terms[fold != one], truths[fold != one])
        made[fold == one] = terms[fold == one] @ weights
    return np.maximum(made, 1)


def bands(
    estimates: Matrix, truths: Matrix, kinds: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """(short, bands by kind): the ones that are narrowest in the mean."""
    tried = []
    for short in SHORT_GRID:
        found = _bands(estimates, truths, kinds, short)
        widths = [
            width(found.get(kind, found["any"]), short, tokens)
            for kind, tokens in zip(kinds, estimates, strict=True)
        ]
        tried.append((float(np.median(widths)), short, found))
    _, short, found = min(tried, key=lambda one: one[0])
    return short, found


def width(band: float, short: float, tokens: float) -> float:
    """Half of the band of so many tokens."""
    return math.hypot(band, short / math.sqrt(max(tokens, 1)))


def _bands(
    estimates: Matrix, truths: Matrix, kinds: Sequence[str], short: float
) -> dict[str, float]:
    off = np.abs(truths - estimates) / estimates
    needed = np.sqrt(np.maximum(off**2 - short**2 / estimates, 0))
    of = np.array(kinds)
    found = {"any": _order(needed)}
    for kind in KINDS:
        some = needed[of == kind]
        found[kind] = (
            _order(some) if len(some) >= _FEWEST else round(max(found["any"], *some, 0.0), 4)
        )
    return found


def _order(some: Matrix) -> float:
    """The conformal order statistic."""
    rank = min(len(some), math.ceil((len(some) + 1) * COVERED))
    return round(float(np.sort(some)[rank - 1]) + 0.0005, 4)


def fit(terms: Matrix, truths: Matrix, kinds: Sequence[str]) -> Fit:
    """The table's row of one generation, from the documents that may be fitted to."""
    weights = fitted_weights(terms, truths)
    short, found = bands(judged_apart(terms, truths), truths, kinds)
    return Fit([round(UNIT * float(one)) for one in weights], short, found)
