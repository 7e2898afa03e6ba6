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


def buckets(usage: Usage | None) -> tuple[int, int, int, int, int, int, int]:
    """Return the token counts as a tuple, in the order that the cases in `FORMS` use."""
    assert usage is not None
    return (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.prompt_tokens,
    )


FORMS: dict[str, tuple[dict[str, Any], tuple[int, int, int, int, int, int, int]]] = {
    "openai chat": (
        {
            "prompt_tokens": 2006,
            "completion_tokens": 300,
            "total_tokens": 2306,
            "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 100},
        },
        (86, 1920, 0, 0, 300, 100, 2006),
    ),
    "openai responses": (
        {
            "input_tokens": 328,
            "input_tokens_details": {"cached_tokens": 128},
            "output_tokens": 52,
            "output_tokens_details": {"reasoning_tokens": 12},
            "total_tokens": 380,
        },
        (200, 128, 0, 0, 52, 12, 328),
    ),
    "anthropic with both cache tiers": (
        {
            "input_tokens": 2048,
            "cache_read_input_tokens": 1800,
            "cache_creation_input_tokens": 248,
            "output_tokens": 503,
            "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100},
        },
        (2048, 1800, 248, 100, 503, 0, 4096),
    ),
    "anthropic whose tiers say more than the sum": (
        {
            "input_tokens": 1,
            "output_tokens": 1,
            "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 7},
        },
        (1, 0, 12, 7, 1, 0, 13),
    ),
    "anthropic without a cache": (
        {"input_tokens": 12, "output_tokens": 4},
        (12, 0, 0, 0, 4, 0, 12),
    ),
    "bedrock": (
        {
            "inputTokens": 30,
            "outputTokens": 628,
            "totalTokens": 758,
            "cacheReadInputTokens": 60,
            "cacheWriteInputTokens": 40,
            "cacheDetails": [{"ttl": "1h", "inputTokens": 10}, {"ttl": "5m", "inputTokens": 30}],
        },
        (30, 60, 40, 10, 628, 0, 130),
    ),
    "gemini": (
        {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 40,
            "toolUsePromptTokenCount": 25,
            "candidatesTokenCount": 10,
            "thoughtsTokenCount": 7,
            "totalTokenCount": 142,
        },
        (85, 40, 0, 0, 17, 7, 125),
    ),
    "gemini that only thought": (
        {"promptTokenCount": 8, "thoughtsTokenCount": 50, "totalTokenCount": 58},
        (8, 0, 0, 0, 50, 50, 8),
    ),
    "ollama": (
        {"prompt_eval_count": 26, "eval_count": 298, "eval_duration": 4709213000},
        (26, 0, 0, 0, 298, 0, 26),
    ),
    "lm studio": (
        {"stopReason": "eosFound", "promptTokensCount": 9, "predictedTokensCount": 5},
        (9, 0, 0, 0, 5, 0, 9),
    ),
    "lm studio's REST v1": (
        {"input_tokens": 419, "total_output_tokens": 362, "reasoning_output_tokens": 195},
        (419, 0, 0, 0, 362, 195, 419),
    ),
    "xai, reasoning beside output": (
        {
            "prompt_tokens": 32,
            "completion_tokens": 9,
            "total_tokens": 135,
            "prompt_tokens_details": {"cached_tokens": 6},
            "completion_tokens_details": {"reasoning_tokens": 94},
        },
        (26, 6, 0, 0, 103, 94, 32),
    ),
    "deepseek": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "prompt_cache_hit_tokens": 64,
            "prompt_cache_miss_tokens": 36,
        },
        (36, 64, 0, 0, 20, 0, 100),
    ),
    "mistral": (
        {"prompt_tokens": 16, "completion_tokens": 34, "total_tokens": 50},
        (16, 0, 0, 0, 34, 0, 16),
    ),
    "cohere, in floats": (
        {
            "billed_units": {"input_tokens": 5.0, "output_tokens": 418.0},
            "tokens": {"input_tokens": 71.0, "output_tokens": 418.0},
        },
        (71, 0, 0, 0, 418, 0, 71),
    ),
    "litellm in front of anthropic": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 10,
            "cache_read_input_tokens": 700,
            "cache_creation_input_tokens": 200,
        },
        (100, 700, 200, 0, 10, 0, 1000),
    ),
    "openrouter": (
        {
            "prompt_tokens": 194,
            "completion_tokens": 2,
            "cost": 0.95,
            "prompt_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 50},
        },
        (44, 100, 50, 0, 2, 0, 194),
    ),
    "llama.cpp timings": (
        {"cache_n": 236, "prompt_n": 1, "predicted_n": 35, "predicted_ms": 661.0},
        (1, 236, 0, 0, 35, 0, 237),
    ),
    "llama.cpp completion": (
        {"tokens_evaluated": 12, "tokens_predicted": 3, "tokens_cached": 14},
        (12, 0, 0, 0, 3, 0, 12),
    ),
    "codex": (
        {"input_tokens": 900, "cached_input_tokens": 800, "output_tokens": 40},
        (100, 800, 0, 0, 40, 0, 900),
    ),
    "more cached than the prompt holds": (
        {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 99},
        },
        (0, 10, 0, 0, 1, 0, 10),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_vendors_usage_has_the_same_parts(name: str) -> None:
    form, expected = FORMS[name]
    assert buckets(normalize_usage(form)) == expected


