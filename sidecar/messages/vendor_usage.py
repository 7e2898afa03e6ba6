"""Usage in every vendor's form: tokens, service tier and other billed items of a call.

Token counts in the result do not overlap.

Searches are counted by the rules of each vendor (docs/reference/sources.md lists the web pages):

* Anthropic: `server_tool_use.web_search_requests`.
* OpenAI: each `web_search_call` whose action is a search (opening a page is free), and each
  `file_search_call`. A chat completion that cites pages counts as one search.
* Gemini: each query since version 3, or one search per grounded prompt in earlier versions.
* xAI: web and X searches, or the sources of Live Search.
* Perplexity: `num_search_queries`.

Other tools have no list price: code that a vendor runs, pictures that a tool creates, and
grounding in Google Maps. The number of uses is recorded, so the cost can be reported as unknown
instead of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

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


_TICKS_PER_USD = Decimal(10**10)
_ABSURD_USD = Decimal(10**30)
"""The maximum cost in USD. Higher costs are reduced to it, because Decimals can overflow."""
_STANDARD_TIERS = frozenset(
    {
        *("", "standard", "default", "auto", "on_demand", "standard_only"),
        *("unspecified", "traffic_type_unspecified"),
    }
)
_ON_DEMAND = "on_demand_"
"""The start of the names of Vertex AI's tiers, such as `ON_DEMAND_PRIORITY`."""
_LONGEST_TIER = 256
_LONGEST_PLACE = 64
_ANYWHERE = frozenset({"global", "not_available"})


def reported_cost(obj: object) -> Decimal | None:
    """Return the cost in USD that a reply or its usage reports, or None.

    OpenRouter reports `cost`. If the user's own key was used (`is_byok`), this is only OpenRouter's
    fee, so the upstream vendor's cost is added. If that cost is missing, the total is unknown.
    LiteLLM reports `response_cost`, Perplexity reports `cost.total_cost`, and xAI reports ticks of
    1e-10 USD (docs.x.ai/developers/cost-tracking).
    """
    if not isinstance(obj, Mapping):
        return None
    usage = part(obj, "usage") or obj
    cost = _decimal(part(usage, "cost").get("total_cost", usage.get("cost")))
    if cost is not None and usage.get("is_byok") is True:
        upstream = _decimal(part(usage, "cost_details").get("upstream_inference_cost"))
        cost = None if upstream is None else cost + upstream
    ticks = _decimal(usage.get("cost_in_usd_ticks"))
    if cost is None and ticks is not None:
        cost = ticks / _TICKS_PER_USD
    for holder in (obj, part(obj, "_hidden_params")):
        cost = cost if cost is not None else _decimal(holder.get("response_cost"))
    return cost


def service_tier(raw: object) -> str:
    """Return the service tier in a usage object, reply or stream, or "" for the standard tier.

    OpenAI, Anthropic and Groq send `service_tier`, the Gemini API `serviceTier`, Bedrock
    `serviceTier.type`, and Vertex AI `trafficType`. In Anthropic's fast mode, the tier is in
    `speed`. If `inference_geo` limits a call to a region, the
    region is appended, as in `@us` or `fast@us`.
    """
    named = [tiers for usage in usages_in(raw) if (tiers := _tiers(usage))]
    tier = next(filter(None, named[-1]), "") if named else ""
    places = (region_suffix(usage.get("inference_geo")) for usage in usages_in(raw))
    return tier + next(filter(None, places), "")


def _tiers(usage: JsonObject) -> list[str]:
    keys = ("service_tier", "serviceTier", "trafficType", "traffic_type", "speed")
    given = map(usage.get, keys)
    names = [name.get("type") if isinstance(name, Mapping) else name for name in given]
    return [normal_tier(name) for name in names if isinstance(name, str)]


def region_suffix(geo: object) -> str:
    """Return the region in Anthropic's `inference_geo` as a suffix such as `@us`.

    Returns "" if the call is not limited to a region.
    """
    place = geo.strip().lower() if isinstance(geo, str) else ""
    known = place and place not in _ANYWHERE and len(place) <= _LONGEST_PLACE
    return f"@{place}" if known else ""


def normal_tier(name: object) -> str:
    """Return the lower-case name of a tier, or "" for the standard tier."""
    tier = name.strip().lower().removeprefix(_ON_DEMAND) if isinstance(name, str) else ""
    return "" if tier in _STANDARD_TIERS or len(tier) > _LONGEST_TIER else tier


