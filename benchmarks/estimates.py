"""Compares estimates with exact counts by file type, for our estimators and those of peers.

For each type, it prints the bias of the total and the mean absolute error of a document against
o200k_base, in percent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.texts import texts
from benchmarks.tokenx import tokenx
from sidecar.counting.estimators import Chars4, Heuristic, Whitespace
from sidecar.counting.exact_engines import engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ESTIMATES: dict[str, Callable[[str], int]] = {
    "ours": Heuristic().estimate,
    "tokenx": tokenx,
    "words rule": Whitespace().estimate,
    "chars/4": Chars4().estimate,
    "bytes/4": lambda text: len(text.encode()) // 4,
    "chars/3": lambda text: len(text) // 3,
}


def run() -> None:
    """Print the table of errors."""
    exact = engine("o200k_base")
    corpus = {kind: [(text, exact.count(text)) for text in some] for kind, some in texts().items()}
    print("\nEstimates against o200k_base: bias on the total / mean error of a document, %")
    print(f"{'type':22}{'files':>6}{'tokens':>10}" + "".join(f"{name:>14}" for name in ESTIMATES))
    for kind, some in corpus.items():
        print(_row(kind, some))
    print(_row("all types alike", [pair for some in corpus.values() for pair in some[:10]]))
    _speed([text for some in corpus.values() for text, _ in some])


def _row(kind: str, some: list[tuple[str, int]]) -> str:
    cells = "".join(f"{_error(estimate, some):>14}" for estimate in ESTIMATES.values())
    return f"{kind:22}{len(some):>6}{sum(real for _, real in some):>10,}{cells}"


def _error(estimate: Callable[[str], int], some: Iterable[tuple[str, int]]) -> str:
    pairs = [(estimate(text), real) for text, real in some]
    bias = sum(guess for guess, _ in pairs) / sum(real for _, real in pairs) - 1
    mean = sum(abs(guess / real - 1) for guess, real in pairs) / len(pairs)
    return f"{100 * bias:+.0f} / {100 * mean:.0f}"


def _speed(some: list[str]) -> None:
    text = "".join(some)
    text = (text * (10_000_000 // len(text) + 1))[:10_000_000]
    for name in ("ours", "words rule", "tokenx"):
        start = time.process_time()
        ESTIMATES[name](text)
        print(f"{name}: {time.process_time() - start:.2f} s of CPU for 10 million characters")