@pytest.mark.parametrize("wrapper", ["usage", "usageMetadata", "stats", "meta", "timings"])
@pytest.mark.parametrize("name", FORMS)
def test_usage_is_found_inside_a_reply(name: str, wrapper: str) -> None:
    form, expected = FORMS[name]
    assert buckets(normalize_usage({"id": "x", wrapper: form})) == expected


def test_usage_round_trips() -> None:
    for form, _ in FORMS.values():
        usage = normalize_usage(form)
        assert normalize_usage(msgspec.to_builtins(usage)) == usage


def test_xai_usage_without_a_total_needs_the_format() -> None:
    form = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 94},
    }
    assert buckets(normalize_usage(form, "xai"))[4] == 103
    assert buckets(normalize_usage(form, "openai-chat"))[4] == 9


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
    assert buckets(usage) == (12, 0, 0, 0, 1, 0, 12)


@given(
    st.dictionaries(
        st.sampled_from([k for f, _ in FORMS.values() for k in f]), st.integers(0, MOST_TOKENS)
    )
)
def test_parts_of_a_usage_never_overlap(form: dict[str, int]) -> None:
    usage = normalize_usage(form)
    if usage is None:
        return
    parts = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    assert parts == usage.prompt_tokens
    assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
    assert usage.reasoning_tokens <= usage.output_tokens


@pytest.mark.parametrize(
    ("reply", "usd"),
    [
        ({"usage": {"prompt_tokens": 1, "cost": 0.00014}}, "0.00014"),
        ({"prompt_tokens": 1, "cost": "0.5"}, "0.5"),
        (
            {
                "usage": {
                    "cost": 0.01,
                    "is_byok": True,
                    "cost_details": {"upstream_inference_cost": 0.2},
                }
            },
            "0.21",
        ),
        ({"usage": {}, "_hidden_params": {"response_cost": 3e-05}}, "0.00003"),
        ({"usage": {"cost_in_usd_ticks": 37756000}}, "0.0037756"),
    ],
)
def test_reported_cost_is_read_exactly(reply: object, usd: str) -> None:
    assert reported_cost(reply) == Decimal(usd)


@pytest.mark.parametrize("cost", [None, True, "free", -1, float("nan"), {}])
def test_invalid_cost_is_ignored(cost: object) -> None:
    assert reported_cost({"usage": {"cost": cost}}) is None


def test_fee_without_the_upstream_cost_is_not_the_cost() -> None:
    """If users bring their own key, OpenRouter's fee is often 0, but the vendor's price is not."""
    assert reported_cost({"usage": {"cost": 0, "is_byok": True}}) is None
