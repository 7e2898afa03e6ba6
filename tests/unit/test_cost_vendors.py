"""Tests the costs of vendors' usage objects, including caches, audio, images and searches.

Each case lists its priced tokens in `parts`, with prices in USD per million tokens. `each` lists
how many searches were made and the price of one search in USD. Nothing else has a price.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sidecar.config.settings import Price
from sidecar.cost.book import CostBook
from sidecar.cost.protocol import CostDetailParams, CostRecordParams
from sidecar.messages.billing import Searches, count_searches, service_tier

if TYPE_CHECKING:
    from pathlib import Path

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
Parts = tuple[tuple[int, str], ...]


class Case(NamedTuple):
    """A vendor's usage object, and its cost."""

    name: str
    provider: str
    model: str
    usage: dict[str, Any]
    parts: Parts
    each: Parts
    cost: str | None
    unpriced_tokens: int | None = None
    """The unpriced tokens, or None if everything is priced."""


def responses(
    fresh: int, read: int, write: int, output: int, items: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a reply from OpenAI's Responses API with output items of these types."""
    kinds = [item.partition(":") for item in items]
    return {
        "object": "response",
        "output": [
            {"type": kind} | ({"action": {"type": action}} if action else {})
            for kind, _, action in kinds
        ],
        "usage": {
            "input_tokens": fresh + read + write,
            "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": write},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def gemini(prompt: dict[str, int], output: dict[str, int], **more: Any) -> dict[str, Any]:
    """Return a Gemini reply with token counts by modality. Pass the cached tokens as `cached`."""
    cached = more.pop("cached", {})
    usage: dict[str, Any] = {
        "promptTokenCount": sum(prompt.values()),
        "candidatesTokenCount": sum(output.values()),
        "promptTokensDetails": _modalities(prompt),
        "candidatesTokensDetails": _modalities(output),
    }
    if cached:
        usage |= {"cachedContentTokenCount": sum(cached.values())}
        usage |= {"cacheTokensDetails": _modalities(cached)}
    return {"usageMetadata": usage} | more


def _modalities(tokens: dict[str, int]) -> list[dict[str, Any]]:
    return [{"modality": name, "tokenCount": number} for name, number in tokens.items()]


def grounded(*queries: str) -> list[dict[str, Any]]:
    return [{"content": {}, "groundingMetadata": {"webSearchQueries": list(queries)}}]


def mapped(*queries: str, web: bool = False) -> list[dict[str, Any]]:
    """Return a reply with Google Maps grounding. Its queries are reported like web searches."""
    (candidate,) = grounded(*queries)
    chunks = [{"maps": {"uri": "https://maps.example/1", "title": "A place"}}]
    chunks += [{"web": {"uri": "https://a.example", "title": "A page"}}] if web else []
    return [
        candidate
        | {"groundingMetadata": candidate["groundingMetadata"] | {"groundingChunks": chunks}}
    ]


def anthropic(**usage: Any) -> dict[str, Any]:
    return {"usage": {"input_tokens": 1_000, "output_tokens": 100} | usage}


def realtime(
    text: int, audio: int, output_text: int, output_audio: int, **more: int
) -> dict[str, Any]:
    """Return a `response.done` event of the realtime API.

    Pass cached tokens as `text_read`, `audio_read` and `image_read`.
    """
    read = {f"{name}_tokens": more.get(f"{name}_read", 0) for name in ("text", "audio", "image")}
    image = more.get("image", 0)
    details = {
        "text_tokens": text,
        "audio_tokens": audio,
        "image_tokens": image,
        "cached_tokens": sum(read.values()),
        "cached_tokens_details": read,
    }
    usage = {
        "total_tokens": text + audio + image + output_text + output_audio,
        "input_tokens": text + audio + image,
        "input_token_details": details,
        "output_tokens": output_text + output_audio,
        "output_token_details": {"text_tokens": output_text, "audio_tokens": output_audio},
    }
    return {"type": "response.done", "response": {"usage": usage}}


def chat(prompt: dict[str, int], output: dict[str, int], **more: Any) -> dict[str, Any]:
    """Return a chat completion with input and output token details."""
    return {
        "choices": [{"message": more.pop("message", {})}],
        "usage": {
            "prompt_tokens": prompt.pop("all"),
            "prompt_tokens_details": prompt,
            "completion_tokens": output.pop("all"),
            "completion_tokens_details": output,
        }
        | more,
    }


CITED = {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://a.example"}}]}

CASES = [
    # OpenAI's Responses API. Cache writes have their own price since gpt-5.6.
    Case(
        "responses: cache writes", "openai", "gpt-6-sol", responses(2_000, 2_000, 5_000, 200),
        ((2_000, "2"), (2_000, "0.2"), (5_000, "2.5"), (200, "10")), (), "0.0189",
    ),
    Case(
        "responses: all of it written", "openai", "gpt-6-luna", responses(0, 0, 8_000, 10),
        ((8_000, "0.125"), (10, "0.5")), (), "0.001005",
    ),
    Case(
        "responses: cache writes of a long prompt", "openai", "gpt-6-sol",
        responses(100_000, 0, 200_000, 10),
        ((100_000, "4"), (200_000, "5"), (10, "15")), (), "1.40015",
    ),
    Case(
        "responses: writes where none are sold apart", "openai", "gpt-5",
        responses(1_000, 0, 1_000, 100), ((2_000, "1.25"), (100, "10")), (), "0.0035",
    ),
    # Searches with OpenAI's built-in tools.
    Case(
        "responses: a web search", "openai", "gpt-5",
        responses(1_000, 0, 0, 100, ("web_search_call:search", "message")),
        ((1_000, "1.25"), (100, "10")), ((1, "0.01"),), "0.01225",
    ),
    Case(
        "responses: opened pages are free", "openai", "gpt-5",
        responses(1_000, 0, 0, 100, ("web_search_call:search", "web_search_call:open_page",
                                     "web_search_call:find_in_page", "web_search_call:search")),
        ((1_000, "1.25"), (100, "10")), ((2, "0.01"),), "0.02225",
    ),
    Case(
        "responses: a search of files", "openai", "gpt-5",
        responses(1_000, 0, 0, 100, ("file_search_call", "file_search_call")),
        ((1_000, "1.25"), (100, "10")), ((2, "0.0025"),), "0.00725",
    ),
    Case(
        "responses: a search the list has no price for", "openai", "gpt-5.3-codex",
        responses(1_000, 0, 0, 100, ("web_search_call:search",)),
        ((1_000, "1.75"), (100, "14")), (), "0.00315", 0,
    ),
    Case(
        "chat: a search model cites", "openai", "gpt-4o-search-preview",
        chat({"all": 1_000}, {"all": 100}, message=CITED),
        ((1_000, "2.5"), (100, "10")), (), "0.0035", 0,
    ),
    # Audio.
    Case(
        "realtime: both ways", "openai", "gpt-realtime", realtime(100, 1_000, 100, 400),
        ((100, "4"), (1_000, "32"), (100, "16"), (400, "64")), (), "0.0596",
    ),
    Case(
        "realtime: cached audio", "openai", "gpt-realtime",
        realtime(100, 1_000, 0, 0, text_read=60, audio_read=700),
        ((40, "4"), (60, "0.4"), (300, "32"), (700, "0.4")), (), "0.010064",
    ),
    Case(
        "realtime: a picture", "openai", "gpt-realtime", realtime(0, 0, 10, 0, image=800),
        ((800, "5"), (10, "16")), (), "0.00416",
    ),
    Case(
        "realtime: cached pictures", "openai", "gpt-realtime-mini",
        realtime(0, 0, 10, 0, image=800, image_read=300),
        ((500, "0.8"), (300, "0.08"), (10, "2.4")), (), "0.000448",
    ),
    Case(
        "chat: audio in and out", "openai", "gpt-audio",
        chat({"all": 600, "audio_tokens": 500}, {"all": 300, "audio_tokens": 250}),
        ((100, "2.5"), (500, "32"), (50, "10"), (250, "64")), (), "0.03275",
    ),
    Case(
        "transcription", "openai", "gpt-4o-transcribe",
        {"type": "tokens", "input_tokens": 1_000, "output_tokens": 50,
         "input_token_details": {"text_tokens": 100, "audio_tokens": 900}},
        ((100, "2.5"), (900, "6"), (50, "10")), (), "0.00615",
    ),
    Case(
        "chat: audio where none is sold", "openai", "gpt-5",
        chat({"all": 600, "audio_tokens": 500}, {"all": 100, "audio_tokens": 0}),
        ((100, "1.25"), (100, "10")), (), "0.001125", 500,
    ),
    Case(
        "gemini: audio", "google", "gemini-2.5-flash",
        gemini({"TEXT": 1_000, "AUDIO": 10_000}, {"TEXT": 100}),
        ((1_000, "0.3"), (10_000, "1"), (100, "2.5")), (), "0.01055",
    ),
    Case(
        "gemini: cached audio", "google", "gemini-2.5-flash",
        gemini({"TEXT": 1_000, "AUDIO": 10_000}, {"TEXT": 100}, cached={"AUDIO": 4_000}),
        ((1_000, "0.3"), (6_000, "1"), (4_000, "0.1"), (100, "2.5")), (), "0.00695",
    ),
    Case(
        "gemini: audio that the list has no price for", "google", "gemini-3.5-flash",
        gemini({"TEXT": 1_000, "AUDIO": 10_000}, {"TEXT": 100}),
        ((1_000, "1.5"), (100, "9")), (), "0.0024", 10_000,
    ),
    Case(
        "gemini: pictures and video cost as text", "google", "gemini-3.1-pro-preview",
        gemini({"TEXT": 100, "IMAGE": 1_120, "VIDEO": 700}, {"TEXT": 10}),
        ((1_920, "2"), (10, "12")), (), "0.00396",
    ),
    Case(
        "gemini live: video and audio", "google", "gemini-3.8-live",
        gemini({"TEXT": 100, "VIDEO": 2_580, "AUDIO": 250}, {"AUDIO": 500}),
        ((100, "0.75"), (2_580, "1"), (250, "3"), (500, "12")), (), "0.009405",
    ),
    Case(
        "gemini: a picture is made", "google", "gemini-2.5-flash-image",
        gemini({"TEXT": 100}, {"TEXT": 10, "IMAGE": 1_290}),
        ((100, "0.3"), (10, "2.5"), (1_290, "30")), (), "0.038755",
    ),
    # Grounding is billed per prompt before Gemini 3, and per query from Gemini 3 on.
    Case(
        "gemini 2.5: grounding", "google", "gemini-2.5-flash",
        gemini({"TEXT": 1_000}, {"TEXT": 100}, candidates=grounded("a", "b", "c")),
        ((1_000, "0.3"), (100, "2.5")), ((1, "0.035"),), "0.03555",
    ),
    Case(
        "gemini 3: grounding", "google", "gemini-3.1-pro-preview",
        gemini({"TEXT": 1_000}, {"TEXT": 100}, candidates=grounded("a", "b", "", "c")),
        ((1_000, "2"), (100, "12")), ((3, "0.014"),), "0.0452",
    ),
    Case(
        "gemini: grounding that found no need", "google", "gemini-2.5-flash",
        gemini({"TEXT": 1_000}, {"TEXT": 100}, candidates=grounded()),
        ((1_000, "0.3"), (100, "2.5")), (), "0.00055",
    ),
    # Tools without a list price. The rest of the call is priced, and the row is marked.
    Case(
        "responses: a code interpreter and a search", "openai", "gpt-5",
        responses(1_000, 0, 0, 100, ("code_interpreter_call", "web_search_call:search")),
        ((1_000, "1.25"), (100, "10")), ((1, "0.01"),), "0.01225", 0,
    ),
    Case(
        "responses: a picture that a tool made", "openai", "gpt-5",
        responses(1_000, 0, 0, 100, ("image_generation_call",)),
        ((1_000, "1.25"), (100, "10")), (), "0.00225", 0,
    ),
    Case(
        "anthropic: code that was run", "anthropic", "claude-opus-5-5",
        anthropic(server_tool_use={"code_execution_requests": 2}),
        ((1_000, "4"), (100, "20")), (), "0.006", 0,
    ),
    Case(
        "xai: code that was run", "x-ai", "grok-4.7",
        {"usage": {"input_tokens": 1_000, "output_tokens": 10,
                   "server_side_tool_usage_details": {"code_interpreter_calls": 2}}},
        ((1_000, "2"), (10, "6")), (), "0.00206", 0,
    ),
    Case(
        "gemini: grounding in maps alone", "google", "gemini-2.5-flash",
        gemini({"TEXT": 1_000}, {"TEXT": 100}, candidates=mapped("where to eat")),
        ((1_000, "0.3"), (100, "2.5")), (), "0.00055", 0,
    ),
    Case(
        "gemini 3: grounding in maps and the web", "google", "gemini-3.1-pro-preview",
        gemini({"TEXT": 1_000}, {"TEXT": 100}, candidates=mapped("a", "b", web=True)),
        ((1_000, "2"), (100, "12")), ((2, "0.014"),), "0.0312", 0,
    ),
    # xAI.
    Case(
        "xai: what it says it cost", "x-ai", "grok-4.7",
        {"usage": {"input_tokens": 1_000, "output_tokens": 10, "cost_in_usd_ticks": 569_184_000,
                   "server_side_tool_usage_details": {"web_search_calls": 7}}},
        (), (), "0.0569184",
    ),
    Case(
        "xai: searches have no price in the list", "x-ai", "grok-4.7",
        {"usage": {"input_tokens": 1_000, "output_tokens": 10,
                   "server_side_tool_usage_details": {"web_search_calls": 2, "x_search_calls": 1}}},
        ((1_000, "2"), (10, "6")), (), "0.00206", 0,
    ),
    Case(
        "xai: live search", "x-ai", "grok-4.7",
        {"usage": {"prompt_tokens": 1_000, "completion_tokens": 10, "num_sources_used": 4}},
        ((1_000, "2"), (10, "6")), (), "0.00206", 0,
    ),
    # Anthropic.
    Case(
        "anthropic: searches", "anthropic", "claude-opus-5-5",
        anthropic(server_tool_use={"web_search_requests": 3}),
        ((1_000, "4"), (100, "20")), ((3, "0.01"),), "0.036",
    ),
    Case(
        "anthropic: confined to the US", "anthropic", "claude-opus-5-5",
        anthropic(inference_geo="us", cache_read_input_tokens=10_000,
                  cache_creation_input_tokens=2_000),
        ((1_000, "4.4"), (100, "22"), (10_000, "0.22"), (2_000, "5.5")), (), "0.0198",
    ),
    Case(
        "anthropic: anywhere", "anthropic", "claude-opus-5-5",
        anthropic(inference_geo="global"), ((1_000, "4"), (100, "20")), (), "0.006",
    ),
    Case(
        "anthropic: older models say not_available", "anthropic", "claude-haiku-4-5",
        anthropic(inference_geo="not_available"), ((1_000, "1"), (100, "5")), (), "0.0015",
    ),
    Case(
        "anthropic: the US, searches at their own price", "anthropic", "claude-opus-5-5",
        anthropic(inference_geo="us", server_tool_use={"web_search_requests": 2}),
        ((1_000, "4.4"), (100, "22")), ((2, "0.01"),), "0.0266",
    ),
    Case(
        "anthropic: the US in the batch", "anthropic", "claude-opus-5-5",
        anthropic(inference_geo="us", service_tier="batch"),
        ((1_000, "2.2"), (100, "11")), (), "0.0033",
    ),
    Case(
        "anthropic: a place that no list knows", "anthropic", "claude-opus-5-5",
        anthropic(inference_geo="atlantis"), (), (), None, 1_100,
    ),
    # Perplexity.
    Case(
        "perplexity: searches of its research", "perplexity", "sonar-deep-research",
        {"usage": {"prompt_tokens": 100, "completion_tokens": 10, "num_search_queries": 8}},
        ((100, "2"), (10, "8")), ((8, "0.005"),), "0.04028",
    ),
    Case(
        "perplexity: sonar's searches are in the price of a call", "perplexity", "sonar-pro",
        {"usage": {"prompt_tokens": 100, "completion_tokens": 10, "num_search_queries": 1}},
        ((100, "3"), (10, "15")), ((1, "0.014"),), "0.01445",
    ),
    Case(
        "perplexity: what it says it cost", "perplexity", "sonar-pro",
        {"usage": {"prompt_tokens": 100, "completion_tokens": 10,
                   "cost": {"request_cost": 0.006, "total_cost": 0.00645}}},
        (), (), "0.00645",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_usage_costs_the_expected_amount(case: Case, tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state")
    recorded = book.record(
        CostRecordParams(
            model=case.model, provider=case.provider, usage=case.usage, at=AT, request_id="one"
        )
    )
    (row,), totals = (found := book.detail(CostDetailParams())).rows, found.totals
    book.close()
    by_hand = sum((n * Decimal(price) for n, price in case.parts), Decimal(0)) / 1_000_000
    by_hand += sum(n * Decimal(price) for n, price in case.each)
    cost = None if case.cost is None else Decimal(case.cost)
    assert cost in (None, by_hand) or not case.parts, "the case itself"
    assert recorded.cost_usd == row.cost_usd == (None if cost is None else float(cost))
    assert recorded.unpriced == row.unpriced == (case.unpriced_tokens is not None)
    assert totals.unpriced_tokens == (case.unpriced_tokens or 0)
    assert row.text.endswith("unpriced") == row.unpriced


def test_a_stream_is_billed_as_its_reply() -> None:
    """The stream contains tool calls, and its last event contains the usage and the tier."""
    reply = responses(1_000, 0, 0, 100, ("web_search_call:search",)) | {"service_tier": "flex"}
    item = reply["output"][0]
    stream: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"service_tier": "auto"}},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": reply},
    ]
    assert (
        count_searches(stream)
        == count_searches(stream[:2])
        == count_searches(reply)
        == Searches(web=1)
    )
    assert service_tier(stream) == service_tier(reply) == "flex"


@pytest.mark.parametrize("provider", ["x-ai", "xai", "X-AI", None])
def test_reasoning_of_xai_is_billed_without_a_total(provider: str | None, tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 94},
    }
    book = CostBook(tmp_path / "state")
    params = CostRecordParams(model="grok-4", provider=provider, usage=usage, request_id="a")
    recorded = book.record(params)
    totals = book.detail(CostDetailParams()).totals
    book.close()
    assert (recorded.usage.output_tokens, recorded.usage.reasoning_tokens) == (103, 94)
    assert (totals.output_tokens, totals.reasoning_tokens) == (103, 94)


def test_the_users_own_price_holds_for_all_tools(tmp_path: Path) -> None:
    price = Price(models=("my-model",), input=Decimal(1), output=Decimal(2))
    book = CostBook(tmp_path / "state", (price,))
    usage = responses(1_000, 0, 0, 100, ("code_interpreter_call",))
    recorded = book.record(CostRecordParams(model="my-model", usage=usage, at=AT))
    book.close()
    assert (recorded.cost_usd, recorded.unpriced) == (0.0012, False)


def test_partly_priced_usage_is_marked(tmp_path: Path) -> None:
    book = CostBook(tmp_path / "state")
    heard = chat({"all": 600, "audio_tokens": 500}, {"all": 100})
    for number, (model, usage) in enumerate(
        [
            ("gpt-5", heard),
            ("gpt-5", {"prompt_tokens": 100, "completion_tokens": 0}),
            ("nobody-knows-me", {"prompt_tokens": 7, "completion_tokens": 1}),
        ]
    ):
        book.record(CostRecordParams(model=model, usage=usage, at=AT, request_id=str(number)))
    report = book.detail(CostDetailParams(by=("model",)))
    book.close()
    assert [row.text for row in report.rows] == [
        "gpt-5 2 calls, 700 / 100 tokens, $0.001250 + parts unpriced",
        "nobody-knows-me 1 calls, 7 / 1 tokens, unpriced",
    ]
    assert report.totals.cost_text == "$0.001250 + 1 call and parts unpriced"
    assert report.totals.unpriced_tokens == 508
