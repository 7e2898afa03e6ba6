"""Tests how messages and errors are encoded, split from the input, and read without blocking."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, get_args

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from sidecar.conversations.sections import no_text
from sidecar.cost.ledger import LedgerError, ReadCancelledError
from sidecar.cost.prices import UpdateError
from sidecar.counting.count_result import Count
from sidecar.counting.exact_engines import DamagedRanksError
from sidecar.counting.vocabulary_files import VocabularyError
from sidecar.errors import BadParamsError, RequestError, SidecarError, VendorFormatError
from sidecar.server import stdio
from sidecar.server.methods import CountResult
from sidecar.server.protocol import (
    Encoded,
    convert_lsp_message,
    dump,
    error_for_exception,
    parse,
    strict_converter,
)
from sidecar.server.stdio import (
    MAX_HEADER_BYTES,
    MAX_UNREAD_BYTES,
    Framer,
    Frames,
    InvalidFrame,
    Writer,
)
from sidecar.tasks import Scheduler

CONVERTER = strict_converter()
COUNT: Mapping[str, Any] = {
    "tokens": 5_000,
    "method": "exact",
    "tokenizer": "o200k_base",
    "model": "gpt-5",
    "error_percent": 0.0,
    "characters": 12_345,
    "input_cost_usd": 0.00625,
}


def body_of(result: object) -> bytes:
    frame = dump({"jsonrpc": "2.0", "id": 1, "result": result}, CONVERTER)
    head, _, body = frame.partition(b"\r\n\r\n")
    assert head == b"Content-Length: %d" % len(body)
    return body


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": 'quotes " \\ / and \x00 \x1f \x7f'},
        {"model": "gpt-5, 日本 🙂"},
        {"model": "lone \ud800"},
        {"input_cost_usd": 1e-9, "error_percent": None},
        {"tokens": 2**70},
        {"ranges": [Count(**COUNT)]},
    ],
)
def test_encoded_message_is_ascii_and_decodes_to_the_input(more: dict[str, Any]) -> None:
    result = CountResult(**{**COUNT, **more})
    body = body_of(result)
    assert body.isascii()
    expected = {"jsonrpc": "2.0", "id": 1, "result": msgspec.to_builtins(result)}
    assert json.loads(body) == parse(body) == expected
    encoded = body_of(Encoded.of(result))
    assert json.loads(encoded) == parse(encoded) == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_infinite_number_is_not_sent(number: float) -> None:
    result = CountResult(**{**COUNT, "error_percent": number})
    with pytest.raises(ValueError, match="float"):
        body_of(result)
    ranges = [Count(**{**COUNT, "error_percent": number})]
    with pytest.raises(ValueError, match="float"):
        body_of(CountResult(**COUNT, ranges=ranges))


def enum_places(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the type of each enum field inside a type."""
    if isinstance(kind, type) and attrs.has(kind):
        for field in attrs.fields(kind):
            yield from enum_places(field.type, (*path, field.name))
        return
    arguments = [arg for arg in get_args(kind) if arg is not type(None)]
    enums = [
        argument
        for argument in arguments
        if isinstance(argument, type) and issubclass(argument, Enum)
    ]
    if enums:
        yield path, kind
    elif arguments:
        for argument in arguments:
            inner = enum_places(argument, path)
            yield from ((place, kind if place == path else nested) for place, nested in inner)


ENUM_PLACES = dict(enum_places(types.InitializeParams))


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def with_values(place: tuple[str, ...], *, known: bool) -> dict[str, Any]:
    """Return `initialize` params with unknown enum values in the enum field at this path.

    Args:
        place: The path.
        known: Whether a list also contains all known values, after the unknown ones.
    """
    params: dict[str, Any] = {"processId": None, "rootUri": None, "capabilities": {}}
    kind = ENUM_PLACES[place]
    texts = "str" in str(kind) or issubclass(enum_of(kind), str)
    unknown: list[Any] = ["ofALaterVersion"] if texts else [-1, 0, 4711]
    members = [each.value for each in enum_of(kind)] if known else []
    inner = params
    for name in place[:-1]:
        inner = inner.setdefault(camel_case(name), required(name))
    is_list = "Sequence" in str(kind)
    inner[camel_case(place[-1])] = [*unknown, *members] if is_list else unknown[-1]
    return params


def required(name: str) -> dict[str, Any]:
    """Return an object's required fields, except for enums."""
    semantic: dict[str, Any] = {
        "requests": {},
        "tokenTypes": [],
        "tokenModifiers": [],
        "formats": [],
    }
    return semantic if name == "semantic_tokens" else {}


def enum_of(kind: Any) -> type[Enum]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    found = (arg for arg in get_args(kind) if arg is not type(None))
    return next(filter(None, map(enum_of, found)), None)  # type: ignore[return-value]


def initialize(params: dict[str, Any]) -> types.InitializeParams:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    structured = convert_lsp_message(message, types.InitializeRequest, CONVERTER)
    return structured.params  # type: ignore[no-any-return]