def five_minute_writes(raw: object) -> int:
    """Return the number of tokens that a call wrote to a five-minute cache."""
    usage = _usage(raw)
    tiers = part(usage, "cache_creation") or part(
        part(usage, "prompt_tokens_details"), "cache_creation_token_details"
    )
    listed = usage.get("cacheDetails")  # Bedrock
    entries = listed if isinstance(listed, list) else []
    return count_or_zero(tiers.get("ephemeral_5m_input_tokens")) + sum(
        count_or_zero(entry.get("inputTokens"))
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("ttl") == "5m"
    )


def _usage(raw: object) -> JsonObject:
    if not isinstance(raw, Mapping):
        return {}
    return part(raw, "usage") or part(part(raw, "message"), "usage") or raw


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return min(cost, _ABSURD_USD) if cost.is_finite() and cost >= 0 else None


_INPUT = ("prompt_tokens_details", "input_tokens_details", "input_token_details")
_OUTPUT = ("completion_tokens_details", "output_tokens_details", "output_token_details")
_GEMINI_INPUT = ("promptTokensDetails", "toolUsePromptTokensDetails")
_GEMINI_CACHED = ("cacheTokensDetails",)
_GEMINI_OUTPUT = ("candidatesTokensDetails",)

_Counts: TypeAlias = Mapping[str, int]
_MODALITIES = ("audio", "image", "video")


class Modalities(msgspec.Struct, frozen=True):
    """A call's non-text tokens. They are also included in its input and output tokens."""

    audio_input: int = 0
    audio_cache_read: int = 0
    audio_output: int = 0
    image_input: int = 0
    image_cache_read: int = 0
    image_output: int = 0
    video_input: int = 0

    @property
    def total(self) -> int:
        return sum(msgspec.structs.astuple(self))


def read_modality_tokens(raw: object) -> Modalities:
    """Return the non-text tokens in a usage object, reply or stream.

    OpenAI (chat, Responses, realtime, images) and xAI send `audio_tokens` and `image_tokens` in the
    details of the input and the output. Gemini sends a list of objects with the fields
    `modality` and `tokenCount`. If a stream contains several usage objects, the one with the most
    non-text tokens is used.
    """
    found = (_of_usage(usage) for usage in usages_in(raw))
    return max(found, key=lambda one: one.total, default=Modalities())


def _of_usage(usage: JsonObject) -> Modalities:
    cached = _sum_listed(usage, _GEMINI_CACHED)
    prompt, output = _sum_listed(usage, _GEMINI_INPUT), _sum_listed(usage, _GEMINI_OUTPUT)
    if not prompt and not output:
        details = [part(usage, name) for name in _INPUT]
        cached = _by_modality(part(one, "cached_tokens_details") for one in details)
        prompt, output = _by_modality(details), _by_modality(part(usage, name) for name in _OUTPUT)
    return Modalities(
        audio_input=max(0, prompt.get("audio", 0) - cached.get("audio", 0)),
        audio_cache_read=cached.get("audio", 0),
        audio_output=output.get("audio", 0),
        image_input=max(0, prompt.get("image", 0) - cached.get("image", 0)),
        image_cache_read=cached.get("image", 0),
        image_output=output.get("image", 0),
        video_input=max(0, prompt.get("video", 0) - cached.get("video", 0)),
    )


def _sum_listed(usage: JsonObject, names: tuple[str, ...]) -> _Counts:
    sums: dict[str, int] = {}
    for entry in _entries(usage, names):
        modality = str(entry.get("modality") or "").lower()
        sums[modality] = sums.get(modality, 0) + count_or_zero(
            entry.get("tokenCount", entry.get("token_count"))
        )
    return sums


def _entries(usage: JsonObject, names: tuple[str, ...]) -> Iterator[JsonObject]:
    for name in names:
        listed = usage.get(name) or usage.get(_snake(name))
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, Mapping):
                yield entry


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _by_modality(details: Iterator[JsonObject] | list[JsonObject]) -> _Counts:
    listed = list(details)
    return {
        modality: max((count_or_zero(one.get(f"{modality}_tokens")) for one in listed), default=0)
        for modality in _MODALITIES
    }


_WEB, _FILES = "web_search_call", "file_search_call"
_OTHERS = ("code_interpreter_call", "image_generation_call")
_DONE = "response.output_item.done"


