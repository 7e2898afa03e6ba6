"""Factors and errors of approximations, from real vocabularies: `python -m benchmarks families`.

For each tokenizer generation whose own vocabulary can be run here (optional packages, the GGUF
vocabularies that `python -m tests.e2e.llama.vocabularies` fetches, ctok for Claude on Python 3.12):
the median over file types of its tokens for each token of o200k_base, and the mean absolute error
of a document that is counted by o200k_base times that factor. The table in
`sidecar/counting/approximations.py` holds these, rounded.
"""

from __future__ import annotations

import importlib
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import httpx

from benchmarks.texts import texts
from sidecar.counting import vocabularies
from sidecar.counting.engines import engine
from sidecar.counting.gguf import load_gguf
from sidecar.counting.vocabulary_files import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDER = Path(__file__).resolve().parents[1] / ".vocabularies"
_FILES = {"r50k_base": "gpt-2", "llama3": "llama-bpe"}
_LEFT_OUT = ("base64", "white space")  # no document is made of these
_CHARACTERS, _DOCUMENTS = 12_000, 12


def counters() -> dict[str, Callable[[str], int]]:
    """Generation to its own, exact count."""
    found: dict[str, Callable[[str], int]] = {}
    for generation in vocabularies.PACKAGED:
        file = vocabularies.packaged_file(generation)
        if file is not None:
            found[generation] = load(file, generation).count
    for generation, name in _FILES.items():
        path = _FOLDER / f"ggml-vocab-{name}.gguf"
        if path.is_file():
            found[generation] = load_gguf(path, generation).count
    return found | _claude()


def _claude() -> dict[str, Callable[[str], int]]:
    """By ctok, which reproduces the count endpoint; less the frame that it puts around a message."""
    try:
        token_count = importlib.import_module("ctok").token_count
    except ImportError:
        return {}

    def counter(version: str) -> Callable[[str], int]:
        frame = token_count("a", version) - 1
        return lambda text: int(token_count(text, version)) - int(frame)

    return {"claude": counter("3.0"), "claude-4.7": counter("4.7")}


@contextmanager
def _llama2() -> Iterator[dict[str, Callable[[str], int]]]:
    """Llama 2's SentencePiece vocabulary, which only a real llama.cpp runs here."""
    from tests.e2e.llama.gguf import write_model
    from tests.e2e.llama.server import llama

    vocabulary = _FOLDER / "ggml-vocab-llama-spm.gguf"
    if not vocabulary.is_file():
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama-spm.gguf"
        write_model(model, vocabulary)
        with llama(model) as url:
            yield {"llama2": partial(_asked, url)}


def _asked(url: str, text: str) -> int:
    body = {"content": text, "parse_special": False}
    return len(httpx.post(f"{url}/tokenize", json=body, timeout=120).json()["tokens"])


def run() -> None:
    """Print a line for each generation."""
    with _llama2() as more:
        _print(counters() | more)


def _print(counts: dict[str, Callable[[str], int]]) -> None:
    corpus = {
        kind: [text[:_CHARACTERS] for text in some[:_DOCUMENTS]]
        for kind, some in texts().items()
        if kind not in _LEFT_OUT
    }
    basis = engine("o200k_base")
    counted = {kind: [basis.count(text) for text in some] for kind, some in corpus.items()}
    print("\nTokens for each of o200k_base: factor, mean error of a document, factor by type")
    for generation, count in counts.items():
        real = {kind: [count(text) for text in some] for kind, some in corpus.items()}
        ratios = {kind: sum(real[kind]) / sum(counted[kind]) for kind in corpus}
        factor = median(ratios.values())
        pairs = [pair for kind in corpus for pair in zip(counted[kind], real[kind], strict=True)]
        error = 100 * mean(abs(tokens * factor / truth - 1) for tokens, truth in pairs)
        kinds = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items())
        print(f"{generation:12} x {factor:.3f}, {error:.1f} %: {kinds}")
