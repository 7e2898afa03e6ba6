"""Tests safe split points, where the tokens of both parts add up, and the pieces between them."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting import vocabulary_files
from sidecar.counting.exact_engines import VOCABULARIES, Reference, load_ranks
from sidecar.counting.vocabulary_files import Pattern
from sidecar.text.document import (
    BREAKS,
    LETTERS,
    Piece,
    has_word_cut_between,
    is_cut,
    merge_counted,
    next_cut,
    split,
    split_pieces,
)
from tests.cases import read_rows
from tests.fuzz import edits, oracle


@pytest.mark.parametrize(("before", "after"), read_rows("text", "safe_cuts"))
def test_a_cut_is_safe(before: str, after: str) -> None:
    assert is_cut(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("don", "'t"),  # the apostrophe may start a contraction
        ("wor", "d"),
        ("12", "3"),
        ("3", "d"),
        (" ", "word"),
        ("!", "\n"),
        (";\n", "/ slash"),  # o200k merges the slash with the preceding punctuation
        (";\n", "   "),  # cl100k matches all trailing blanks at once
        (";\n", " \n x"),
        (";\n", ""),
        ("\r", "\nx"),
        (";\r", "x"),
        ("e", "\u0301"),  # in o200k, a combining mark is part of the letter
        ("カタカナ", "ー"),
        ("ſ", " "),
        ("", "x"),
        ("x", ""),
        ("\ud83d", "\ude00"),
    ],
)
def test_a_cut_is_not_safe(before: str, after: str) -> None:
    assert not is_cut(before, after)


def test_line_cut_is_not_a_word_cut() -> None:
    assert is_cut(";\n", "x")
    assert not has_word_cut_between(";\n", "x")
    assert has_word_cut_between("x", "\n")


def test_next_cut_returns_the_first_cut() -> None:
    text = "don't stop;\n\n  now"
    assert [text[: next_cut(text, start)] for start in (0, 5, 10)] == [
        "don't",
        "don't stop",
        "don't stop;\n\n",
    ]
    assert next_cut(text, len("don't stop;\n\n")) is None
    assert next_cut("'''" * 50, 0) is None


def test_letters_and_breaks_are_disjoint() -> None:
    """All characters in the list are letters in Unicode, and therefore in all tokenizers."""
    every = "".join(map(chr, range(0x10000)))
    letters = set(re.findall(f"[{LETTERS}]", every))
    kinds = {unicodedata.category(letter) for letter in letters}
    assert kinds <= {"Lu", "Ll", "Lt", "Lm", "Lo"}
    breaks = set(re.findall(f"[{BREAKS}]", every))
    assert not breaks & letters
    assert "'" not in breaks
    assert {unicodedata.category(char)[0] for char in breaks} <= {"P", "S", "Z", "C"}
    ascii_only = {chr(code) for code in range(128)}
    assert ascii_only - letters - breaks == set("'0123456789>_|]-:")


PATTERNS = {
    pattern.name: pattern
    for pattern in vars(vocabulary_files).values()
    if isinstance(pattern, Pattern) and pattern.has_safe_cuts
}
# With so few characters, all sequences of two or three occur often.
ALPHABET = "aB1 \t\n\r/'.s字ー。é😀\u0301\u3000\x1c<"


@cache
def ranks() -> dict[bytes, int]:
    """Return arbitrary ranks. Only the split pattern matters in these tests."""
    return load_ranks(VOCABULARIES["cl100k_base"])


@cache
def encoding(name: str) -> tiktoken.Encoding:
    if name in ("o200k", "cl100k"):
        return Reference(f"{name}_base")._get_encoding()
    expression = PATTERNS[name].expression
    return tiktoken.Encoding(name, pat_str=expression, mergeable_ranks=ranks(), special_tokens={})


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    short = ["".join(rng.choices(ALPHABET, k=rng.randrange(2, 14))) for _ in range(5_000)]
    mixed = [edits.document_text(rng, 150) for _ in range(25)]
    return short + [text.encode("utf-8", "replace").decode() for text in mixed]


def test_the_patterns_with_cuts_are_found() -> None:
    assert {"cl100k", "o200k", "llama3", "qwen2"} <= PATTERNS.keys()


@pytest.mark.parametrize("name", PATTERNS)
def test_every_safe_cut_is_exact(name: str) -> None:
    encode = encoding(name).encode_ordinary
    checked = 0
    for text in texts(len(name)):
        whole = encode(text)
        for at in range(1, len(text)):
            if is_cut(text[:at], text[at:]):
                checked += 1
                assert encode(text[:at]) + encode(text[at:]) == whole, (text, at)
    assert checked > 2_000


def test_gpt2_has_no_line_cuts() -> None:
    encode = tiktoken.Encoding(
        "gpt2", pat_str=vocabulary_files.GPT2.expression, mergeable_ranks=ranks(), special_tokens={}
    ).encode_ordinary
    assert is_cut(";\n\n", "a")
    assert encode(";\n\n") + encode("a") != encode(";\n\na")


TEXTS = st.lists(st.sampled_from((*edits.SNIPPETS, *edits.STOCK)), max_size=12).map("".join)


@given(TEXTS, st.integers(1, 80))
def test_splitting_keeps_the_text_and_cuts_safely(text: str, characters: int) -> None:
    parts = list(split(text, characters))
    assert "".join(parts) == text
    assert all(parts) or parts == [""]
    assert all(is_cut(before, after) for before, after in pairwise(parts))


def test_text_without_split_points_stays_one_piece() -> None:
    assert list(split("x" * 1000, 10)) == ["x" * 1000]
    assert next(split("x" * 1000 + " y" * 10, 10)) == "x" * 1000


def test_pieces_have_about_the_requested_length() -> None:
    pieces = split_pieces(edits.document_text(Random(1), 50_000), 1_000)
    assert 40 <= len(pieces) <= 52


@given(TEXTS)
def test_line_ends_and_starts(text: str) -> None:
    piece = Piece(text)
    spans = oracle.lines(text)
    assert piece.line_starts == [start for start, _ in spans[1:]]
    assert piece.line_ends == len(spans) - 1
    for number, (start, end) in enumerate(spans):
        assert piece.line_end(start) == (end, number + 1 < len(spans))


def test_only_three_sequences_end_lines() -> None:
    assert Piece("a\x0bb\x0cc\x1cd\x1ee\x85f\u2028g\u2029h").line_ends == 0
    assert Piece("a\rb\r\nc\nd\n\re").line_ends == 5


def test_merging_adds_counts_up() -> None:
    pieces = [Piece("a b", {"x": 1, "y": 2}), Piece(" c", {"x": 3}), Piece(" d", {"x": 4, "y": 5})]
    (merged,) = merge_counted(pieces, 100)
    assert merged.text == "a b c d"
    assert merged.counts == {"x": 8}


def test_merging_keeps_counts_in_use() -> None:
    counted, fresh = Piece("a", {"x": 1}), Piece(" b")
    assert merge_counted([counted, fresh, counted], 100) == [counted, fresh, counted]
    assert [piece.text for piece in merge_counted([fresh, fresh], 100)] == [" b b"]


def test_merged_pieces_are_not_too_long() -> None:
    pieces = [Piece("x" * 40) for _ in range(5)]
    assert [len(piece) for piece in merge_counted(pieces, 100)] == [80, 80, 40]


def test_a_piece_does_not_show_its_text() -> None:
    assert "secret" not in repr(Piece("secret"))
