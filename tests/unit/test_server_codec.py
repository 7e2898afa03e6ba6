"""Tests that sent messages are valid JSON, and that unknown enum values are ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, get_args

import attrs
import msgspec
import pytest
from lsprotocol import types

from sidecar.counting.count_result import Count
from sidecar.server.methods import CountResult
from sidecar.server.protocol import Encoded, convert_lsp_message, dump, parse, strict_converter

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
