"""Tests documents and code units in all position encodings, against the simple model in
`tests.fuzz.oracle`.
"""

from __future__ import annotations

import asyncio
import random
import re
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.counting.counts import SnapshotCounter
from sidecar.counting.exact_engines import engine
from sidecar.counting.open_documents import Documents
from sidecar.tasks import Workers
from sidecar.text import document as text_document
from sidecar.text.document import (
    MAX_SEARCH,
    PIECE_CHARACTERS,
    Encoding,
    Piece,
    Position,
    Range,
    TextDocument,
    index_of_unit,
    is_cut,
    join_surrogates,
    units,
)
from tests.document_counts import document_tokens, pending_characters
from tests.fuzz import edits, oracle

ENCODINGS = st.sampled_from(["utf-8", "utf-16", "utf-32"])
TEXTS = st.lists(st.sampled_from((*edits.SNIPPETS, *edits.STOCK)), max_size=12).map("".join)
POSITIONS = st.builds(Position, st.integers(0, 12), st.integers(0, 40))
EDITS = st.lists(
    st.tuples(POSITIONS, POSITIONS, st.sampled_from((*edits.SNIPPETS, *edits.STOCK))), max_size=8
)
SIZES = st.sampled_from([8, 32, 200, 8_192])


def document(text: str, encoding: Encoding = "utf-16", size: int = 32) -> TextDocument:
    return TextDocument(
        "untitled:x", text, 1, encoding, "text", piece_characters=size, spare_pieces=4
    )


def span(start: Position, end: Position) -> Range:
    return Range(min(start, end), max(start, end))


def at(line: int, character: int) -> Range:
    return Range(Position(line, character), Position(line, character))


def whole(doc: TextDocument) -> Range:
    return Range(Position(0, 0), doc.position_at(doc.characters))


@given(TEXTS, ENCODINGS, SIZES, EDITS)
@example("ab\r\ncd", "utf-16", 32, [(Position(0, 99), Position(0, 99), "!")])
@example("a😀b", "utf-16", 32, [(Position(0, 2), Position(0, 2), "-")])
@example("a😀b", "utf-8", 32, [(Position(0, 0), Position(0, 4), "")])
def test_edits_equal_those_of_a_plain_string(
    text: str, encoding: Encoding, size: int, changes: list[tuple[Position, Position, str]]
) -> None:
    doc, text = document(text, encoding, size), oracle.joined(text)
    for start, end, new in changes:
        text = oracle.edited(text, span(start, end), new, encoding)
        doc.apply(span(start, end), new)
        assert doc.text == text
        assert doc.characters == len(text)
        assert [doc.line(index) for index in range(doc.line_count)] == [
            text[start:end] for start, end in oracle.lines(text)
        ]
        assert "".join(piece.text for piece in doc.pieces) == text
        assert all(is_cut(a.text, b.text) for a, b in pairwise(doc.pieces))


@given(TEXTS, ENCODINGS, SIZES, POSITIONS)
def test_positions_equal_those_of_a_plain_string(
    text: str, encoding: Encoding, size: int, position: Position
) -> None:
    doc, text = document(text, encoding, size), oracle.joined(text)
    assert doc.offset_at(position) == oracle.offset(text, position, encoding)
    for offset in range(len(text) + 1):
        assert doc.position_at(offset) == oracle.position(text, offset, encoding)


@given(TEXTS, ENCODINGS, SIZES, POSITIONS, POSITIONS)
def test_slices_and_their_pieces(
    text: str, encoding: Encoding, size: int, one: Position, other: Position
) -> None:
    doc, text = document(text, encoding, size), oracle.joined(text)
    part = span(one, other)
    start, end = (oracle.offset(text, edge, encoding) for edge in (part.start, part.end))
    pieces = doc.pieces_in(part)
    assert "".join(piece.text for piece in pieces) == text[start:end]
    assert all(is_cut(a.text, b.text) for a, b in pairwise(pieces))


@given(TEXTS, TEXTS, SIZES)
def test_replacing_everything(old: str, new: str, size: int) -> None:
    doc = document(old, size=size)
    doc.apply(None, new)
    assert doc.text == oracle.joined(new)