def value_at(params: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        params = getattr(params, name)
    return params


@pytest.mark.parametrize("known", [True, False], ids=["with known values", "alone"])
@pytest.mark.parametrize("place", ENUM_PLACES, ids=".".join)
def test_an_unknown_enum_value_of_a_client_is_ignored(place: tuple[str, ...], known: bool) -> None:
    kind, params = ENUM_PLACES[place], initialize(with_values(place, known=known))
    value = value_at(params, place)
    members = list(enum_of(kind)) if known else []
    if "Sequence" not in str(kind):
        assert value is None
    elif "Union" in str(kind):  # the field also accepts other strings or numbers
        assert set(members) <= set(value)
    else:
        assert value == members


def test_all_enums_are_found() -> None:
    assert len(ENUM_PLACES) >= 19


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


BODY = b"{}"
FRAME = b"Content-Length: 2\r\n\r\n" + BODY


@pytest.fixture
def pipes() -> Iterator[tuple[int, int, int, int]]:
    """Return stdin's read and write ends, followed by stdout's."""
    ends = (*os.pipe(), *os.pipe())
    yield ends
    for end in ends:
        os.close(end)


async def until(look: Callable[[], object]) -> None:
    while not look():
        await asyncio.sleep(0.01)


async def test_input_is_not_read_while_the_client_reads_nothing(
    pipes: tuple[int, int, int, int],
) -> None:
    taken, sent, unread, written = pipes
    writer = Writer(written)
    frames: list[Frames] = []
    loop = asyncio.get_running_loop()
    stdio.read_on_loop(Scheduler(), taken, frames.append, writer)
    os.write(sent, FRAME)
    await until(lambda: frames)
    writer.write(b"x" * (MAX_UNREAD_BYTES + 1_000_000))
    os.write(sent, FRAME)
    await asyncio.sleep(0.3)
    assert frames == [[BODY]]
    left = MAX_UNREAD_BYTES + 1_000_000
    while left:
        left -= len(await asyncio.to_thread(os.read, unread, 1 << 20))
    await until(lambda: len(frames) == 2)
    assert not writer.full
    loop.remove_reader(taken)
    writer.close()


async def test_spurious_wake_up_is_not_the_end_of_input(pipes: tuple[int, int, int, int]) -> None:
    taken, sent, _, written = pipes
    os.set_blocking(taken, False)
    twin = os.dup(taken)  # both become readable, but the first handler reads all data
    frames: list[Frames] = []
    loop = asyncio.get_running_loop()
    for end in (taken, twin):
        assert stdio.read_on_loop(Scheduler(), end, frames.append, Writer(written))
    for count in range(1, 4):
        os.write(sent, FRAME)
        while len(frames) < count:
            await asyncio.sleep(0.01)
    assert frames == [[BODY]] * 3
    for end in (taken, twin):
        assert loop.remove_reader(end)
    os.close(twin)


async def test_full_non_blocking_pipe_is_written_later(pipes: tuple[int, int, int, int]) -> None:
    _, _, unread, written = pipes
    os.set_blocking(written, False)
    writer = Writer(written)
    sent = [b"a" * 3_000, b"b" * 1_000_000, b"c" * 100]
    for data in sent:
        writer.write(data)
    read = b""
    while len(read) < sum(map(len, sent)):
        read += await asyncio.to_thread(os.read, unread, 1 << 20)
    assert read == b"".join(sent)
    writer.close()


@pytest.mark.parametrize(
    ("error", "code", "kind", "retryable"),
    [
        (RequestError("trust", "m"), -32803, "trust", False),
        (BadParamsError("m"), -32602, "badParams", False),
        (VendorFormatError("m"), -32602, "badParams", False),
        (no_text(), -32803, "noText", False),
        (LedgerError("m"), -32803, "storage", True),
        (ReadCancelledError("m"), -32803, "storage", True),
        (DamagedRanksError("m"), -32803, "storage", False),
        (VocabularyError("m"), -32803, "config", False),
        (UpdateError("m"), -32803, "endpoint", False),
    ],
)
def test_each_error_has_its_code_and_kind(
    error: SidecarError, code: int, kind: str, retryable: bool
) -> None:
    body = error_for_exception(error)
    assert (body["code"], body["message"]) == (code, str(error))
    assert body["data"] == {"kind": kind, "retryable": retryable}


def test_internal_error_does_not_reveal_its_message() -> None:
    body = error_for_exception(ZeroDivisionError("of a person's text"))
    assert body["data"] == {"kind": "internal", "retryable": False}
    assert "person" not in body["message"]


@pytest.mark.parametrize("name", ["x" * 10_000, "\x1b" * 10_000, "\N{CAT FACE} \u2028" * 5_000])
@pytest.mark.parametrize("kind", [BadParamsError, UpdateError, JsonRpcException])
def test_error_quotes_a_long_name_only_in_part(name: str, kind: type[Exception]) -> None:
    message = error_for_exception(kind(f"there is no {name}; choose another"))["message"]
    assert len(message) < 600
    assert message.startswith("there is no ")
    assert message.endswith("; choose another")
