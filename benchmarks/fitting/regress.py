"""Fits weights and error bands to one half of the documents.

Weights minimize the relative error. A ridge penalty pulls weights with little evidence towards a
plain factor on o200k_base. Bands are conformal: they are quantiles of the documents' errors, and
each document is estimated with weights that were fitted without its source.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from sidecar.counting.estimators import KINDS, NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

UNIT = 10_000
"""Weights are multiplied by this number and rounded."""
COVERED = 0.97
"""Share of the documents that a band covers. It exceeds the promised 95 %, because held-out documents
differ from the others.
"""
NEW_SOURCES = 1.15
"""Factor that widens the bands, because new sources may differ more than the known ones."""
_RIDGE = 3e-3
_FEWEST_TERMS = 3e-3
"""Features with a smaller root mean square are rare. The weight of a rare feature would be fitted to
the few documents that contain it.
"""
_ROUNDS = 8
_FOLDS = 8
_FEWEST = 24
"""A kind with fewer documents does not get its own quantile."""
_FEWEST_GROUPS = 3
"""A kind with fewer sources does not get its own quantile."""
SHORT_GRID = (0.3, 0.5, 0.8, 1.2, 1.8, 2.5)

_LEAST = -0.4
"""Smallest weight of a character class. With a smaller one, an added character could reduce the
estimate of a text.
"""
_BOUNDED = np.array([False, *(name[:6] == "class " and name[6] not in "aA0 tn." for name in NAMES)])

Matrix = Any


class Fit(NamedTuple):
    """The weights and bands of one generation."""

    weights: list[int]
    """The weights of o200k_base's count and of each feature, multiplied by `UNIT`."""
    short: float
    """The additional band of a text with one token, as a fraction. It shrinks with the length."""
    bands: dict[str, float]
    """The band of each kind of text, and `any` for texts of unknown or mixed kind."""


def fitted_weights(terms: Matrix, truths: Matrix) -> Matrix:
    """Return the weights for which `terms @ weights` has the smallest relative error."""
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
    """Return the solution in which no weight of a character class is below `_LEAST`."""
    weights = np.linalg.solve(left, right)
    low = np.zeros(len(weights), bool)
    while (lower := _BOUNDED & ~low & (weights < _LEAST)).any():
        low |= lower
        weights = np.full(len(weights), _LEAST)
        rest = right[~low] - left[~low][:, low] @ weights[low]
        weights[~low] = np.linalg.solve(left[~low][:, ~low], rest)
    return weights


def estimated_apart(terms: Matrix, truths: Matrix, groups: Sequence[str], train: Matrix) -> Matrix:
    """Return each document's estimate with weights that were fitted without its source.

    Args:
        terms: The features of all documents.
        truths: The true counts of all documents.
        groups: The sources of all documents. The texts of a language have few sources, so they are
            left out one document at a time.
        train: Which documents weights may be fitted to.
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
    """Return the additional band of short texts, and the bands by kind, with the smallest median."""
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
    """Return the quantile `COVERED` of the errors, with the margin for new sources.

    A source's weight is the square root of its number of documents.
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
    """Return the weights and bands of one generation.

    Args:
        terms: The features of all documents.
        truths: The true counts of all documents.
        kinds: The kinds of all documents.
        groups: The sources of all documents.
        train: Which documents weights are fitted to. Bands are fitted to all of them.
    """
    weights = fitted_weights(terms[train], truths[train])
    estimates = estimated_apart(terms, truths, groups, train)
    short, found = bands(estimates, truths, kinds, groups)
    return Fit([round(UNIT * float(one)) for one in weights], short, found)
