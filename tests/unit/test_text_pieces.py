"""Tests that pieces contain the text in order, end at safe split points, and keep their counts when
joined.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sidecar.text.pieces import Piece, is_cut, merge_counted, split, split_pieces
from tests.fuzz import edits, oracle

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
