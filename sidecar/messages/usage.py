"""Reads the token usage of a call in any vendor's format.

The result consists of token counts that do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from sidecar.errors import VendorFormatError

JsonObject: TypeAlias = Mapping[str, Any]

# Limits for the token counts and costs of a call. Larger values are mistakes or attacks, and are
# rejected. The limits are generous, because one record may represent a whole batch of calls.
MOST_TOKENS = 10**12
"""Maximum number of tokens in a call."""
MOST_USD = Decimal(1_000)
"""Maximum cost that a vendor may report for a call."""
LONGEST_ID = 512
"""Maximum number of characters in an id or in a model name."""
FIRST_YEAR, LAST_YEAR = 2000, 2100
"""The earliest and latest years in which a call can have been made, in UTC."""

_LONGEST_NUMBER = 20
"""Maximum number of characters in a number that is written as a string."""

_WRAPPERS = ("usage", "usageMetadata", "usage_metadata", "stats", "meta", "timings")
_NESTED = ("response", "message", "metadata")


class Usage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The tokens of one call. `prompt_tokens` is the sum of `input_tokens`, cache reads and cache
    writes.
    """

    input_tokens: int
    """Input tokens that were neither read from nor written to a prompt cache."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = msgspec.field(name="cacheWrite1hTokens", default=0)
    """The part of `cache_write_tokens` cached for an hour. Anthropic bills it separately."""
    output_tokens: int = 0
    """All output tokens, including reasoning."""
    reasoning_tokens: int = 0
    prompt_tokens: int = 0
    """All input tokens."""


def normalize_usage(obj: object, format: str | None = None) -> Usage | None:
    """Read any vendor's usage object, which may be inside a reply.

    Args:
        obj: The usage object or the reply.
        format: A format that `context/response` accepts. It is used only if the fields do not
            identify the vendor.

    Returns:
        The usage, or None if `obj` does not contain any.

    Raises:
        VendorFormatError: A number of tokens is not a whole number from 0 to `MOST_TOKENS`.
    """
    return _find_usage(obj, format, depth=3)


def _find_usage(obj: object, format: str | None, depth: int) -> Usage | None:
    if not isinstance(obj, Mapping):
        return None
    for markers, read in _READERS:
        if any(obj.get(key) is not None for key in markers):
            return read(_with_xai_total(obj) if format == "xai" else obj)
    for key in (*_WRAPPERS, *_NESTED) if depth else ():
        inner = _find_usage(obj.get(key), format, depth - 1)
        if inner is not None:
            return inner
    return None


def holders_in(raw: object) -> Iterator[JsonObject]:
    """Yield the objects in a reply or stream that may contain a usage object."""
    for one in raw if isinstance(raw, list | tuple) else (raw,):
        if isinstance(one, Mapping):
            yield one
            yield from (inner for name in _NESTED if (inner := part(one, name)))


def usages_in(raw: object) -> Iterator[JsonObject]:
    """Yield the objects in a reply or stream that may be usage objects."""
    holders = list(holders_in(raw))
    for holder in holders:
        yield from (inner for name in _WRAPPERS if (inner := part(holder, name)))
    yield from holders


def _openai_chat(usage: JsonObject) -> Usage:
    details = part(usage, "prompt_tokens_details")
    read = (
        _first_number(details, "cached_tokens")
        or _first_number(usage, "prompt_cache_hit_tokens")  # DeepSeek
        or _first_number(usage, "cache_read_input_tokens")  # LiteLLM
        or _first_number(usage, "cached_tokens", "num_cached_tokens")  # Moonshot, Mistral
    )
    write = _first_number(details, "cache_write_tokens", "cache_creation_tokens") or _first_number(
        usage, "cache_creation_input_tokens"
    )
    prompt = _first_number(usage, "prompt_tokens") or read + _first_number(
        usage, "prompt_cache_miss_tokens"
    )
    output, reasoning = _first_number(usage, "completion_tokens"), _reasoning_tokens(usage)
    if _reasoning_is_beside(usage, prompt, output, reasoning):
        output += reasoning
    tiers = part(details, "cache_creation_token_details")
    return usage_from_prompt(
        prompt, read, write, _first_number(tiers, "ephemeral_1h_input_tokens"), output, reasoning
    )


def _reasoning_is_beside(usage: JsonObject, prompt: int, output: int, reasoning: int) -> bool:
    return reasoning > 0 and _first_number(usage, "total_tokens") == prompt + output + reasoning


def _with_xai_total(usage: JsonObject) -> JsonObject:
    if usage.get("total_tokens") is not None:
        return usage
    parts = (_first_number(usage, "prompt_tokens"), _first_number(usage, "completion_tokens"))
    return {**usage, "total_tokens": sum(parts) + _reasoning_tokens(usage)}


def _input_output(usage: JsonObject) -> Usage:
    """Read `input_tokens` and `output_tokens` in the format of Anthropic or OpenAI.

    OpenAI's `input_tokens` include cached tokens.
    """
    details = part(usage, "input_tokens_details") or part(usage, "input_token_details")
    cached = _first_number(details, "cached_tokens") or _first_number(usage, "cached_input_tokens")
    output = _first_number(usage, "output_tokens", "total_output_tokens")
    reasoning = _reasoning_tokens(usage)
    if cached or details:
        write = _first_number(details, "cache_write_tokens") or _first_number(
            usage, "cache_write_tokens"
        )
        return usage_from_prompt(
            _first_number(usage, "input_tokens"), cached, write, 0, output, reasoning
        )
    return _anthropic(usage, output, reasoning)


def _anthropic(usage: JsonObject, output: int, reasoning: int) -> Usage:
    tiers = part(usage, "cache_creation")
    hour = _first_number(tiers, "ephemeral_1h_input_tokens")
    by_tier = hour + _first_number(tiers, "ephemeral_5m_input_tokens")
    return usage_from_parts(
        _first_number(usage, "input_tokens"),
        _first_number(usage, "cache_read_input_tokens"),
        max(_first_number(usage, "cache_creation_input_tokens"), by_tier),
        hour,
        output,
        reasoning,
    )


def _bedrock(usage: JsonObject) -> Usage:
    tiers = usage.get("cacheDetails")
    hour = sum(
        _first_number(tier, "inputTokens")
        for tier in (tiers if isinstance(tiers, list) else [])
        if isinstance(tier, Mapping) and tier.get("ttl") == "1h"
    )
    return usage_from_parts(
        _first_number(usage, "inputTokens"),
        _first_number(usage, "cacheReadInputTokens", "cacheReadInputTokenCount", "cacheReadTokens"),
        _first_number(
            usage, "cacheWriteInputTokens", "cacheWriteInputTokenCount", "cacheWriteTokens"
        ),
        hour or _first_number(usage, "cacheWrite1hTokens"),
        _first_number(usage, "outputTokens"),
        _first_number(usage, "reasoningTokens"),
    )


def _gemini(usage: JsonObject) -> Usage:
    """Read Gemini's usage.

    Gemini's prompt count excludes tool use, and its output count excludes thoughts. This function
    adds them.
    """
    thoughts = _first_number(usage, "thoughtsTokenCount", "thoughts_token_count")
    return usage_from_prompt(
        _first_number(usage, "promptTokenCount", "prompt_token_count")
        + _first_number(usage, "toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        _first_number(usage, "cachedContentTokenCount", "cached_content_token_count"),
        0,
        0,
        _first_number(usage, "candidatesTokenCount", "candidates_token_count") + thoughts,
        thoughts,
    )


def _ollama(usage: JsonObject) -> Usage:
    return usage_from_parts(
        _first_number(usage, "prompt_eval_count"), 0, 0, 0, _first_number(usage, "eval_count"), 0
    )


def _lmstudio(usage: JsonObject) -> Usage:
    prompt = _first_number(usage, "promptTokensCount", "prompt_tokens_count")
    output = _first_number(usage, "predictedTokensCount", "predicted_tokens_count")
    return usage_from_parts(prompt, 0, 0, 0, output, 0)


def _cohere(usage: JsonObject) -> Usage:
    """Read Cohere's usage. `tokens` counts what the model processed, and `billed_units` counts what
    is billed.
    """
    tokens = part(usage, "tokens") or part(usage, "billed_units")
    prompt, read = _first_number(tokens, "input_tokens"), _first_number(usage, "cached_tokens")
    return usage_from_prompt(prompt, read, 0, 0, _first_number(tokens, "output_tokens"), 0)


def _llamacpp_timings(usage: JsonObject) -> Usage:
    """Read llama.cpp's timings. `prompt_n` tokens were evaluated, and `cache_n` tokens
    were cached.
    """
    read = _first_number(usage, "cache_n")
    return usage_from_parts(
        _first_number(usage, "prompt_n"), read, 0, 0, _first_number(usage, "predicted_n"), 0
    )


def _llamacpp_completion(usage: JsonObject) -> Usage:
    prompt = _first_number(usage, "tokens_evaluated")
    return usage_from_parts(prompt, 0, 0, 0, _first_number(usage, "tokens_predicted"), 0)


_Reader: TypeAlias = Callable[[JsonObject], Usage]
_READERS: tuple[tuple[tuple[str, ...], _Reader], ...] = (
    (
        ("promptTokenCount", "candidatesTokenCount", "prompt_token_count", "thoughtsTokenCount"),
        _gemini,
    ),
    (("prompt_eval_count", "eval_count"), _ollama),
    (("promptTokensCount", "predictedTokensCount", "prompt_tokens_count"), _lmstudio),
    (("prompt_tokens", "completion_tokens", "prompt_cache_hit_tokens"), _openai_chat),
    (("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheReadTokens"), _bedrock),
    (
        (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "total_output_tokens",
        ),
        _input_output,
    ),
    (("tokens_evaluated", "tokens_predicted"), _llamacpp_completion),
    (("billed_units",), _cohere),
    (("prompt_n", "predicted_n"), _llamacpp_timings),
    (("tokens",), _cohere),
)


def usage_from_prompt(
    prompt: int, read: int, write: int, write_1h: int, output: int, reasoning: int
) -> Usage:
    """Return the usage for a prompt token count that includes cache reads and writes."""
    read = min(read, prompt)
    write = min(write, prompt - read)
    return usage_from_parts(prompt - read - write, read, write, write_1h, output, reasoning)


def usage_from_parts(
    fresh: int, read: int, write: int, write_1h: int, output: int, reasoning: int
) -> Usage:
    """Return a usage object. `fresh`, `read`, `write` and `output` must not overlap."""
    return Usage(
        input_tokens=fresh,
        cache_read_tokens=read,
        cache_write_tokens=write,
        cache_write_1h_tokens=min(write_1h, write),
        output_tokens=output,
        reasoning_tokens=min(reasoning, output),
        prompt_tokens=fresh + read + write,
    )


def _reasoning_tokens(usage: JsonObject) -> int:
    for name in ("completion_tokens_details", "output_tokens_details", "output_token_details"):
        found = _first_number(part(usage, name), "reasoning_tokens", "thinking_tokens")
        if found:
            return found
    return _first_number(usage, "reasoning_tokens", "reasoning_output_tokens")


def _first_number(usage: JsonObject, *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if value is not None:
            return _check_token_number(value, name)
    return 0


def _check_token_number(value: object, name: str) -> int:
    number = _whole_number(value)
    if number is None:
        raise VendorFormatError(f"usage field `{name}` is not a whole number of tokens")
    if number > MOST_TOKENS:
        raise VendorFormatError(f"usage field `{name}` exceeds {MOST_TOKENS:,} tokens")
    return number


def _whole_number(value: object) -> int | None:
    """Return a whole number of at least 0, which may be written as `10.0` or `"10"`, or None."""
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def part(usage: JsonObject, name: str) -> JsonObject:
    """Return the object in a field, or an empty object if there is none."""
    value = usage.get(name)
    return value if isinstance(value, Mapping) else {}


def count_or_zero(value: object) -> int:
    """Return the value if it is a whole number of at least 0, or 0 otherwise."""
    return _whole_number(value) or 0
