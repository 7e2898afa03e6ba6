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
