"""Tests how vendors' usage is converted to buckets, what it costs, and the keys of workspaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.settings import Price
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams
from sidecar.cost.days import milliseconds
from sidecar.cost.ledger import folder_name, workspace_key
from sidecar.cost.ledger_events import buckets_of
from sidecar.messages.vendor_usage import Searches, count_searches, normalize_usage, service_tier
from tests.cases import read_cases, read_rows


def cache_creation(minutes: int, hour: int) -> dict[str, Any]:
    lives = {"ephemeral_5m_input_tokens": minutes, "ephemeral_1h_input_tokens": hour}
    return {"cache_creation_input_tokens": 60, "cache_creation": lives}


BEDROCK = [{"inputTokens": 20, "ttl": "5m"}, {"inputTokens": 40, "ttl": "1h"}]


@pytest.mark.parametrize(
    ("raw", "writes"),
    [
        ({"cache_creation_input_tokens": 60}, (0, 0, 60)),
        (cache_creation(20, 40), (20, 40, 0)),
        (cache_creation(10, 40), (10, 40, 10)),
        ({"inputTokens": 1, "cacheWriteInputTokens": 60, "cacheDetails": BEDROCK}, (20, 40, 0)),
    ],
)
def test_cache_writes_by_their_time_to_live(
    raw: dict[str, Any], writes: tuple[int, int, int]
) -> None:
    whole = raw if "inputTokens" in raw else {"input_tokens": 1, "output_tokens": 0} | raw
    for reply in (whole, {"usage": whole}, {"message": {"usage": whole}}):
        usage = normalize_usage(reply)
        assert usage is not None
        found = buckets_of(usage, reply)
        assert (found.cache_write_5m, found.cache_write_1h, found.cache_write) == writes
        assert found.prompt == usage.prompt_tokens == 61


@pytest.mark.parametrize(
    ("raw", "tier"),
    [
        ({}, ""),
        (None, ""),
        ({"service_tier": "default"}, ""),
        ({"service_tier": "standard"}, ""),
        ({"service_tier": "Flex"}, "flex"),
        ({"service_tier": None, "usage": {"service_tier": "batch"}}, "batch"),
        ({"usage": {"service_tier": "standard", "speed": "fast"}}, "fast"),
        ({"usage": {"speed": "standard"}}, ""),
        ({"serviceTier": {"type": "priority"}}, "priority"),
        ({"usageMetadata": {"promptTokenCount": 1, "trafficType": "ON_DEMAND"}}, ""),
        ({"usageMetadata": {"trafficType": "ON_DEMAND_PRIORITY"}}, "priority"),
        ({"usage_metadata": {"traffic_type": "ON_DEMAND_FLEX"}}, "flex"),
        ({"usageMetadata": {"trafficType": "TRAFFIC_TYPE_UNSPECIFIED"}}, ""),
        ({"usageMetadata": {"trafficType": "PROVISIONED_THROUGHPUT"}}, "provisioned_throughput"),
        ({"usageMetadata": {"serviceTier": "flex"}}, "flex"),
        ({"usageMetadata": {"serviceTier": "unspecified"}}, ""),
        ({"service_tier": 7}, ""),
        ({"service_tier": "x" * 600}, ""),
    ],
)
def test_service_tiers(raw: object, tier: str) -> None:
    assert service_tier(raw) == tier


@pytest.mark.parametrize(("named", "key"), read_rows("cost", "workspace_keys"))
def test_a_workspace_has_one_spelling(named: str, key: str) -> None:
    assert workspace_key(named) == key
    assert workspace_key(key) == key


def test_a_report_finds_a_workspace_by_any_spelling(book: CostBook) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    for spelling in ("file:///my%20work/", "file:///my work", "file://localhost/my%20work"):
        book.record(CostRecordParams(model="gpt-5", usage=usage, workspace=spelling))
        (row,) = book.detail(CostDetailParams(workspace=spelling, by=("workspace",))).rows
    assert (row.calls, row.workspace) == (3, "file:///my%20work")


def test_names_of_workspaces() -> None:
    assert [folder_name(uri) for uri in ("file:///home/me/my%20work", "file:///w/", "")] == [
        "my work",
        "w",
        "",
    ]


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001
def test_milliseconds_are_exact(moment: datetime, offset: int) -> None:
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    expected = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert milliseconds(zoned) == expected


AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
RESPONSE: dict[str, Any] = {
    "object": "response",
    "output": [{"type": "web_search_call", "action": {"type": "search"}}],
    "usage": {"input_tokens": 1_000, "output_tokens": 100},
}


class Case(msgspec.Struct):
    """A vendor's usage object, and its cost."""

    provider: str
    model: str
    usage: dict[str, Any]
    cost: Decimal | None = None
    tokens: list[tuple[int, Decimal]] = []
    searches: list[tuple[int, Decimal]] = []
    unpriced: int | None = None


