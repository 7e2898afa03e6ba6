"""Tests exact counts: agreement with tiktoken, long runs, damaged ranks, and counting offline."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

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
    is_disputed,
    load_ranks,
    names,
)
from sidecar.counting.model_tokenizers import Tokenizers
from tests.fuzz import differences, edits

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.counting.exact_engines import Purpose

TEXTS = st.lists(
    st.one_of(st.sampled_from((*edits.SNIPPETS, *edits.STOCK)), st.text(max_size=8)), max_size=10
).map("".join)
BASES = ("o200k_base", "cl100k_base")
PURPOSES: tuple[Purpose, ...] = ("interactive", "bulk", "reference")
MILLION = 1_000_000


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("o200k_base", "hello world", 2),
        ("o200k_base", "antidisestablishmentarianism", 6),
        ("cl100k_base", "hello world", 2),
        ("o200k_base", "", 0),
        ("o200k_base", "<|endoftext|>", 7),
        ("cl100k_base", "<|endoftext|>", 7),
        ("o200k_harmony", "<|start|>user<|message|>", 11),
    ],
)
def test_known_counts(name: str, text: str, tokens: int, purpose: Purpose) -> None:
    assert engine(name, purpose).count(text) == tokens


@given(TEXTS, st.sampled_from(BASES))
def test_engines_agree(text: str, name: str) -> None:
    full = Reference(name).count_whole(text)
    assert {engine(name, purpose).count(text) for purpose in PURPOSES} == {full}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("seed", range(6))
def test_long_text_has_the_same_count_in_pieces(name: str, seed: int) -> None:
    text = edits.document_text(random.Random(seed), 60_000)
    full = Reference(name).count_whole(text)
    assert {engine(name, purpose).count(text) for purpose in PURPOSES} == {full}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("engine_name", ["rs-bpe", "toktok"])
def test_known_differences_between_engines_are_complete(engine_name: str, name: str) -> None:
    """Checks a sample of the characters. `tests.fuzz.differences` checks all of them."""
    texts = [
        *differences.in_contexts(differences.code_points(step=149, start=7)),
        *differences.contractions(random.Random(2), 4_000),
    ]
    ours, truth = differences.fast(engine_name, name), differences.reference(name)
    assert [
        text for text in differences.differing(texts, ours, truth) if not is_disputed(text)
    ] == []


def test_disputed_text_is_counted_by_the_reference() -> None:
    text = "'ſ'ſ and \U00010940x\u088f"
    assert is_disputed(text)
    for name in BASES:
        wrong = exact_engines.FastEngine(name, lambda _: -1)
        assert wrong.count(text) == Reference(name).count_whole(text)
        assert wrong.count("plain") == -1


def test_every_disputed_character_is_found() -> None:
    """The fast search looks only for first bytes, but must find all disputed characters."""
    known = exact_engines._DISPUTED.findall("".join(differences.code_points()))
    assert len(known) == 4_700
    assert all(is_disputed(f"plain {character} text") for character in known)
    assert not is_disputed("Ünïcödé 字 😀 \u1ac0 \ua7c1 \U0001093f \U0001e6fd")


def test_lone_surrogates_count_as_replacement_characters() -> None:
    for name in BASES:
        for purpose in PURPOSES:
            counts = {engine(name, purpose).count(f"a{bad}b") for bad in ("\ud83d", "\ude00", "�")}
            assert len(counts) == 1


RUNS = {
    " ": (7_813, 7_813),
    "a": (125_000, 125_000),
    "\0": (500_000, 1_000_000),
    "\n": (62_500, 31_250),
    "-": (15_625, 15_625),
}


@pytest.mark.parametrize("make", [exact_engines.rs_bpe, exact_engines.toktok])
@pytest.mark.parametrize("character", RUNS)
def test_million_equal_characters(
    character: str, make: Callable[[str], exact_engines.FastEngine]
) -> None:
    for name, tokens in zip(BASES, RUNS[character], strict=True):
        assert make(name).count(character * MILLION) == tokens


@pytest.mark.parametrize("character", [" ", "a"])
def test_million_equal_characters_are_counted_by_tiktoken(character: str) -> None:
    """A single long piece is counted by tiktoken, which releases the GIL."""
    assert engine("o200k_base").count(character * MILLION) == RUNS[character][0]


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
    assert Reference(name).count_whole(many) == engine(name, "bulk").count(many)


def test_slow_pieces_are_detected_before_counting() -> None:
    interactive = engine("o200k_base")
    assert isinstance(interactive, exact_engines.FastEngine)
    assert interactive.is_slow("ſ")
    assert interactive.is_slow("a" * 70_000)
    assert not interactive.is_slow("plain " * 1_000)


def test_without_the_fast_engines_tiktoken_counts(monkeypatch: pytest.MonkeyPatch) -> None:

    def missing(*_: Any) -> Any:
        raise ImportError

    monkeypatch.setattr(exact_engines, "rs_bpe", missing)
    monkeypatch.setattr(exact_engines, "toktok", missing)
    monkeypatch.setattr("sidecar.counting.exact_engines._engines", {})
    for purpose in PURPOSES:
        assert isinstance(engine("cl100k_base", purpose), Reference)
        assert engine("cl100k_base", purpose).count("hello world") == 2


def test_engine_is_loaded_by_its_first_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing the models must not load the engines, which need 33 MB of tables."""
    loads, real = list[str](), exact_engines._rs_bpe

    def load(name: str) -> Any:
        loads.append(name)
        return real(name)

    monkeypatch.setattr(exact_engines, "_rs_bpe", load)
    monkeypatch.setattr("sidecar.counting.exact_engines._engines", {})
    tokenizers = Tokenizers()
    assert tokenizers.describe("gpt-4") == ("cl100k_base", "exact")
    assert tokenizers.describe("claude-sonnet-4-5")[1] != "exact"
    assert loads == []
    assert [tokenizers.for_model("gpt-4").count("hello world") for _ in range(3)] == [2, 2, 2]
    assert loads == ["cl100k_base"]


def test_engines_are_created_once_with_their_names() -> None:
    for name in names():
        for purpose in PURPOSES:
            made = engine(name, purpose)
            assert made is engine(name, purpose)
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
from sidecar.counting.exact_engines import engine
assert engine("o200k_base").count("hello world") == 2
print([m for m in ("tiktoken", "toktok", "requests", "urllib3") if m in sys.modules])
assert engine("cl100k_base", "reference").count("hello world") == 2
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
