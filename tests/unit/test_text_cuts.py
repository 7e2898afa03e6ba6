"""Tests the positions of safe split points, and the list of letters."""

from __future__ import annotations

import re
import unicodedata

import pytest

from sidecar.text.pieces import BREAKS, LETTERS, has_word_cut_between, is_cut, next_cut
from tests.cases import read_rows


@pytest.mark.parametrize(("before", "after"), read_rows("text", "a_cut_is_safe"))
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