@pytest.mark.parametrize("case", read_cases("usage_costs", Case))
def test_usage_costs_the_expected_amount(case: Case, book: CostBook) -> None:
    recorded = book.record(
        CostRecordParams(
            model=case.model, provider=case.provider, usage=case.usage, at=AT, request_id="one"
        )
    )
    (row,), totals = (found := book.detail(CostDetailParams())).rows, found.totals
    by_hand = sum(n * price for n, price in case.tokens) / Decimal(1_000_000)
    by_hand += sum(n * price for n, price in case.searches)
    assert case.cost in (None, by_hand) or not case.tokens, "the case itself"
    assert recorded.cost_usd == row.cost_usd == (None if case.cost is None else float(case.cost))
    assert recorded.unpriced == row.unpriced == (case.unpriced is not None)
    assert totals.unpriced_tokens == (case.unpriced or 0)
    assert row.text.endswith("unpriced") == row.unpriced


def test_a_stream_is_billed_as_its_reply() -> None:
    """The stream contains tool calls, and its last event contains the usage and the tier."""
    reply = RESPONSE | {"service_tier": "flex"}
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
def test_reasoning_of_xai_is_billed_without_a_total(provider: str | None, book: CostBook) -> None:
    usage = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 94},
    }
    params = CostRecordParams(model="grok-4", provider=provider, usage=usage, request_id="a")
    recorded = book.record(params)
    totals = book.detail(CostDetailParams()).totals
    assert (recorded.usage.output_tokens, recorded.usage.reasoning_tokens) == (103, 94)
    assert (totals.output_tokens, totals.reasoning_tokens) == (103, 94)


def test_the_users_own_price_holds_for_all_tools(tmp_path: Path) -> None:
    price = Price(models=("my-model",), input=Decimal(1), output=Decimal(2))
    book = CostBook(tmp_path / "state", (price,))
    usage = RESPONSE | {"output": [{"type": "code_interpreter_call"}]}
    recorded = book.record(CostRecordParams(model="my-model", usage=usage, at=AT))
    book.close()
    assert (recorded.cost_usd, recorded.unpriced) == (0.0012, False)


def test_partly_priced_usage_is_marked(book: CostBook) -> None:
    heard: dict[str, Any] = {
        "prompt_tokens": 600,
        "prompt_tokens_details": {"audio_tokens": 500},
        "completion_tokens": 100,
    }
    for number, (model, usage) in enumerate(
        [
            ("gpt-5", heard),
            ("gpt-5", {"prompt_tokens": 100, "completion_tokens": 0}),
            ("nobody-knows-me", {"prompt_tokens": 7, "completion_tokens": 1}),
        ]
    ):
        book.record(CostRecordParams(model=model, usage=usage, at=AT, request_id=str(number)))
    report = book.detail(CostDetailParams(by=("model",)))
    assert [row.text for row in report.rows] == [
        "gpt-5 2 calls, 700 / 100 tokens, $0.001250 + parts unpriced",
        "nobody-knows-me 1 calls, 7 / 1 tokens, unpriced",
    ]
    assert report.totals.cost_text == "$0.001250 + 1 call and parts unpriced"
    assert report.totals.unpriced_tokens == 508
