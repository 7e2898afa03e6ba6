"""Tests that messages are read in chunks of any size, even with invalid data between them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.server.stdio import MAX_HEADER_BYTES, Framer, InvalidFrame


def frame(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, 2**32))
def test_bodies_do_not_depend_on_chunks(bodies: list[bytes], seed: int) -> None:
    stream = b"".join(map(frame, bodies))
    chance, framer, out = random.Random(seed), Framer(), []
    while stream:
        size = chance.randrange(1, 12)
        out += framer.feed(stream[:size])
        stream = stream[size:]
    assert out == bodies


def test_other_headers_and_cases_are_accepted() -> None:
    framer = Framer()
    head = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length: 2\r\n\r\n"
    assert framer.feed(head + b"{}") == [b"{}"]


def test_garbage_is_skipped_and_reported_once() -> None:
    framer = Framer()
    out = framer.feed(b"\x00garbage\r\nmore garbage\n" + frame(b"{}") + frame(b"1"))
    assert isinstance(out[0], InvalidFrame)
    assert out[1:] == [b"{}", b"1"]
    assert "garbage" not in str(out[0])


@pytest.mark.parametrize("length", [b"101", b"0101", b"9" * 30, b"9" * 9_000])
def test_frame_over_the_limit_ends_the_stream(length: bytes) -> None:
    framer = Framer(max_bytes=100)
    out = framer.feed(b"Content-Length: %s\r\n\r\n" % length + b"x" * 400 + frame(b"{}"))
    assert [isinstance(item, InvalidFrame) and item.fatal for item in out] == [True]
    assert framer.feed(frame(b"{}")) == []


@pytest.mark.parametrize("length", [b"x", b"-1", b"", b"1.0", b"0x2"])
def test_invalid_length_is_reported(length: bytes) -> None:
    framer = Framer()
    out = framer.feed(b"Content-Length: %s\r\n\r\n" % length + frame(b"{}"))
    assert isinstance(out[0], InvalidFrame)
    assert out[1:] == [b"{}"]


def test_body_longer_than_announced_does_not_lose_the_next_frame() -> None:
    framer = Framer()
    out = framer.feed(b"Content-Length: 1\r\n\r\n1 and more" + frame(b"{}") + frame(b"2"))
    assert [item for item in out if not isinstance(item, InvalidFrame)] == [b"1", b"{}", b"2"]
    assert len(out) == 4


def test_an_endless_header_is_dropped() -> None:
    framer = Framer()
    out = framer.feed(b"a" * (MAX_HEADER_BYTES + 1))
    assert isinstance(out[0], InvalidFrame)
    assert framer.feed(b"b" * (MAX_HEADER_BYTES + 1)) == []
    assert framer.feed(frame(b"{}"))[-1] == b"{}"


@given(st.binary(max_size=300))
def test_framer_never_raises(data: bytes) -> None:
    framer = Framer(max_bytes=1_000)
    framer.feed(data)
    framer.feed(b"\r\n\r\n")
