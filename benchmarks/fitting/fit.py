"""Fits the table of estimates on one half of the documents and judges it on the other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.fitting import regress
from benchmarks.fitting.corpus import RARE, documents
from benchmarks.fitting.environment import ROOT
from benchmarks.fitting.truths import counted
from sidecar.counting.estimators import Chars4, Heuristic, Whitespace
from sidecar.counting.features import features
from sidecar.counting.kinds import KINDS, kind_of
from sidecar.models.families import UNKNOWN

if TYPE_CHECKING:
    from benchmarks.fitting.corpus import Document

TABLE = ROOT / "sidecar" / "counting" / "estimates.json"
BASIS = "o200k_base"
SHIPPED = ("o200k_base", "cl100k_base")
"""Engines that always count exactly: they need no estimate."""
MODERN = ("o200k_base", "qwen3.5", "qwen2", "deepseek", "tekken", "llama3", "command", "gemma")
"""Vocabularies of 100,000 tokens and more, as all makers have by now."""
CLAUDE = ("claude", "claude-4.7")
POSSIBLE = (*MODERN, *CLAUDE, "cl100k_base", "mistral-v3", "llama2")
"""What a model may count by that nothing is known of. GPT-2's, which nobody trains with any more,
would make its band the widest of all by itself."""
OTHERS = {
    "openai-newer": "o200k_base",
    "qwen-newer": "qwen3.5",
    "deepseek-v2": "deepseek",
    "p50k_base": "r50k_base",
    "llama4": None,
    "grok": None,
    "kimi": None,
    "glm": None,
    "minimax": None,
    UNKNOWN: None,
}
"""Generations without a vocabulary to be had: whose weights stand for it, None for all modern ones.
Their bands are those of a modern vocabulary that is estimated by the others; of a model that nothing
is known of, those of all that are possible, older ones and Claude's among them."""

Matrix = Any


class Corpus(NamedTuple):
    """Documents with their terms, kinds and true counts."""

    documents: list[Document]
    terms: Matrix
    kinds: Matrix
    held: Matrix
    truths: dict[str, Matrix]

    def of(self, name: str, *, held: bool) -> tuple[Matrix, Matrix, list[str]]:
        """(terms, truths, kinds) of one half."""
        half = self.held == held
        return self.terms[half], self.truths[name][half], list(self.kinds[half])


def corpus() -> Corpus:
    """All documents; the first time their truths take some minutes."""
    made = documents()
    texts = [one.text for one in made]
    truths = {
        name: np.maximum(np.array(counts, float), 1) for name, counts in counted(texts).items()
    }
    measured = np.array([features(text) for text in texts], float)
    return Corpus(
        made,
        np.column_stack([truths[BASIS], measured]),
        np.array([kind_of(text) for text in texts]),
        np.array([one.held_out for one in made]),
        truths,
    )


def fit_and_judge() -> None:
    """Fit, write the table, and print how far it is off."""
    found = corpus()
    fits = {
        name: regress.fit(*found.of(name, held=False))
        for name in found.truths
        if name not in SHIPPED
    }
    table = {"generations": _generations(found, fits), "estimators": _estimators(found)}
    TABLE.write_text(_written(table), encoding="utf-8")
    print(
        f"{len(found.documents)} documents, {int(found.held.sum())} held out; written: {TABLE.name}"
    )

    from benchmarks.fitting.judge import judge  # it reads the table

    judge(found)


def _generations(found: Corpus, fits: dict[str, regress.Fit]) -> dict[str, Any]:
    rows = {name: _row(fit.weights, fit.short, fit.bands) for name, fit in sorted(fits.items())}
    for name in CLAUDE:
        if name in rows:
            rows[name]["method"] = "calibrated"
    modern, possible = _apart(found, MODERN), _apart(found, POSSIBLE)
    shared = _pooled(found, MODERN)
    for name, other in OTHERS.items():
        weights = shared
        if other == BASIS:
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
    halves = [found.of(name, held=False) for name in names]
    weights = regress.fitted_weights(
        np.concatenate([half[0] for half in halves]), np.concatenate([half[1] for half in halves])
    )
    return [round(regress.UNIT * float(one)) for one in weights]


def _apart(found: Corpus, names: tuple[str, ...]) -> tuple[float, dict[str, float]]:
    """Bands of a vocabulary that was not looked at: each of these, estimated by the modern others."""
    estimates, truths, kinds = [], [], list[str]()
    for name in names:
        weights = np.array(_pooled(found, tuple(one for one in MODERN if one != name)))
        terms, real, of = found.of(name, held=False)
        estimates.append(np.maximum(terms @ weights / regress.UNIT, 1))
        truths.append(real)
        kinds += of
    return regress.bands(np.concatenate(estimates), np.concatenate(truths), kinds)


def _estimators(found: Corpus) -> dict[str, Any]:
    """Bands of what counts where nothing is known of a model: over all that is possible.

    Languages that few write are left out here: rules that know none of them are off by anything.
    """
    rows = {}
    half = np.array([one.source not in RARE for one in found.documents]) & ~found.held
    texts = [one.text for one, is_taken in zip(found.documents, half, strict=True) if is_taken]
    for estimator in (Heuristic(), Whitespace(), Chars4()):
        guesses = np.maximum([estimator.estimate(text) for text in texts], 1)
        short, bands = regress.bands(
            np.tile(guesses, len(POSSIBLE)),
            np.concatenate([found.truths[name][half] for name in POSSIBLE]),
            list(np.tile(found.kinds[half], len(POSSIBLE))),
        )
        rows[estimator.name] = _bands(short, bands)
    return rows


def _written(table: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    parts = []
    for part, rows in table.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        parts.append(f"{json.dumps(part)}: {{\n{lines}\n}}")
    return "{" + ",\n".join(parts) + "}\n"
