"""Frames out of any chopping of the stream, with garbage between them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sidecar.server.framing import MAX_HEADER_BYTES, BadFrame, Framer


def frame(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, 2**32))
def test_any_chopping_gives_the_same_bodies(bodies: list[bytes], seed: int) -> None:
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


def test_garbage_is_skipped_up_to_the_next_frame_and_told_once() -> None:
    framer = Framer()
    out = framer.feed(b"\x00garbage\r\nmore garbage\n" + frame(b"{}") + frame(b"1"))
    assert [type(item) for item in out] == [BadFrame, bytes, bytes]
    assert out[1:] == [b"{}", b"1"]
    assert "garbage" not in str(out[0])


def test_a_frame_over_the_cap_is_skipped_without_being_held() -> None:
    framer = Framer(max_bytes=100)
    out = framer.feed(b"Content-Length: 1000\r\n\r\n" + b"x" * 400)
    assert isinstance(out[0], BadFrame)
    assert framer.feed(b"x" * 600 + frame(b"{}")) == [b"{}"]


def test_an_endless_header_is_dropped() -> None:
    framer = Framer()
    out = framer.feed(b"a" * (MAX_HEADER_BYTES + 1))
    assert isinstance(out[0], BadFrame)
    assert framer.feed(b"\r\n" + frame(b"{}"))[-1] == b"{}"


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    framer = Framer(max_bytes=1_000)
    framer.feed(data)
    framer.feed(b"\r\n\r\n")
