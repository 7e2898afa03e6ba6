"""Tests SentencePiece vocabularies from `.model` files and GGUF headers."""

from __future__ import annotations

import io
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.counting.vocabulary_files import (
    SentencePieceTokenizer,
    VocabularyError,
    load,
    tokenizer_from_pieces,
)
from tests.fuzz.edits import STOCK

SAMPLE = [line for text in STOCK for line in text.splitlines() if line.isprintable() and line] * 3
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["hello", " ", "  ", "\n", "日本", "😀", "é", "<s>", "▁", "12", "\t", "x = 1"]
        ),
        st.text(max_size=5),
    ),
    max_size=25,
).map("".join)


@cache
def trained(kind: str) -> bytes:
    """Train a small SentencePiece model, either BPE (like Llama 2) or Unigram."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SAMPLE),
        model_writer=made,
        model_type=kind,
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return made.getvalue()


@cache
def library(kind: str) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=trained(kind))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_file_is_recognized_by_its_first_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(kind))
    tokenizer = load(path, "mine")
    assert (tokenizer.name, tokenizer.method, tokenizer.error_percent) == ("mine", "exact", 0.0)
    text = "\n".join(SAMPLE[:200])
    assert tokenizer.count(text) == len(library(kind).encode(text)) > 0
    assert tokenizer.count("") == 0
    assert tokenizer.count("a \ud800 b") > 0, "lone surrogates"


def pieces() -> tuple[list[str], list[float], list[int]]:
    """Return the pieces, scores and types for a GGUF header."""
    model = library("bpe")

    def kind(one: int) -> int:
        checks = ((model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6))
        return next((kind for check, kind in checks if check(one)), 1)

    ids = range(model.get_piece_size())
    return (
        [model.id_to_piece(one) for one in ids],
        [model.get_score(one) for one in ids],
        [kind(one) for one in ids],
    )


@cache
def rebuilt(*, space_before: bool) -> SentencePieceTokenizer:
    return tokenizer_from_pieces("mine", *pieces(), space_before=space_before)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_rebuilt_tokenizer_equals_the_original_model(text: str) -> None:
    assert rebuilt(space_before=True).count(text) == len(library("bpe").encode(text))


def test_gguf_determines_whether_a_space_is_added(tmp_path: Path) -> None:
    counts = []
    for before in (True, False):
        path = tmp_path / f"{before}.gguf"
        path.write_bytes(gguf(before))
        counts.append(load(path, "mine").count("hello"))
        assert counts[-1] == rebuilt(space_before=before).count("hello")
    assert rebuilt(space_before=True).count("▁") != rebuilt(space_before=False).count("▁")


def gguf(space_before: bool) -> bytes:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    tokens, scores, types = pieces()
    count = struct.pack("<Q", len(tokens))
    pairs = [
        string("tokenizer.ggml.model") + struct.pack("<I", 8) + string("llama"),
        string("tokenizer.ggml.tokens")
        + struct.pack("<II", 9, 8) + count + b"".join(map(string, tokens)),
        string("tokenizer.ggml.scores")
        + struct.pack("<II", 9, 6) + count + struct.pack(f"<{len(scores)}f", *scores),
        string("tokenizer.ggml.token_type")
        + struct.pack("<II", 9, 5) + count + struct.pack(f"<{len(types)}i", *types),
        string("tokenizer.ggml.add_space_prefix") + struct.pack("<IB", 7, space_before),
    ]  # fmt: skip
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs)) + b"".join(pairs)


@pytest.mark.parametrize("cut", [1, 40, 4_000])
def test_a_damaged_model_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained("bpe")[:-cut])
    with pytest.raises(VocabularyError, match="cannot read it"):
        load(path, "mine")


@pytest.mark.parametrize(
    ("kind", "why"), [("bert", "WordPiece"), ("t5", "Unigram"), ("newest", "is unknown")]
)
def test_unsupported_vocabulary_has_a_reason(kind: str, why: str, tmp_path: Path) -> None:
    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
    path = tmp_path / "model.gguf"
    path.write_bytes(head + string("tokenizer.ggml.model") + struct.pack("<I", 8) + string(kind))
    with pytest.raises(VocabularyError, match=why):
        load(path, "mine")
