"""Tests that all vendors' usage is converted to the same parts, which do not overlap."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import VendorFormatError
from sidecar.messages.vendor_usage import MOST_TOKENS, Usage, normalize_usage, reported_cost
from tests.cases import read_cases, read_rows, read_table


class Case(msgspec.Struct):
    usage: dict[str, Any]
    parts: dict[str, int]


CASES = read_cases("vendor_usage", Case)


def parts(usage: Usage | None) -> dict[str, int]:
    """Return the token counts that are not 0."""
    assert usage is not None
    return {name: tokens for name, tokens in msgspec.structs.asdict(usage).items() if tokens}


@pytest.mark.parametrize("case", CASES)
def test_every_vendors_usage_has_the_same_parts(case: Case) -> None:
    usage = normalize_usage(case.usage)
    assert parts(usage) == case.parts
    assert normalize_usage(msgspec.to_builtins(usage)) == usage


@pytest.mark.parametrize("wrapper", ["usage", "usageMetadata", "stats", "meta", "timings"])
@pytest.mark.parametrize("case", CASES)
def test_usage_is_found_inside_a_reply(case: Case, wrapper: str) -> None:
    assert parts(normalize_usage({"id": "x", wrapper: case.usage})) == case.parts


def test_xai_usage_without_a_total_needs_the_format() -> None:
    form = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 94},
    }
    assert parts(normalize_usage(form, "xai"))["output_tokens"] == 103
    assert parts(normalize_usage(form, "openai-chat"))["output_tokens"] == 9


@pytest.mark.parametrize("nothing", [None, 3, "usage", [], {}, {"usage": None}, {"id": "x"}])
def test_other_objects_have_no_usage(nothing: object) -> None:
    assert normalize_usage(nothing) is None


@pytest.mark.parametrize(
    "bad", [-1, 1.5, "12.5", "many", "", "inf", True, [1], {"n": 1}, MOST_TOKENS + 1, 1e308]
)
def test_error_names_an_invalid_number_of_tokens(bad: object) -> None:
    with pytest.raises(VendorFormatError, match="prompt_tokens"):
        normalize_usage({"prompt_tokens": bad, "completion_tokens": 1})


@pytest.mark.parametrize("written", [12, 12.0, "12", "12.0", "1.2e1"])
def test_number_of_tokens_may_be_a_float_or_a_string(written: object) -> None:
    usage = normalize_usage({"prompt_tokens": written, "completion_tokens": 1})
    assert parts(usage) == {"input_tokens": 12, "output_tokens": 1, "prompt_tokens": 12}


KEYS = [key for case in read_table("vendor_usage").values() for key in case["usage"]]


@given(st.dictionaries(st.sampled_from(KEYS), st.integers(0, MOST_TOKENS)))
def test_parts_of_a_usage_never_overlap(form: dict[str, int]) -> None:
    usage = normalize_usage(form)
    if usage is None:
        return
    total = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    assert total == usage.prompt_tokens
    assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
    assert usage.reasoning_tokens <= usage.output_tokens


@pytest.mark.parametrize(("reply", "usd"), read_rows("messages", "reported_costs"))
def test_reported_cost_is_read_exactly(reply: object, usd: str) -> None:
    assert reported_cost(reply) == Decimal(usd)


@pytest.mark.parametrize("cost", [None, True, "free", -1, float("nan"), {}])
def test_invalid_cost_is_ignored(cost: object) -> None:
    assert reported_cost({"usage": {"cost": cost}}) is None


def test_fee_without_the_upstream_cost_is_not_the_cost() -> None:
    """If users bring their own key, OpenRouter's fee is often 0, but the vendor's price is not."""
    assert reported_cost({"usage": {"cost": 0, "is_byok": True}}) is None
