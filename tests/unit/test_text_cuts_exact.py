"""Tests that splitting a text at a safe point does not change the total number of tokens."""

from __future__ import annotations

import random
from functools import cache

import pytest
import tiktoken

from sidecar.counting import vocabulary_files
from sidecar.counting.exact_engines import VOCABULARIES, Reference, load_ranks
from sidecar.counting.vocabulary_files import Pattern
from sidecar.text.pieces import is_cut
from tests.fuzz import edits

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
