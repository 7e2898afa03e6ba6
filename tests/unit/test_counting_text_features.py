"""Tests that the features of safely split pieces add up to the features of the whole text."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import product, zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting.estimators import _LANGUAGES, NAMES, features
from sidecar.text.document import split
from tests.fuzz import edits
from tests.unit.held_out import DOCUMENTS

KINDS = "aZ5é \t\n\r./'ññßłΓяѓեאعکހกकẻა’あ漢한ﬁ😀\u0301\u00a0"
"""Characters of every class, including the classes next to safe split points."""


def differing(text: str) -> list[str]:
    """Return the features whose sum over the pieces differs from the value for the whole text."""
    summed = map(sum, zip_longest(*map(features, split(text, 1)), fillvalue=0))
    whole = zip_longest(NAMES, features(text), fillvalue=0)
    return [str(name) for (name, one), other in zip(whole, summed, strict=False) if one != other]


def assert_none_differs(texts: Iterable[str]) -> None:
    for text in texts:
        assert not differing(text), repr(text[:200])


def test_features_of_documents_add_up() -> None:
    assert_none_differs(document["text"] for document in DOCUMENTS)


@pytest.mark.parametrize("text", ["uno y dos ", "        y= 1 y , y.\n", "x y y y1 y. Y y\ny\ty "])
def test_features_of_single_letter_words_add_up(text: str) -> None:
    assert_none_differs((text, text * 100))


@pytest.mark.parametrize(
    "mark", sorted({start.decode() for _, starts in _LANGUAGES for start in starts})
)
def test_language_features_add_up_at_every_position(mark: str) -> None:
    assert_none_differs(
        before + mark + after for before, after in product(("", *KINDS), ("", *KINDS))
    )


def test_features_of_neighboring_classes_add_up() -> None:
    assert_none_differs(map("".join, product(KINDS, repeat=3)))


@pytest.mark.parametrize("seed", range(20))
def test_features_of_random_texts_add_up(seed: int) -> None:
    rng = random.Random(seed)
    texts = [edits.document_text(rng, rng.randrange(5, 300)) for _ in range(20)]
    assert_none_differs(texts)


@given(st.lists(st.sampled_from((*KINDS, *edits.SNIPPETS, " y ", "ción", " que"))).map("".join))
def test_features_add_up_around_split_points(text: str) -> None:
    assert_none_differs([text])