class Searches(NamedTuple):
    """A call's searches and other tool uses that the vendor bills separately."""

    web: int = 0
    files: int = 0
    others: int = 0
    """Uses of tools that have no list price."""


def count_searches(raw: object, *, by_query: bool = True) -> Searches:
    """Return the billed searches in a usage object, reply or stream.

    Args:
        raw: The usage object, reply or list of stream events.
        by_query: Whether Gemini bills each query instead of each grounded prompt.
    """
    holders, items = list(holders_in(raw)), _streamed(raw)
    web = [_reported(usage) for usage in usages_in(raw)]
    for holder in holders:
        web += [
            _in_output(holder, _WEB),
            _cited_searches(holder),
            _grounded_searches(holder, by_query),
        ]
    files = [_in_output(holder, _FILES) for holder in holders]
    others = [_reported_others(usage) for usage in usages_in(raw)]
    others += [sum(_in_output(holder, kind) for kind in _OTHERS) for holder in holders]
    others += [_map_searches(holder) for holder in holders]
    return Searches(
        web=max([*web, items.count(_WEB)]),
        files=max([*files, items.count(_FILES)]),
        others=max([*others, sum(map(items.count, _OTHERS))]),
    )


def _reported(usage: JsonObject) -> int:
    tools = part(usage, "server_side_tool_usage_details")
    return (
        count_or_zero(part(usage, "server_tool_use").get("web_search_requests"))
        or count_or_zero(tools.get("web_search_calls")) + count_or_zero(tools.get("x_search_calls"))
        or count_or_zero(usage.get("num_sources_used"))
        or count_or_zero(usage.get("num_search_queries"))
    )


def _reported_others(usage: JsonObject) -> int:
    tools = part(usage, "server_side_tool_usage_details")
    return (
        count_or_zero(part(usage, "server_tool_use").get("code_execution_requests"))
        or count_or_zero(tools.get("code_interpreter_calls"))
        or count_or_zero(tools.get("code_execution_calls"))
    )


def _in_output(holder: JsonObject, kind: str) -> int:
    return sum(_is_search(item, kind) for item in _mappings(holder.get("output")))


def _streamed(raw: object) -> list[str]:
    """Return the type of each completed search in an OpenAI Responses stream."""
    events = raw if isinstance(raw, list | tuple) else ()
    done = [event for event in _mappings(events) if event.get("type") == _DONE]
    items = [part(event, "item") for event in done]
    kinds = (_WEB, _FILES, *_OTHERS)
    return [kind for item in items for kind in kinds if _is_search(item, kind)]


def _is_search(item: JsonObject, kind: str) -> bool:
    if item.get("type") != kind:
        return False
    return bool(part(item, "action").get("type", "search") == "search")


def _cited_searches(holder: JsonObject) -> int:
    for choice in _mappings(holder.get("choices")):
        for message in (part(choice, "message"), part(choice, "delta")):
            kinds = [one.get("type") for one in _mappings(message.get("annotations"))]
            if "url_citation" in kinds:
                return 1
    return 0


def _grounded_searches(holder: JsonObject, by_query: bool) -> int:
    found = 0
    for metadata in _groundings(holder):
        queries = metadata.get("webSearchQueries", metadata.get("web_search_queries"))
        asked = sum(bool(query) for query in queries) if isinstance(queries, list) else 0
        # `webSearchQueries` also contains Google Maps queries, which are not searches.
        if _sources(metadata) != {"maps"}:
            found = max(found, asked if by_query else min(asked, 1))
    return found


def _map_searches(holder: JsonObject) -> int:
    return int(any("maps" in _sources(metadata) for metadata in _groundings(holder)))


def _groundings(holder: JsonObject) -> Iterator[JsonObject]:
    for candidate in _mappings(holder.get("candidates")):
        yield part(candidate, "groundingMetadata") or part(candidate, "grounding_metadata")


def _sources(metadata: JsonObject) -> set[str]:
    """Return the types of sources that a grounded answer is based on, such as `web` and `maps`."""
    chunks = metadata.get("groundingChunks", metadata.get("grounding_chunks"))
    return {key for chunk in _mappings(chunks) for key in ("web", "maps") if part(chunk, key)}


def _mappings(value: Any) -> Iterator[JsonObject]:
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, Mapping):
            yield item
