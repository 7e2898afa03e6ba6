"""Tests which tokenizer is used for a model: a configured file, an engine, a package or an
approximation.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sidecar.config.settings import TokenizerFile
from sidecar.counting import (
    exact_engines,
    tokenizer_choice,
    vocabulary_files,
)
from sidecar.counting.model_list import model_info
from sidecar.counting.tokenizer_choice import LazyTokenizer, ScaledTokenizer, Tokenizers
from sidecar.counting.tokenizer_interface import Tokenizer
from sidecar.text.document import TextDocument
from tests.document_counts import document_tokens
from tests.unit.test_counting_vocabularies import rank_lines, trained


def test_claude_is_calibrated_by_generation() -> None:
    tokenizers = Tokenizers()
    before, since = tokenizers.for_model("claude-opus-4-6"), tokenizers.for_model("claude-opus-4-7")
    text = "def percent(tokens, limit):\n    return 100 * tokens // limit\n" * 50

    assert (before.method, since.method) == ("calibrated", "calibrated")
    # These are ctok's counts, which the estimates were fitted to.
    assert before.count(text) == pytest.approx(899, rel=0.13)
    assert since.count(text) == pytest.approx(1249, rel=0.2)
    for tokenizer in (before, since):
        band = tokenizer.band(tokenizer.count(text), text)
        assert band is not None
        assert 1 < band < 20
    assert since.name == "claude-4.7~o200k_base"


def test_unknown_model_is_estimated() -> None:
    tokenizer = Tokenizers().for_model("some-model-of-mine")

    assert (tokenizer.name, tokenizer.method) == ("unknown~o200k_base", "estimate")
    band = tokenizer.band(1_000, "plain words " * 90)
    assert band is not None
    assert 15 < band < 100  # the band is wide, because the model may have any vocabulary
    assert tokenizer.count("hello world") == 2
    assert tokenizer.count("") == 0


@pytest.mark.parametrize(
    "name", ["default", "heuristic", "whitespace", "chars4", "no-such-estimator"]
)
def test_configured_estimator_counts_for_unknown_models(name: str) -> None:
    tokenizer = Tokenizers(estimator=name).for_model("some-model-of-mine")

    known = name in ("heuristic", "whitespace", "chars4")
    assert tokenizer.name == (name if known else "unknown~o200k_base")
    assert tokenizer.method == "estimate"


def test_configured_file_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(trained(vocabulary_files.LLAMA3))
    written = str(tmp_path / "tokenizer.json")
    tokenizers = Tokenizers([TokenizerFile(models=("gpt-*", "mine*"), file=written)])

    assert model_info("gpt-5", tokenizers.describe).tokenizer == written
    for model in ("gpt-5", "openai/GPT-5", "mine-8b.gguf"):
        tokenizer = tokenizers.for_model(model)
        assert tokenizer.count("hello") > 0
        assert (tokenizer.name, tokenizer.method) == (written, "exact")
        assert tokenizer.has_safe_cuts
    assert tokenizers.for_model("o3").name == "o200k_base"
    assert tokenizers.problems == []


def test_first_matching_entry_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.tiktoken").write_bytes(rank_lines(50_256))
    files = [
        TokenizerFile(models=("llama-3.1*",), file=str(tmp_path / "a.tiktoken")),
        TokenizerFile(models=("llama*",), file="/none"),
    ]

    assert Tokenizers(files).for_model("llama-3.1-8b").name == str(tmp_path / "a.tiktoken")
    assert Tokenizers(files).for_model("llama-2-8b").name == "/none"


@pytest.mark.parametrize(
    "content", [None, b"", b"{}", b"\xff\xfe\0", b'{"model": {"type": "BPE"}}']
)
def test_unusable_file_is_reported_and_replaced_by_a_fallback(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    tokenizers = Tokenizers([TokenizerFile(models=("llama-3*",), file=str(file))])
    tokenizer = tokenizers.for_model("llama-3.1-8b")

    assert tokenizer.count("hello world") == 2
    assert (tokenizer.name, tokenizer.method) == ("llama3", "exact")
    [problem] = tokenizers.problems
    assert caplog.messages == [problem]
    assert str(file) in problem
    assert problem.endswith("using llama3 instead")
    assert "hello" not in problem


def test_folder_or_home_path_is_handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.json").write_bytes(trained(vocabulary_files.QWEN2))
    tokenizers = Tokenizers(
        [
            TokenizerFile(models=("a",), file="~/t.json"),
            TokenizerFile(models=("b",), file=str(tmp_path)),
        ]
    )

    assert tokenizers.for_model("a").count("hello") > 0
    assert tokenizers.for_model("a").method == "exact"
    assert tokenizers.for_model("b").count("hello") > 0
    assert tokenizers.for_model("b").method == "estimate"


def test_vocabulary_is_not_loaded_before_the_first_count(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("what is this")
    tokenizers = Tokenizers(
        [TokenizerFile(models=("mine",), file=str(tmp_path / "tokenizer.json"))]
    )
    tokenizer = tokenizers.for_model("mine")

    assert isinstance(tokenizer, LazyTokenizer)
    assert tokenizer.base is tokenizer
    assert (tokenizer.has_safe_cuts, tokenizers.problems) == (False, [])


def test_concurrent_counts_load_the_vocabulary_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidecar.counting import vocabulary_files

    (tmp_path / "tokenizer.json").write_bytes(trained(vocabulary_files.LLAMA3))
    loads: list[str] = []
    real = vocabulary_files.load

    def watched(file: Path, name: str) -> Tokenizer:
        loads.append(name)
        return real(file, name)

    monkeypatch.setattr(vocabulary_files, "load", watched)
    tokenizer = Tokenizers(
        [TokenizerFile(models=("mine",), file=str(tmp_path / "tokenizer.json"))]
    ).for_model("mine")
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(tokenizer.count("hello world")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(counts)) == 1
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("qwen3-8b", "qwen3~o200k_base"),
        ("qwen3.6-27b", "qwen3.5~o200k_base"),
        ("llama-3.3-70b", "llama3~o200k_base"),
    ],
)
def test_models_are_approximated_without_their_vocabulary(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_engines, "has_splintr", lambda: False)
    monkeypatch.setattr(tokenizer_choice, "qwen_file", lambda: None)
    tokenizer = Tokenizers().for_model(model)

    assert (tokenizer.name, tokenizer.method) == (name, "estimate")


@pytest.mark.parametrize(
    "model", ["kimi-k2", "glm-4.6", "gemma-3-27b", "codellama-34b", "phi-3-mini"]
)
def test_models_whose_vocabulary_is_not_proven_are_approximated(model: str) -> None:
    assert Tokenizers().describe(model)[1] == "estimate"


def test_a_damaged_package_is_approximated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen.tiktoken").write_text("damaged")
    monkeypatch.setattr(tokenizer_choice, "qwen_file", lambda: tmp_path / "qwen.tiktoken")
    tokenizers = Tokenizers()

    assert tokenizers.for_model("qwen3.6-8b").count("hello world") == 2
    assert tokenizers.for_model("qwen3.6-8b").name == "qwen3.5~o200k_base"
    assert len(tokenizers.problems) == 1


@pytest.mark.parametrize("model", ["claude-opus-4-7", "some-model-of-mine"])
def test_an_approximation_adds_up_before_it_is_rounded(model: str) -> None:
    from sidecar.text.document import split

    tokenizer = Tokenizers().for_model(model)
    assert isinstance(tokenizer, ScaledTokenizer)
    text = "".join(f"line {n}: value_{n} = '日本語' * {n * 7}\n" for n in range(400))
    parts = list(split(text, 100))

    assert len(parts) > 50
    assert tokenizer.scale(sum(map(tokenizer.base.count, parts))) == tokenizer.count(text)


def test_random_model_names_do_not_fill_the_cache() -> None:
    tokenizers = Tokenizers()
    for number in range(5000):
        tokenizers.for_model(f"model-{number}")

    assert len(tokenizers._by_model) < 4200
    assert len(tokenizers._by_key) < 5


def test_fallback_counts_documents_and_texts_alike(tmp_path: Path) -> None:
    """If a file is unreadable, the fallback scales the total of all pieces, not each piece."""
    missing = Tokenizers([TokenizerFile(models=("claude-*",), file=str(tmp_path / "missing.json"))])
    stand_in, own = (known.for_model("claude-opus-4-6") for known in (missing, Tokenizers()))
    text = "def percent(tokens, limit):\n    return 100 * tokens // limit\n" * 2_000

    stand_in.count("a")
    assert stand_in.count(text) == own.count(text)
    document = TextDocument("untitled:x", text)
    assert document_tokens(document, stand_in) == document_tokens(document, own)
