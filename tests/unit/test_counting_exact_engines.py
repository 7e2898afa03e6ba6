"""Tests exact counts: agreement with tiktoken, long runs, damaged ranks, and counting offline."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting import exact_engines
from sidecar.counting.exact_engines import (
    VOCABULARIES,
    DamagedRanksError,
    Reference,
    Vocabulary,
    engine,
    load_ranks,
    names,
)
from sidecar.counting.tokenizer_choice import Tokenizers
from tests.cases import read_rows
from tests.fuzz import differences, edits

TEXTS = st.lists(
    st.one_of(st.sampled_from((*edits.SNIPPETS, *edits.STOCK)), st.text(max_size=8)), max_size=10
).map("".join)
BASES = ("o200k_base", "cl100k_base")
MILLION = 1_000_000


@pytest.mark.parametrize(("name", "text", "tokens"), read_rows("counting", "known_counts"))
def test_known_counts(name: str, text: str, tokens: int) -> None:
    assert engine(name).count(text) == Reference(name).count(text) == tokens


@given(TEXTS, st.sampled_from(BASES))
def test_engines_agree(text: str, name: str) -> None:
    full = Reference(name).count_whole(text)
    assert engine(name).count(text) == Reference(name).count(text) == full


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("seed", range(6))
def test_long_text_has_the_same_count_in_pieces(name: str, seed: int) -> None:
    text = edits.document_text(random.Random(seed), 60_000)
    full = Reference(name).count_whole(text)
    assert engine(name).count(text) == Reference(name).count(text) == full


@pytest.mark.parametrize("name", BASES)
def test_engines_make_the_same_tokens(name: str) -> None:
    """Checks a sample of the characters. `tests.fuzz.differences` checks all of them."""
    texts = [
        *differences.in_contexts(differences.code_points(step=149, start=7)),
        *differences.contractions(random.Random(2), 4_000),
    ]
    ours, truth = differences.fast(name), differences.reference(name)
    assert [*differences.differing(texts, ours, truth)] == []


@pytest.mark.parametrize("name", [*BASES, "o200k_harmony"])
def test_special_tokens_in_text_are_ordinary_characters(name: str) -> None:
    """splintr knows special tokens of its own, such as `<|think|>`."""
    special = sorted(exact_engines.splintr_tokenizer(name).special_tokens())
    texts = [
        text for token in special for text in (token, f"a{token}b ", f"<|{token[:-1]} {token}")
    ]
    texts += ["plain", "", "x <|think|> y\n" * 400, "\ud83d<|endoftext|>\ude00", "\ud83d"]
    assert engine(name).count_many(texts) == [Reference(name).count(text) for text in texts]
    assert [engine(name).count(text) for text in texts] == engine(name).count_many(texts)


def test_lone_surrogates_count_as_replacement_characters() -> None:
    texts = [f"a{bad}b" for bad in ("\ud83d", "\ude00", "�")]
    for name in BASES:
        (count,) = {Reference(name).count(text) for text in texts}
        assert [engine(name).count(text) for text in texts] == [count] * 3
        assert engine(name).count_many(texts) == [count] * 3


RUNS = {
    " ": (7_813, 7_813),
    "a": (125_000, 125_000),
    "\0": (500_000, 1_000_000),
    "\n": (62_500, 31_250),
    "-": (15_625, 15_625),
}


@pytest.mark.parametrize("character", RUNS)
def test_million_equal_characters(character: str) -> None:
    for name, tokens in zip(BASES, RUNS[character], strict=True):
        assert engine(name).count(character * MILLION) == tokens


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize(
    "text",
    ["{}", "{}x", "x{}x", "\n{}", "a\n\n{}", "!\n{}", "{}\n", "{}\n{}", "{}\n{}x", "x{}/{}y"],
)
def test_long_runs_of_blanks_are_counted_exactly(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lowers the limit for long runs, because tiktoken cannot count really long runs as a whole."""
    few = text.format(*[" \t" * 40] * 2)
    truth = len(Reference(name).tokens(few))
    blanks = f"[{exact_engines.BLANK}]"
    monkeypatch.setattr(exact_engines, "MANY_BLANKS", 20)
    monkeypatch.setattr(exact_engines, "LONG_BLANKS", re.compile(f"(?<!{blanks}){blanks}{{20,}}+"))
    assert Reference(name).count_whole(few) == truth


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("text", ["{}x", "!\n{}"])
def test_tiktoken_alone_survives_a_million_blanks(name: str, text: str) -> None:
    many = text.format(" " * MILLION)
    assert Reference(name).count_whole(many) == engine(name).count(many)


