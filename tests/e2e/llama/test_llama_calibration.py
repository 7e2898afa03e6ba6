"""Compares our predictions and counts with those of a real llama.cpp server."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from benchmarks.conversations import CONTEXT, VOCABULARIES, mean_errors
from sidecar.counting.vocabulary_files import load_gguf
from tests.e2e.llama.server import llama
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
