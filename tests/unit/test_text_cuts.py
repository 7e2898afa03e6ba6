"""Tests safe split points, where the tokens of both parts add up, and the list of letters."""

from __future__ import annotations

import random
import re
import unicodedata
from functools import cache

import pytest
import tiktoken

from sidecar.counting import vocabulary_files
from sidecar.counting.exact_engines import VOCABULARIES, Reference, load_ranks
from sidecar.counting.vocabulary_files import Pattern
from sidecar.text.pieces import BREAKS, LETTERS, has_word_cut_between, is_cut, next_cut
from tests.cases import read_rows
from tests.fuzz import edits


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