def test_without_splintr_tiktoken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_engines, "find_spec", lambda _: None)
    engine.cache_clear()
    try:
        assert isinstance(engine("cl100k_base"), Reference)
        assert engine("cl100k_base").count("hello world") == 2
    finally:
        engine.cache_clear()


def test_engine_is_loaded_by_its_first_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing the models must not load the engines, which need 30 MB each."""
    loads, real = list[str](), exact_engines.splintr_tokenizer

    def load(name: str) -> Any:
        loads.append(name)
        return real(name)

    monkeypatch.setattr(exact_engines, "splintr_tokenizer", load)
    engine.cache_clear()
    tokenizers = Tokenizers()
    assert tokenizers.describe("gpt-4") == ("cl100k_base", "exact")
    assert tokenizers.describe("claude-sonnet-4-5")[1] != "exact"
    assert loads == []
    assert [tokenizers.for_model("gpt-4").count("hello world") for _ in range(3)] == [2, 2, 2]
    assert loads == ["cl100k_base"]


def test_threads_count_with_one_engine() -> None:
    texts = [edits.document_text(random.Random(seed), 5_000) for seed in range(8)]
    truth = [Reference("o200k_base").count(text) for text in texts]
    engine.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(engine("o200k_base").count, texts * 4)] == truth * 4


def test_engines_are_created_once_with_their_names() -> None:
    for name in names():
        made = engine(name)
        assert made is engine(name)
        assert (made.name, made.method, made.error_percent) == (name, "exact", 0.0)
        assert made.has_safe_cuts
    with pytest.raises(KeyError):
        engine("p50k_base")


def test_patterns_and_ranks_equal_tiktokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiktoken_ext import openai_public  # type: ignore[import-untyped,unused-ignore]

    seen: dict[str, str] = {}

    def note(url: str, expected_hash: str) -> dict[bytes, int]:
        seen["sha256"] = expected_hash
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", note)
    for name, vocabulary in VOCABULARIES.items():
        theirs = getattr(openai_public, name)()
        assert theirs["pat_str"] == vocabulary.pattern
        assert seen["sha256"] == vocabulary.sha256


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_damaged_ranks_are_refused(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    import importlib.resources

    (tmp_path / "ranks").mkdir()
    file = tmp_path / "ranks" / "small.tiktoken.gz"
    data = gzip.compress(b"IQ== 0\nIg== 1\n")
    if damage != "missing":
        file.write_bytes(data if damage == "changed" else data[:-4])
    monkeypatch.setattr(importlib.resources, "files", lambda _: tmp_path)
    small = Vocabulary("small", "small", VOCABULARIES["cl100k_base"].sha256, "x")
    with pytest.raises(DamagedRanksError, match="install token-sidecar again"):
        load_ranks(small)


def test_first_count_needs_neither_network_nor_tiktoken() -> None:
    code = """
import socket, sys
def refuse(*a, **k): raise OSError("no network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from sidecar.counting.exact_engines import Reference, engine
assert engine("o200k_base").count("hello world") == 2
print([m for m in ("tiktoken", "requests", "urllib3") if m in sys.modules])
assert Reference("cl100k_base").count("hello world") == 2
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
