"""Tests where findings about prompt files are, how severe they are, and for which agents."""

from __future__ import annotations

import random

import pytest

from sidecar.budgets.instruction_findings import character_offsets
from sidecar.project.files import decode

TEXTS = [
    "plain\nlines\n",
    "é日本語\r\n🙂 and \r\n",
    "👩‍👩‍👧 family é\r\n" * 20,
]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", TEXTS)
def test_offsets_between_characters_are_exact(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    mark = len("".encode(encoding))
    wanted, at = {mark: 0}, mark
    for position, character in enumerate(text, 1):
        at += len(character.encode(encoding)) - mark
        wanted[at] = position
    found = character_offsets(data, wanted)
    assert {offset: (bounds.start, bounds.end) for offset, bounds in found.items()} == {
        offset: (position, position) for offset, position in wanted.items()
    }


@pytest.mark.parametrize(
    ("data", "offset", "start", "end"),
    [
        ("aé".encode(), 2, 1, 2),
        ("a🙂b".encode(), 1, 1, 1),
        ("a🙂b".encode(), 2, 1, 2),
        ("a🙂b".encode(), 4, 1, 2),
        ("a🙂b".encode(), 5, 2, 2),
        ("é".encode(), 1, 0, 1),
        ("é".encode("utf-8-sig"), 0, 0, 0),
        ("é".encode("utf-8-sig"), 2, 0, 0),
        ("é".encode("utf-8-sig"), 4, 0, 1),
        ("é".encode("utf-8-sig"), 5, 1, 1),
        ("🙂".encode("utf-16"), 4, 0, 1),
        (b"a\xe2b", 2, 1, 2),
        (b"a\xffb", 2, 2, 2),
        (b"a\0b", 2, 0, 0),
        (b"ab", 9, 2, 2),
    ],
)
def test_an_offset_inside_a_character_has_the_character_around_it(
    data: bytes, offset: int, start: int, end: int
) -> None:
    assert character_offsets(data, [offset])[offset] == (start, end)


def test_offsets_in_damaged_text_are_those_of_the_decoded_text() -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = bytes(
            chance.choice(b"a\n\r\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xff") for _ in range(12)
        )
        decoded = decode(data)
        assert decoded is not None
        found = character_offsets(data, range(13))
        assert found[0] == (0, 0)
        assert found[12].end == len(decoded.text)
        starts = [found[offset].start for offset in range(13)]
        assert starts == sorted(starts)
