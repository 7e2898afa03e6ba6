"""Tests the costs of vendors' usage objects, including caches, audio, images and searches."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.config.settings import Price
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostDetailParams, CostRecordParams
from sidecar.messages.vendor_usage import Searches, count_searches, service_tier
from tests.cases import read_cases

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
