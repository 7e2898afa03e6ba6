"""Tests that lengths and offsets in code units agree with the width of each character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.text.positions import Encoding, index_of_unit, join_surrogates, units
from tests.fuzz import oracle

ENCODINGS = st.sampled_from(["utf-8", "utf-16", "utf-32"])
TEXTS = st.text(st.sampled_from("ab é字😀\ud83d\ude00\U0010ffff\x00߿ࠀ"), max_size=30)


@given(TEXTS.map(oracle.joined), ENCODINGS)
def test_the_length_is_the_sum_of_widths(text: str, encoding: Encoding) -> None:
    assert units(text, encoding) == sum(oracle.width(char, encoding) for char in text)


@given(TEXTS.map(oracle.joined), ENCODINGS, st.integers(0, 130))
def test_offset_inside_a_character_yields_that_character(
    text: str, encoding: Encoding, offset: int
) -> None:
    index = index_of_unit(text, offset, encoding)
    assert units(text[:index], encoding) <= offset
    assert index == len(text) or units(text[: index + 1], encoding) > offset


@given(TEXTS)
def test_surrogate_pairs_become_characters(text: str) -> None:
    assert join_surrogates(text) == oracle.joined(text)


def test_lone_surrogates_have_lengths() -> None:
    assert units("\ud83d", "utf-8") == 3
    assert units("\ud83d", "utf-16") == 1
    assert units("\ud83d", "utf-32") == 1


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_the_middle_of_a_surrogate_pair(offset: int, index: int) -> None:
    assert index_of_unit("😀x", offset, "utf-16") == index
