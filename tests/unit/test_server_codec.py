"""What is sent is JSON, whichever encoder wrote it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sidecar.counting.count import Count
from sidecar.server.codec import dump, parse, strict_converter
from sidecar.server.methods import CountResult

if TYPE_CHECKING:
    from collections.abc import Mapping

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
def test_an_answer_is_ascii_and_holds_what_was_given(more: dict[str, Any]) -> None:
    result = CountResult(**{**COUNT, **more})
    body = body_of(result)
    assert body.isascii()
    expected = {"jsonrpc": "2.0", "id": 1, "result": msgspec.to_builtins(result)}
    assert json.loads(body) == parse(body) == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_sent(number: float) -> None:
    result = CountResult(**{**COUNT, "error_percent": number})
    with pytest.raises(ValueError, match="float"):
        body_of(result)
    ranges = [Count(**{**COUNT, "error_percent": number})]
    with pytest.raises(ValueError, match="float"):
        body_of(CountResult(**COUNT, ranges=ranges))
