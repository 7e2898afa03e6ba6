"""Compares our predictions and counts with those of a real llama.cpp server."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
import pytest

from benchmarks.conversations import CONTEXT, VOCABULARIES, mean_errors
from sidecar.counting.vocabulary_files import load, load_gguf
from tests.e2e.llama.gguf import write_model
from tests.e2e.llama.own import text_tokens
from tests.e2e.llama.server import llama
from tests.e2e.llama.test_llama_counts import TEXTS
from tests.e2e.llama.vocabularies import BY_LIBRARY, ensure_vocabularies
from tests.fuzz.edits import STOCK


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_whole_prompts_are_predicted_within_3_percent(
    models: dict[str, Path], vocabulary: str
) -> None:
    with llama(models[vocabulary], "--context", str(CONTEXT)) as url:
        errors = mean_errors(url, seed=1)

    assert errors.ours <= 0.03
    assert errors.ours < errors.chars4 / 10


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_gguf_vocabulary_counts_as_in_llama_cpp(models: dict[str, Path], vocabulary: str) -> None:
    ours = load_gguf(models[vocabulary], vocabulary)
    with llama(models[vocabulary]) as url:
        for text in (*STOCK, "hello world", " ", "x" * 3_000, "".join(STOCK) * 3):
            clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            body = {"content": clean, "parse_special": False}
            own = httpx.post(f"{url}/tokenize", json=body, timeout=30).json()["tokens"]
            assert ours.count(clean) == len(own), clean[:40]


DROPPED = [" \x11\x88", "\n\x0b ", "a \x03\x9b", " \x1d\x88«", "\x00\x01 b\x0b"]
"""Strings with control characters that the vocabulary lacks.

A tokenizer that drops these characters may merge the characters around them.
"""
BETWEEN = ["", " ", "  ", "\n", "\n\n", "\t", "é", "e\u0301", "日本", "😀", "<s>", "▁", "\x1f", "1"]


def mixed() -> list[str]:
    """Return random strings. Each one consists of corpus fragments and special characters."""
    source, stock = random.Random(5), "".join(STOCK).encode("utf-8", "ignore").decode()
    return [
        "".join(
            stock[(start := source.randrange(len(stock))) : start + source.randrange(1, 40)]
            + source.choice(BETWEEN)
            for _ in range(source.randrange(1, 8))
        )
        for _ in range(400)
    ]


@pytest.mark.parametrize("vocabulary", ["llama-spm", *BY_LIBRARY])
def test_the_tokenizers_library_counts_as_llama_cpp_does(vocabulary: str, tmp_path: Path) -> None:
    model = tmp_path / f"{vocabulary}.gguf"
    write_model(model, ensure_vocabularies()[vocabulary], name=vocabulary)
    ours = load(model, vocabulary)
    with llama(model) as url:
        for text in [*TEXTS, *DROPPED, *mixed()]:
            assert ours.count(text) == text_tokens(url, text), text[:80]
