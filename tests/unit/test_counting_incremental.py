"""Tests that incremental counts equal full counts, and tokenize only text near an edit."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.counting.count_result import Method
from sidecar.counting.exact_engines import Reference, engine
from sidecar.counting.tokenizer_interface import Tokenizer, count_pieces, countable_pieces
from sidecar.errors import WorkStoppedError
from sidecar.text.document import PIECE_CHARACTERS, Range, TextDocument
from tests.document_counts import document_tokens, pending_characters
from tests.fuzz import edits, soak

TEXTS = st.lists(st.sampled_from((*edits.SNIPPETS, *edits.STOCK)), max_size=12).map("".join)
BASES = ("o200k_base", "cl100k_base")


class RecordingTokenizer(Tokenizer):
    """An exact tokenizer that records the texts it counts."""

    def __init__(self, has_safe_cuts: bool = True, name: str = "recording") -> None:
        self.name = name
        self.has_safe_cuts = has_safe_cuts
        self.given: list[str] = []

    def count(self, text: str) -> int:
        self.given.append(text)
        return engine("o200k_base").count(text)

    @property
    def characters(self) -> int:
        return sum(map(len, self.given))


class TripledTokenizer(Tokenizer):
    """Multiplies the counts of another tokenizer by three. The minimum is one."""

    name = "scaled"
    method: Method = "estimate"
    error_percent = None

    def __init__(self, recording: RecordingTokenizer) -> None:
        self.recording = recording

    @property
    def base(self) -> RecordingTokenizer:
        return self.recording

    def scale(self, tokens: int) -> int:
        return 3 * tokens + 1

    def count(self, text: str) -> int:
        return self.scale(self.base.count(text))


def code(characters: int) -> TextDocument:
    repeats = characters // len(edits.CODE) + 1
    return TextDocument("untitled:code", (edits.CODE * repeats)[:characters])


def insert(doc: TextDocument, offset: int, text: str) -> None:
    place = doc.position_at(offset)
    doc.apply(Range(place, place), text)


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 100))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_edits_count_as_tiktoken_does(seed: int) -> None:
    """Runs `python -m tests.fuzz.soak` with fewer edits."""
    soak.soak_document(seed, 60, BASES)


@given(TEXTS, TEXTS, st.integers(0, 60), st.integers(0, 60), st.sampled_from(BASES))
def test_edits_with_tiny_pieces(text: str, new: str, start: int, length: int, name: str) -> None:
    doc = TextDocument("untitled:x", text, piece_characters=12)
    document_tokens(doc, engine(name))
    end = doc.position_at(start + length)
    doc.apply(Range(doc.position_at(start), end), new)
    assert document_tokens(doc, engine(name)) == Reference(name).count_whole(doc.text)


EDITS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20), TEXTS), max_size=6)


@given(TEXTS, EDITS, st.sampled_from((12, 64, 256)), st.sampled_from(BASES))
def test_several_edits_before_one_count(
    text: str, changes: list[tuple[int, int, str]], piece: int, name: str
) -> None:
    """An edit may affect pieces that have not been counted yet."""
    doc = TextDocument("untitled:x", text, piece_characters=piece)
    document_tokens(doc, engine(name))
    for start, length, new in changes:
        end = doc.position_at(start + length)
        doc.apply(Range(doc.position_at(start), end), new)
    assert document_tokens(doc, engine(name)) == Reference(name).count_whole(doc.text)


@given(TEXTS, st.integers(0, 200), st.integers(0, 200), st.sampled_from(BASES))
def test_range_has_the_count_of_its_text(text: str, one: int, other: int, name: str) -> None:
    doc = TextDocument("untitled:x", text, piece_characters=12)
    span = Range(doc.position_at(min(one, other)), doc.position_at(max(one, other)))
    pieces = doc.pieces_in(span)
    part = "".join(piece.text for piece in pieces)
    assert count_pieces(pieces, engine(name)) == Reference(name).count_whole(part)


@pytest.mark.parametrize("characters", [10_000, 100_000, 1_000_000])
def test_an_edit_tokenizes_the_piece_that_it_touches(characters: int) -> None:
    doc, recording = code(characters), RecordingTokenizer()
    assert pending_characters(doc, recording) == characters
    document_tokens(doc, recording)
    assert recording.characters == characters
    places = [characters // 2 + step for step in range(60)]
    places += [step * 7_919_317 % characters for step in range(200)]
    for step, place in enumerate(places):
        recording.given.clear()
        insert(doc, place, "x" if step < 60 else "y, z")
        pending = pending_characters(doc, recording)
        document_tokens(doc, recording)
        assert recording.characters == pending <= 3 * PIECE_CHARACTERS
    assert document_tokens(doc, recording) == Reference("o200k_base").count_whole(doc.text)


def test_uncounted_edits_tokenize_only_their_pieces() -> None:
    doc, recording = code(100_000), RecordingTokenizer()
    document_tokens(doc, recording)
    for step in range(1_000):
        insert(doc, 50_000 + step % 50, "ab"[step % 2])
    recording.given.clear()
    document_tokens(doc, recording)
    assert recording.characters <= 3 * PIECE_CHARACTERS
    assert document_tokens(doc, recording) == Reference("o200k_base").count_whole(doc.text)


def test_joining_pieces_again_tokenizes_nothing() -> None:
    doc, recording = code(400_000), RecordingTokenizer()
    document_tokens(doc, recording)
    most = 0
    for step in range(600):
        insert(doc, step * 104_729 % doc.characters, "; ")
        most = max(most, len(doc.pieces))
        document_tokens(doc, recording)
    assert most <= 3 * doc.characters // (2 * PIECE_CHARACTERS) + 64 + 64
    recording.given.clear()
    assert document_tokens(doc, recording) == engine("o200k_base").count(doc.text)
    assert recording.given == []


def test_full_replacement_tokenizes_only_the_difference() -> None:
    doc, recording = code(200_000), RecordingTokenizer()
    document_tokens(doc, recording)
    recording.given.clear()
    doc.apply(None, doc.text[:90_000] + "changed" + doc.text[90_000:])
    document_tokens(doc, recording)
    assert recording.characters <= 10_240


def test_a_tokenizer_without_safe_cuts_counts_the_complete_text_again() -> None:
    doc, recording = code(200_000), RecordingTokenizer(has_safe_cuts=False)
    document_tokens(doc, recording)
    recording.given.clear()
    insert(doc, 100_000, "x")
    tokens = document_tokens(doc, recording)
    assert recording.given == [doc.text]
    assert tokens == engine("o200k_base").count(doc.text)
    recording.given.clear()
    assert document_tokens(doc, recording) == tokens
    assert pending_characters(doc, recording) == 0


def test_text_is_not_split_for_an_unknown_tokenizer() -> None:
    class PlainTokenizer(Tokenizer):
        name = "plain"

        def count(self, text: str) -> int:
            return len(text)

    doc = code(50_000)
    assert [len(unit) for unit in countable_pieces(doc, PlainTokenizer())] == [50_000]
    assert document_tokens(doc, PlainTokenizer()) == 50_000


def test_a_scaled_count_is_scaled_once() -> None:
    doc, base = code(50_000), RecordingTokenizer()
    exact = engine("o200k_base").count(doc.text)
    assert document_tokens(doc, TripledTokenizer(base)) == 3 * exact + 1
    assert pending_characters(doc, TripledTokenizer(base)) == 0
    assert TripledTokenizer(base).count(doc.text) == 3 * exact + 1


def test_stopped_background_count_continues_later() -> None:
    doc, recording = code(400_000), RecordingTokenizer()
    pieces = countable_pieces(doc, recording)
    with pytest.raises(WorkStoppedError):
        count_pieces(pieces, recording, lambda: bool(recording.given))
    assert 0 < len(recording.given) < len(pieces)
    count_pieces(pieces, recording, lambda: False)
    assert recording.characters == 400_000


def test_counting_while_editing() -> None:
    """The final count is exact even though workers count snapshots during the edits."""
    rng = random.Random(7)
    for name in BASES:
        doc = code(60_000)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(150):
                jobs = [
                    pool.submit(count_pieces, countable_pieces(doc, engine(name)), engine(name))
                ]
                doc.apply(*edits.edit(rng, doc))
                jobs.append(
                    pool.submit(count_pieces, countable_pieces(doc, engine(name)), engine(name))
                )
                doc.apply(*edits.edit(rng, doc))
                for job in jobs:
                    job.result()
        assert document_tokens(doc, engine(name)) == Reference(name).count_whole(doc.text)