def test_replacing_everything_keeps_equal_pieces() -> None:
    text = edits.CODE * 20
    doc = document(text, size=100)
    before = doc.pieces
    middle = len(text) // 2
    doc.apply(None, text[:middle] + "changed" + text[middle:])
    assert len(set(before) - set(doc.pieces)) == 1
    doc.apply(None, doc.text)
    assert len(set(before) - set(doc.pieces)) <= 2


def test_the_empty_document() -> None:
    doc = document("")
    assert (doc.text, doc.characters, doc.line_count, doc.line(0)) == ("", 0, 1, "")
    assert [piece.text for piece in doc.pieces] == [""]
    assert doc.position_at(0) == Position(0, 0)
    doc.apply(at(5, 5), "new")
    assert doc.text == "new"
    doc.apply(whole(doc), "")
    assert doc.text == ""
    assert [piece.text for piece in doc.pieces] == [""]


def test_separately_inserted_surrogates_form_one_character() -> None:
    doc = document("a", "utf-16")
    doc.apply(at(0, 1), "\ud83d")
    assert doc.characters == 2
    doc.apply(at(0, 2), "\ude00b")
    assert doc.text == "a😀b"


@pytest.mark.parametrize(
    ("given", "start", "end"),
    [
        (Range(Position(0, 2), Position(0, 1)), 1, 2),
        (Range(Position(1, 0), Position(0, 9)), 3, 4),
        (Range(Position(0, 99), Position(0, 50)), 3, 3),
        (Range(Position(99, 0), Position(0, 1)), 1, 7),
        (Range(Position(-1, 5), Position(0, 1)), 0, 1),
        (Range(Position(0, -1), Position(0, 0)), 0, 0),
        (Range(Position(1, 1), Position(1, -2)), 4, 5),
    ],
)
def test_a_range_is_clamped_and_then_swapped(given: Range, start: int, end: int) -> None:
    doc = document("abc\ndef")
    assert doc.offsets(given) == (start, end)
    assert "".join(piece.text for piece in doc.pieces_in(given)) == "abc\ndef"[start:end]
    doc.apply(given, "x")
    assert doc.text == "abc\ndef"[:start] + "x" + "abc\ndef"[end:]


def test_missing_line_raises_index_error() -> None:
    with pytest.raises(IndexError):
        document("a").line(1)
    with pytest.raises(IndexError):
        document("a").line(-1)


def test_snapshot_is_not_changed_by_edits() -> None:
    doc = document("one two\n" * 50)
    snapshot, text = doc.pieces, doc.text
    doc.apply(at(20, 3), "x" * 500)
    assert "".join(piece.text for piece in snapshot) == text
    assert doc.pieces is not snapshot


@pytest.mark.parametrize("text", ["x, " * 3_500_000, "word word;\n" * 900_000])
def test_edit_replaces_few_pieces_in_any_document(text: str) -> None:
    doc = TextDocument("untitled:big", text)
    for step in range(200):
        before = doc.pieces
        place = doc.position_at(step * 48_000 % doc.characters)
        doc.apply(Range(place, place), "y; ")
        new = set(doc.pieces) - set(before)
        assert sum(len(piece) for piece in new) <= 2 * 10_240
    assert doc.line_count == text.count("\n") + 1


def test_small_pieces_are_joined() -> None:
    doc = TextDocument("untitled:big", "word word;\n" * 90_000)
    for piece in doc.pieces:
        piece.counts["x"] = 1
    for step in range(3_000):
        doc.apply(at(step * 29 % 90_000, 4), "y")
        for piece in doc.pieces:
            piece.counts.setdefault("x", 1)
    assert len(doc.pieces) <= 3 * doc.characters // (2 * PIECE_CHARACTERS) + 64 + 3
    assert doc.text.count("y") == 3_000


class WatchedPiece(Piece):
    """A piece that records each access to its attributes."""

    visited: ClassVar[set[int]] = set()

    def __getattribute__(self, name: str) -> object:
        WatchedPiece.visited.add(id(self))
        return super().__getattribute__(name)


