"""Fits the table of estimates to one half of the documents, and evaluates it with the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from benchmarks.fitting import regress
from benchmarks.fitting.corpus import RARE, documents
from benchmarks.fitting.environment import ROOT
from benchmarks.fitting.truths import counted
from benchmarks.fitting.unseen import unseen_documents
from sidecar.counting.estimators import KINDS, Chars4, Heuristic, Whitespace, features, kind_of
from sidecar.models.names import UNKNOWN

if TYPE_CHECKING:
    from benchmarks.fitting.corpus import Document

TABLE = ROOT / "sidecar" / "counting" / "estimates.json"
HELD_OUT = ROOT / "tests" / "unit" / "held_out.jsonl"
_PER_NEW_SOURCE, _OF_KNOWN_SOURCES = 10, 120
_LONGEST_FOR_TESTS = 1_200
BASE_VOCABULARY = "o200k_base"
SHIPPED = ("o200k_base", "cl100k_base")
"""Vocabularies that are always counted exactly and need no estimate."""
MODERN = ("o200k_base", "qwen3.5", "qwen2", "deepseek", "tekken", "llama3", "command", "gemma")
"""Vocabularies with at least 100,000 tokens, which all vendors now use."""
CLAUDE = ("claude", "claude-4.7")
POSSIBLE = (*MODERN, *CLAUDE, "cl100k_base", "mistral-v3", "llama2")
"""The vocabularies that an unknown model may have. GPT-2's is missing, because no vendor uses it any
more, and it alone would determine the width of the band.
"""
OTHERS = {
    "openai-newer": "o200k_base",
    "qwen-newer": "qwen3.5",
    "deepseek-v2": "deepseek",
    "p50k_base": "r50k_base",
    "modern": None,
    UNKNOWN: None,
}
"""Generations without an available vocabulary. Each has the weights of another generation or, if
that is None, of all modern vocabularies. Its band is the error of estimating one modern vocabulary
from the others. The unknown generation uses all possible vocabularies instead.
"""

Matrix = Any


class Corpus(NamedTuple):
    """Documents with their features, kinds and true counts."""

    documents: list[Document]
    terms: Matrix
    kinds: Matrix
    uses: Matrix
    groups: Matrix
    truths: dict[str, Matrix]

    @property
    def held(self) -> Matrix:
        """A mask of the documents that are used only for evaluation."""
        return np.isin(self.uses, ("held", "judge"))

    def without_held(self) -> Corpus:
        """Return the documents to which weights or bands are fitted."""
        return self.of(~self.held)

    def of(self, some: Matrix) -> Corpus:
        """Return a selection of the documents."""
        return Corpus(
            [one for one, is_taken in zip(self.documents, some, strict=True) if is_taken],
            self.terms[some],
            self.kinds[some],
            self.uses[some],
            self.groups[some],
            {name: counts[some] for name, counts in self.truths.items()},
        )

    @property
    def train(self) -> Matrix:
        """A mask of the documents to which weights are fitted."""
        return self.uses == "fit"


def corpus() -> Corpus:
    """Return all documents. Counting them takes some minutes the first time."""
    made = [*documents(), *unseen_documents()]
    texts = [one.text for one in made]
    truths = {
        name: np.maximum(np.array(counts, float), 1) for name, counts in counted(texts).items()
    }
    measured = np.array([features(text) for text in texts], float)
    return Corpus(
        made,
        np.column_stack([truths[BASE_VOCABULARY], measured]),
        np.array([kind_of(text) for text in texts]),
        np.array([one.use for one in made]),
        np.array([one.group for one in made]),
        truths,
    )


def fit_and_judge() -> None:
    """Fit the estimates, write the table, and print its errors."""
    found = corpus()
    known = found.without_held()
    fits = {
        name: regress.fit(known.terms, truths, list(known.kinds), list(known.groups), known.train)
        for name, truths in known.truths.items()
        if name not in SHIPPED
    }
    table = {"generations": _generations(known, fits), "estimators": _estimators(known)}
    TABLE.write_text(_written(table), encoding="utf-8")
    print(
        f"{len(found.documents)} documents, {int(found.held.sum())} held out; written: {TABLE.name}"
    )

    HELD_OUT.write_text(_for_tests(found), encoding="utf-8")

    from benchmarks.fitting.judge import judge  # it reads the table

    judge(found)


def _generations(found: Corpus, fits: dict[str, regress.Fit]) -> dict[str, Any]:
    rows = {name: _row(fit.weights, fit.short, fit.bands) for name, fit in sorted(fits.items())}
    for name in CLAUDE:
        if name in rows:
            rows[name]["method"] = "calibrated"
    modern, possible = _apart(found, MODERN), _apart(found, POSSIBLE)
    shared, shared_by_all = _pooled(found, MODERN), _pooled(found, POSSIBLE)
    for name, other in OTHERS.items():
        weights = shared_by_all if name == UNKNOWN else shared
        if other == BASE_VOCABULARY:
            weights = [regress.UNIT, *[0] * (len(shared) - 1)]
        elif other is not None:
            weights = fits[other].weights
        bands = possible if name == UNKNOWN else modern
        rows[name] = _row(weights, *bands) | {"own": False}
    return rows


def _row(weights: list[int], short: float, bands: dict[str, float]) -> dict[str, Any]:
    return {"weights": weights, "bands": _bands(short, bands)}


def _bands(short: float, bands: dict[str, float]) -> dict[str, Any]:
    return {"any": bands["any"], "short": short, "kinds": {kind: bands[kind] for kind in KINDS}}


def _pooled(found: Corpus, names: tuple[str, ...]) -> list[int]:
    terms = np.concatenate([found.terms[found.train]] * len(names))
    truths = np.concatenate([found.truths[name][found.train] for name in names])
    weights = regress.fitted_weights(terms, truths)
    weights = weights / (terms @ weights / truths).mean()  # centered, so that the mean error is 0
    return [round(regress.UNIT * float(one)) for one in weights]


def _apart(found: Corpus, names: tuple[str, ...]) -> tuple[float, dict[str, float]]:
    """Return the band of an unavailable vocabulary, by estimating each of these from the others."""
    estimates, truths = [], []
    for name in names:
        weights = np.array(_pooled(found, tuple(one for one in names if one != name)))
        estimates.append(np.maximum(found.terms @ weights / regress.UNIT, 1))
        truths.append(found.truths[name])
    kinds, groups = list(found.kinds) * len(names), list(found.groups) * len(names)
    return regress.bands(np.concatenate(estimates), np.concatenate(truths), kinds, groups)


def _estimators(found: Corpus) -> dict[str, Any]:
    """Return the bands of the estimators for all possible vocabularies.

    Less common languages are ignored, because the estimators do not support them.
    """
    rows = {}
    usual = found.of(np.array([one.source not in RARE for one in found.documents]))
    texts = [one.text for one in usual.documents]
    for estimator in (Heuristic(), Whitespace(), Chars4()):
        guesses = np.maximum([estimator.estimate(text) for text in texts], 1)
        short, bands = regress.bands(
            np.tile(guesses, len(POSSIBLE)),
            np.concatenate([usual.truths[name] for name in POSSIBLE]),
            list(usual.kinds) * len(POSSIBLE),
            list(usual.groups) * len(POSSIBLE),
        )
        rows[estimator.name] = _bands(short, bands)
    return rows


def _for_tests(found: Corpus) -> str:
    """Return some of the held-out documents with their true counts, as lines of JSON."""
    taken = dict.fromkeys(["held"], _OF_KNOWN_SOURCES)
    lines = []
    digests = [crc32(document.text.encode()) for document in found.documents]
    for index in sorted(range(len(digests)), key=digests.__getitem__):
        document = found.documents[index]
        key = "held" if document.use == "held" else document.source
        left = taken.get(key, _PER_NEW_SOURCE)
        if not document.held_out or not left or len(document.text) > _LONGEST_FOR_TESTS:
            continue
        taken[key] = left - 1
        tokens = {
            name: int(counts[index]) for name, counts in found.truths.items() if name not in SHIPPED
        }
        row = {"source": document.source, "use": document.use, "text": document.text}
        lines.append(json.dumps(row | {"tokens": tokens}, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _written(table: dict[str, Any]) -> str:
    """Return the table as JSON with a line for each row."""
    parts = []
    for part, rows in table.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        parts.append(f"{json.dumps(part)}: {{\n{lines}\n}}")
    return "{" + ",\n".join(parts) + "}\n"
