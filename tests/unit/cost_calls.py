"""Creates calls for a ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sidecar.cost.ledger_events import PROTOCOL, Buckets, LedgerEvent


def call_of(agent: str = PROTOCOL, *, tokens: int = 1_000, **fields: Any) -> LedgerEvent:
    """Return a call of gpt-5 by an agent, with uncached input tokens only, or with these fields."""
    return LedgerEvent(
        **{
            "at": datetime(2026, 11, 20, tzinfo=UTC),
            "model": "gpt-5",
            "provider": "openai",
            "buckets": Buckets(input=tokens),
            "agent": agent,
            **fields,
        }
    )


def price_list_of(**models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a list like genai-prices' with the vendor `house`. Prices are per million tokens."""
    entries = [
        {"id": name, "match": {"equals": name}, "prices": prices} for name, prices in models.items()
    ]
    pattern = r"https://house\.example"
    return [{"id": "house", "name": "House", "api_pattern": pattern, "models": entries}]
