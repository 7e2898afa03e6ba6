"""Weights and bands from one half of the documents.

Weights are those of least relative error, drawn to a plain factor on o200k_base where the
documents say little. Bands are conformal: the quantile of what documents were off by, each judged
by weights that were fitted without any document of its source.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from sidecar.counting.text_features import KINDS, NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT = 10_000
"""Of a weight, to a token."""
COVERED = 0.97
"""More than the 95 % that are promised: held-out documents are never quite like the others."""
NEW_SOURCES = 1.15
"""Bands are wider by this than the sources at hand need: a new one may be less like them."""
_RIDGE = 3e-3
_FEWEST_TERMS = 3e-3
"""Of a token, in the root mean square over all documents: what is rarer than this says little of its
own weight, and would get any that mends the few documents that have it."""
_ROUNDS = 8
_FOLDS = 8
_FEWEST = 24
"""Documents of a kind that a band of its own takes."""
_FEWEST_GROUPS = 3
"""Sources of a kind that a band of its own takes."""
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


def estimated_apart(terms: Matrix, truths: Matrix, groups: Sequence[str], train: Matrix) -> Matrix:
    """Each document's estimate by weights that were fitted without its source.

    Args:
        terms: of all documents.
        truths: their true counts.
        groups: their sources. A language's texts have few sources, so that leaving one out says
            what a new language costs: those are left out document by document.
        fitted: which documents weights may be fitted to.
    """
    spoken = np.array([group.startswith(("spoken ", "interface ")) for group in groups])
    folds = np.array([crc32(group.encode()) % _FOLDS for group in groups])
    folds[spoken] = np.arange(spoken.sum()) % _FOLDS
    made = np.zeros(len(truths))
    for fold in range(_FOLDS):
        others = (folds != fold) & train
        made[folds == fold] = terms[folds == fold] @ fitted_weights(terms[others], truths[others])
    return np.maximum(made, 1)


def bands(
    estimates: Matrix, truths: Matrix, kinds: Sequence[str], groups: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """(short, bands by kind): the ones that are narrowest in the median."""
    tried = []
    for short in SHORT_GRID:
        found = _bands(estimates, truths, kinds, groups, short)
        widths = np.hypot([found[kind] for kind in kinds], short / np.sqrt(estimates))
        tried.append((float(np.median(widths)), short, found))
    _, short, found = min(tried, key=lambda one: one[0])
    return short, found


def _bands(
    estimates: Matrix, truths: Matrix, kinds: Sequence[str], groups: Sequence[str], short: float
) -> dict[str, float]:
    off = np.abs(truths - estimates) / estimates
    needed = np.sqrt(np.maximum(off**2 - short**2 / estimates, 0))
    kind_of, group_of = np.array(kinds), np.array(groups)
    found = {"any": _quantile(needed, group_of)}
    for kind in KINDS:
        some = kind_of == kind
        if some.sum() < _FEWEST or len(set(group_of[some])) < _FEWEST_GROUPS:
            found[kind] = round(float(max(found["any"], *needed[some], 0.0)), 4)
        else:
            found[kind] = _quantile(needed[some], group_of[some])
    return found


def _quantile(needed: Matrix, groups: Matrix) -> float:
    """What `COVERED` of the documents need, with the margin for sources that are new.

    A source with many documents weighs no more than the root of their number.
    """
    sizes = Counter(groups.tolist())
    weights = np.array([1 / math.sqrt(sizes[group]) for group in groups.tolist()])
    order = np.argsort(needed)
    sums = np.cumsum(weights[order])
    place = min(int(np.searchsorted(sums, COVERED * sums[-1])), len(needed) - 1)
    return round(NEW_SOURCES * float(needed[order][place]) + 0.0005, 4)


def fit(
    terms: Matrix,
    truths: Matrix,
    kinds: Sequence[str],
    groups: Sequence[str],
    train: Matrix,
) -> Fit:
    """Return the table's row of one generation.

    `train`: which documents the weights come from; bands come from all of them.
    """
    weights = fitted_weights(terms[train], truths[train])
    estimates = estimated_apart(terms, truths, groups, train)
    short, found = bands(estimates, truths, kinds, groups)
    return Fit([round(UNIT * float(one)) for one in weights], short, found)
