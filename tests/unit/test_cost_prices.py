"""Tests the prices of calls against prices computed by hand, and the precedence of price sources."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.config.settings import Price
from sidecar.cost.export import exported, source_of
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.models.catalogue import parse_list
from sidecar.models.names import LOCAL_PROVIDERS, parse
from tests.cases import read_cases, read_rows
from tests.unit.cost_calls import price_list_of

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Case(msgspec.Struct):
    """A call, the prices of its tokens in USD per million, and its cost or None if unpriced."""

    provider: str
    model: str
    tokens: Buckets
    prices: dict[str, Decimal] = {}
    cost: Decimal | None = None
    tier: str = ""
    at: datetime = NOW


@pytest.mark.parametrize("case", read_cases("prices", Case))
def test_the_price_of_a_call(case: Case) -> None:
    assert Prices().price(case.tokens, case.model, case.provider, case.at, case.tier) == case.cost
    if case.cost is not None:
        tokens = {name: n for name, n in msgspec.structs.asdict(case.tokens).items() if n}
        assert case.cost == sum(n * case.prices[name] for name, n in tokens.items()) / 1_000_000


@pytest.mark.parametrize(("model", "provider"), read_rows("cost", "marked_models"))
def test_window_mark_does_not_change_the_price(model: str, provider: str) -> None:
    call, at = Buckets(input=1_000, cache_read=1_000, output=100), NOW
    price = Prices().price(call, model, provider, at)
    assert price is not None
    for marked in (f"{model}[1m]", f"{model}[1M]"):
        assert Prices().price(call, marked, provider, at) == price
        own = Price(models=(parse(model).bare,), input=Decimal(1), output=Decimal(0))
        assert Prices([own]).price(call, marked, provider, at) == Decimal("0.002")


JULY, NOVEMBER = datetime(2026, 7, 15, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("model", "provider", "tier", "at", "factor", "is_derived"),
    [
        ("gpt-5.6-terra", "openai", "priority", JULY, "2", True),
        ("gpt-5.6-terra", "openai", "priority", NOVEMBER, "2", False),
        ("gpt-5.6-sol", "openai", "flex", JULY, "0.5", True),
        ("gpt-5-mini", "openai", "priority", JULY, "1.8", True),
        ("o3", "openai", "flex", datetime(2025, 6, 9, tzinfo=UTC), "0.5", True),
        ("claude-haiku-4-5", "anthropic", "batch", JULY, "0.5", True),
        ("claude-haiku-4-5", "anthropic", "batch@us", JULY, "0.55", True),
        ("claude-haiku-4-5", "anthropic", "batch@us", NOVEMBER, "0.55", False),
        ("gemini-3.8-flash-tts", "google", "priority", JULY, "1.8", True),
        # OpenAI uses the standard tier for a model that does not offer the requested tier.
        ("gpt-5.4-nano", "openai", "priority", NOVEMBER, "1", True),
        ("gpt-5.3-codex", "openai", "flex", JULY, "1", True),
        ("gpt-5.4-nano", "openai", "ultrafast", NOVEMBER, None, False),
        ("claude-opus-4-6", "anthropic", "fast", NOVEMBER, None, False),
        ("gemini-3.1-pro-preview", "google", "flex", NOVEMBER, None, False),
        ("openai/gpt-5.4", "openrouter", "priority", NOVEMBER, None, False),
        ("codex-auto-review", "openai", "priority", NOVEMBER, None, False),
    ],
)
def test_tier_without_a_price_that_day_keeps_its_ratio_to_the_standard_price(
    model: str, provider: str, tier: str, at: datetime, factor: str | None, is_derived: bool
) -> None:
    call = Buckets(input=1_000, output=100)
    event = LedgerEvent(at=at, model=model, provider=provider, buckets=call, tier=tier)
    cost, standard = Prices().cost(event), Prices().price(call, model, provider, at)
    if factor is None:
        assert cost == Cost(None, 1_100, whole=False)
        return
    assert standard is not None
    assert cost == Cost(standard * Decimal(factor), basis="derived" if is_derived else "list")
    assert source_of(cost) == ("derived" if is_derived else "list")


def test_derived_tier_keeps_the_ratios_of_a_long_prompt_and_of_caches() -> None:
    """In July, the standard prices above 272,000 tokens were 5, 0.50, 6.25 and 22.50."""
    call = Buckets(input=300_000, cache_read=100_000, cache_write=10_000, output=1_000)
    flex = Prices().price(call, "gpt-5.6-terra", "openai", JULY, "flex")
    assert flex == Decimal("0.8175") == (300_000 * Decimal("2.5") + 100_000 * Decimal("0.25")
        + 10_000 * Decimal("3.125") + 1_000 * Decimal("11.25")) / 1_000_000  # fmt: skip


OWN = (Price(models=("house-*", "gpt-5"), input=Decimal(2), output=Decimal(6)),)


@pytest.mark.parametrize(
    ("model", "agent_cost", "entries", "fields", "cost", "source"),
    [
        ("gpt-5", "1.25", (), {}, "1.25", "list"),  # the agent has the same list
        ("gpt-5", "0.5", (), {}, "1.25", "list"),
        ("house-1", "2", OWN, {}, "2", "own"),
        ("house-1", "0.5", OWN, {}, "2", "own"),
        ("gpt-5", "2", OWN, {}, "2", "own"),
        ("house-1", "0.5", (), {}, "0.5", "agent"),
        ("house-1", None, (), {}, None, "unpriced"),
        ("gpt-5", None, (), {"reported_cost": Decimal("0.0000123")}, "0.0000123", "reported"),
        (
            "gpt-5",
            "1.25",
            (),
            {"buckets": Buckets(input=1_000_000, other_tools=1)},
            "1.25",
            "partly",
        ),
    ],
)
def test_cost_and_its_source_do_not_depend_on_the_agents_amount(
    model: str,
    agent_cost: str | None,
    entries: tuple[Price, ...],
    fields: dict[str, Any],
    cost: str | None,
    source: str,
) -> None:
    call = {"at": NOW, "model": model, "provider": "openai", "buckets": Buckets(input=1_000_000)}
    agent = None if agent_cost is None else Decimal(agent_cost)
    event = LedgerEvent(**{**call, "agent_cost": agent, **fields})
    priced = Prices(entries).cost(event)
    assert priced.usd == (None if cost is None else Decimal(cost))
    assert exported(msgspec.structs.replace(event, cost=priced)).cost_source == source


@pytest.mark.parametrize("provider", sorted(LOCAL_PROVIDERS))
def test_local_models_are_free_only_when_the_user_says_so(provider: str) -> None:
    call = Buckets(input=1000, output=10)
    free = Price(models=("qwen-*",), input=Decimal(0), output=Decimal(0))
    assert Prices().price(call, "qwen-3", provider) is None
    assert Prices([free]).price(call, "qwen-3", provider) == 0
    assert Prices([free]).price(call, f"{provider}/qwen-3", provider) == 0
    assert Prices([free]).price(call, "/models/Qwen-3-Q4_K_M.gguf", provider) == 0
    assert Prices([free]).price(call, "llama-3", provider) is None


def test_the_users_own_prices() -> None:
    own = Price(
        models=("house-*", "gpt-5"),
        input=Decimal("2"),
        output=Decimal("6"),
        cache_read=Decimal("0.5"),
        cache_write=Decimal("3"),
    )
    book = Prices([own])
    call = Buckets(input=100, cache_read=1000, cache_write_1h=10, output=50, reasoning=5)
    by_hand = Decimal("0.00106")  # (100 * 2 + 1000 * 0.5 + 10 * 3 + 55 * 6) / 10**6
    assert book.price(call, "House-7", "vllm") == by_hand
    assert book.price(call, "gpt-5", "openai") == by_hand, "the user's word wins over the list"
    assert book.price(call, "gpt-5", "openai", tier="batch") == by_hand


def test_an_unlisted_cache_price_of_the_users_is_the_inputs() -> None:
    book = Prices([Price(models=("m",), input=Decimal("2"), output=Decimal("6"))])
    assert book.price(Buckets(cache_read=10, cache_write=10), "m", "") == Decimal("0.00004")


_tokens = st.integers(0, 400_000)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=st.sampled_from(
        [
            ("anthropic", "claude-sonnet-4-5"),
            ("anthropic", "claude-haiku-4-5"),
            ("openai", "gpt-5.4"),
            ("openai", "o3"),
            ("google", "gemini-2.5-pro"),
            ("deepseek", "deepseek-chat"),
            ("x-ai", "grok-4.3"),
            ("perplexity", "sonar-pro"),
        ]
    ),
    at=st.datetimes(datetime(2024, 1, 1), datetime(2027, 6, 1)),  # noqa: DTZ001
    tokens=st.builds(
        Buckets, input=_tokens, cache_read=_tokens, cache_write_5m=_tokens, output=_tokens
    ),
)
def test_a_call_costs_what_genai_prices_says(
    model: tuple[str, str], at: datetime, tokens: Buckets
) -> None:
    from genai_prices import Usage, calc_price

    when = at.replace(tzinfo=UTC)
    theirs = calc_price(
        Usage(
            input_tokens=tokens.prompt,
            cache_read_tokens=tokens.cache_read,
            cache_write_tokens=tokens.cache_write_5m,
            output_tokens=tokens.output,
        ),
        model[1],
        provider_id=model[0],
        genai_request_timestamp=when,
    )
    assert Prices().price(tokens, model[1], model[0], when) == theirs.total_price


PRIVATE_LIST = price_list_of(**{"house-1": {"input_mtok": 7, "output_mtok": 70}})


def test_an_updated_list_is_used_instead(tmp_path: Path) -> None:
    stored = tmp_path / "prices.json"
    stored.write_text(json.dumps(PRIVATE_LIST))
    call = Buckets(input=1000, output=1)
    assert Prices((), stored).price(call, "house-1", "house") == Decimal("0.00707")
    assert Prices((), stored).price(call, "gpt-5", "openai") is None
    assert Prices().price(call, "house-1", "house") is None
    assert Prices((), tmp_path / "none.json").price(Buckets(input=4), "gpt-5", "openai")


@pytest.mark.parametrize(
    ("model", "provider", "prompt", "units"),
    read_rows("cost", "prices_by_prompt_size", "model", "provider", "prompt", "units"),
)
def test_qwen_models_have_alibabas_prices_by_prompt_size(
    model: str, provider: str, prompt: int, units: tuple[str, str, str] | None
) -> None:
    call = Buckets(input=prompt - 500, cache_read=500, output=100)
    found = Prices().price(call, model, provider, NOW)
    if units is None:
        assert found is None
        return
    fresh, cached, output = map(Decimal, units)
    assert found == ((prompt - 500) * fresh + 500 * cached + 100 * output) / 1_000_000


def test_later_list_replaces_own_prices(tmp_path: Path) -> None:
    stored = tmp_path / "prices.json"
    call = Buckets(input=1_000_000)
    stored.write_text(json.dumps(PRIVATE_LIST))
    assert Prices((), stored).price(call, "qwen3.8-max", "alibaba") == 2
    newer = msgspec.to_builtins(PRIVATE_LIST[0]) | {"id": "alibaba"}
    stored.write_text(json.dumps([newer]))
    assert Prices((), stored).price(call, "qwen3.8-max", "alibaba") is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"[1]", b"[{}]", b"<html>", b"[" * 10**6])
def test_invalid_stored_price_list_is_ignored(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_list(data)
    stored = tmp_path / "prices.json"
    stored.write_bytes(data)
    prices = Prices((), stored)
    listed = prices.price(Buckets(input=1_000_000), "gpt-5", "openai")
    assert listed == Decimal("1.25"), "the package's list is used instead"
    assert "update-prices" in caplog.text
    assert Prices((), stored).price(Buckets(input=1_000_000), "gpt-5", "openai") == listed
    assert len(caplog.records) == 1, "it is said once"
    (aside,) = tmp_path.glob("prices.json*")
    assert (aside.name[:19], aside.read_bytes()) == ("prices.json.broken-", data)
