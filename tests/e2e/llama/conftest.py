"""Fixtures for the tests with real llama.cpp servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.llama.gguf import write_model
from tests.e2e.llama.server import llama
from tests.e2e.llama.vocabularies import NAMES, ensure_vocabularies


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with random weights and real vocabularies, keyed by vocabulary name."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    vocabularies = ensure_vocabularies()
    for name in NAMES:
        vocabulary = vocabularies[name]
        paths[name] = folder / f"{name}.gguf"
        write_model(paths[name], vocabulary, name=name)
    return paths


@pytest.fixture(scope="session")
def llama_url(models: dict[str, Path]) -> Iterator[str]:
    """A server for the model `tiny` with Qwen2's vocabulary and two slots of 4,096 tokens."""
    with llama(models["qwen2"], "--context", "8192", "--slots", "2") as url:
        yield url


@pytest.fixture(autouse=True)
def never_asleep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pauses of a busy machine cause no request, except in tests about sleeping models."""
    if "asleep" not in request.node.name:
        monkeypatch.setattr("sidecar.endpoints.endpoints.AWAKE_SECONDS", 600.0)