def visits(monkeypatch: pytest.MonkeyPatch, characters: int) -> list[int]:
    """Make random edits and count after each. Return how many pieces each step reads."""
    monkeypatch.setattr(text_document, "Piece", WatchedPiece)
    rng, line = random.Random(characters), "some words; and others\n"
    doc = TextDocument("untitled:big", line * (characters // len(line)))
    tokenizer, found = engine("o200k_base"), []
    documents = Documents()
    workers = Workers()
    counter = SnapshotCounter(workers, documents)
    documents[doc.uri] = doc
    asyncio.run(counter.load([tokenizer]))
    document_tokens(doc, tokenizer)
    for step in range(300):
        line_number = (0, doc.line_count - 1, rng.randrange(doc.line_count))[step % 3]
        WatchedPiece.visited.clear()
        doc.apply(at(line_number, rng.randrange(20)), rng.choice("abc ;\n"))
        if step % 2:
            assert pending_characters(doc, tokenizer) <= 10_240
            document_tokens(doc, tokenizer)
        else:
            assert counter.count_if_quick(documents.snapshot(doc.uri), tokenizer)
        found.append(len(WatchedPiece.visited))
    workers.close()
    return found


def test_work_of_an_edit_does_not_grow_with_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    small, big = visits(monkeypatch, 10_000), visits(monkeypatch, 10_000_000)
    assert max(big) <= max(small) + 10


class RecordingPattern:
    """A split pattern that records how many characters are searched."""

    def __init__(self) -> None:
        self.characters, self._pattern = 0, text_document._cut()

    def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
        found = self._pattern.search(text, start, end)
        self.characters += (found.end() if found else end) - start
        return found

    def match(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.match(text, start)


@pytest.mark.parametrize("stretch", ["ACGT", "=", "😀", "1", " ", "ภาษาไทย"])
def test_edit_in_text_without_split_points_searches_little(
    monkeypatch: pytest.MonkeyPatch, stretch: str
) -> None:
    text = stretch * (1_000_000 // len(stretch))
    rng, doc = random.Random(stretch), TextDocument("untitled:stretch", text)
    assert len(doc.pieces) == 1
    searched = RecordingPattern()
    monkeypatch.setattr(text_document, "_cut", lambda: searched)
    for place in (0, len(text) - 1, *(rng.randrange(len(text)) for _ in range(30))):
        searched.characters, new = 0, rng.choice(("x", "= ", ";\n", "word word word", ""))
        span = Range(doc.position_at(place), doc.position_at(place + rng.randrange(2)))
        start, end = doc.offsets(span)
        doc.apply(span, new)
        text = text[:start] + new + text[end:]
        assert searched.characters <= 3 * MAX_SEARCH
    assert doc.text == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_position_in_a_long_line_is_found_without_reading_it(
    monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    monkeypatch.setattr(text_document, "Piece", WatchedPiece)
    doc = TextDocument("untitled:line", "wörd, 字 😀; " * 300_000, encoding=encoding)
    end = doc.position_at(doc.characters - 5)
    assert doc.offset_at(end) == doc.characters - 5
    WatchedPiece.visited.clear()
    assert doc.position_at(doc.offset_at(end)) == end
    assert len(WatchedPiece.visited) <= 20


WIDE_TEXTS = st.text(st.sampled_from("ab é字😀\ud83d\ude00\U0010ffff\x00߿ࠀ"), max_size=30)


@given(WIDE_TEXTS.map(oracle.joined), ENCODINGS)
def test_the_length_is_the_sum_of_widths(text: str, encoding: Encoding) -> None:
    assert units(text, encoding) == sum(oracle.width(char, encoding) for char in text)


@given(WIDE_TEXTS.map(oracle.joined), ENCODINGS, st.integers(0, 130))
def test_offset_inside_a_character_yields_that_character(
    text: str, encoding: Encoding, offset: int
) -> None:
    index = index_of_unit(text, offset, encoding)
    assert units(text[:index], encoding) <= offset
    assert index == len(text) or units(text[: index + 1], encoding) > offset


@given(WIDE_TEXTS)
def test_surrogate_pairs_become_characters(text: str) -> None:
    assert join_surrogates(text) == oracle.joined(text)


def test_lone_surrogates_have_lengths() -> None:
    assert units("\ud83d", "utf-8") == 3
    assert units("\ud83d", "utf-16") == 1
    assert units("\ud83d", "utf-32") == 1


@pytest.mark.parametrize(("offset", "index"), [(0, 0), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_the_middle_of_a_surrogate_pair(offset: int, index: int) -> None:
    assert index_of_unit("😀x", offset, "utf-16") == index
