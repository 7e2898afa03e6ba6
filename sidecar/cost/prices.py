"""Looks up model prices in the user's `[[price]]` entries and in the price list."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple

from sidecar.models.names import CREDIT_PROVIDERS, LOCAL_PROVIDERS, matches, parse, undated_name
from sidecar.models.price_list import find_tariff, price_list
from sidecar.models.tariffs import Tariff, UnitPrices, UserTariff

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.config.settings import Price
    from sidecar.cost.events import Buckets, LedgerEvent


Basis = Literal["reported", "agent", "list", "own"]


class Cost(NamedTuple):
    """The cost of calls, and how much of their usage has no price."""

    usd: Decimal | None
    """The cost in USD of everything with a price, or None if nothing has a price."""
    unpriced_tokens: int = 0
    whole: bool = True
    """Whether all tokens and searches have a price."""
    is_derived: bool = False
    """Whether a service tier's prices were derived from the standard prices."""
    basis: Basis | None = None
    """Where the amount comes from: the vendor, the agent, the price list or the user's `[[price]]`.

    None if nothing has a price, and for the sum of several costs.
    """


def add_costs(costs: Sequence[Cost]) -> Cost:
    """Return the sum of several costs, without what could not be priced."""
    known = [cost.usd for cost in costs if cost.usd is not None]
    return Cost(
        sum(known, Decimal(0)) if known or not costs else None,
        sum(cost.unpriced_tokens for cost in costs),
        all(cost.whole for cost in costs),
        any(cost.is_derived for cost in costs),
    )


class Prices:
    """The prices of all models. The price list is loaded on first use. Thread-safe."""

    def __init__(self, entries: Sequence[Price] = (), stored_list: Path | None = None) -> None:
        self._entries = [(entry.models, UserTariff(entry)) for entry in entries]
        self._stored_list = stored_list
        self._found: dict[tuple[str, str], Tariff | None] = {}
        self._lock = threading.Lock()

    def tariff(self, model: str, provider: str) -> Tariff | None:
        """Return a provider's tariff for a model, or None if unknown.

        A `[[price]]` entry takes precedence over the price list. Loading the list takes 0.7 s.
        """
        key = (model, provider)
        with self._lock:
            if key not in self._found:
                self._found[key] = self._own_tariff(model) or self._listed_tariff(model, provider)
            return self._found[key]

    def priced_name(self, model: str, provider: str) -> str:
        """Return the name under which a report lists a model.

        It is the name without its date if both names have the same prices.
        """
        name = undated_name(model)
        if not name or name == model:
            return model
        tariff = self.tariff(model, provider)
        return name if tariff is not None and tariff == self.tariff(name, provider) else model

    def cost(self, event: LedgerEvent) -> Cost:
        """Return a call's cost.

        The reported cost takes precedence over the tariff, and the tariff takes precedence over the
        cost that the agent computed.
        """
        if event.reported_cost is not None:
            return Cost(event.reported_cost, basis="reported")
        cost = self._cost_by_tariff(
            event.buckets, event.model, event.provider, event.at, event.tier
        )
        if cost.usd is None and event.agent_cost:
            return Cost(event.agent_cost, basis="agent")
        return cost

    def price(
        self,
        buckets: Buckets,
        model: str,
        provider: str,
        at: datetime | None = None,
        tier: str = "",
    ) -> Decimal | None:
        """Return a call's cost in USD, or None if any part of it has no price."""
        when = datetime.now(UTC) if at is None else at
        cost = self._cost_by_tariff(buckets, model, provider, when, tier)
        return cost.usd if cost.whole else None

    def _cost_by_tariff(
        self, buckets: Buckets, model: str, provider: str, at: datetime, tier: str
    ) -> Cost:
        tariff = self.tariff(model, provider)
        prices = None if tariff is None else tariff.prices(at, tier, buckets.prompt)
        cost = cost_of(prices, buckets)
        if cost.usd is None:
            return cost
        return cost._replace(basis="own" if isinstance(tariff, UserTariff) else "list")

    def _own_tariff(self, model: str) -> Tariff | None:
        return next((tariff for globs, tariff in self._entries if matches(model, globs)), None)

    def _listed_tariff(self, model: str, provider: str) -> Tariff | None:
        if provider in LOCAL_PROVIDERS | CREDIT_PROVIDERS:
            return None
        snapshot, name = price_list(self._stored_list), parse(model)
        tariffs = (find_tariff(snapshot, id, provider) for id in (name.written, name.host_id))
        return next((tariff for tariff in tariffs if tariff), None)


def cost_of(unit: UnitPrices | None, buckets: Buckets, calls: int = 1) -> Cost:
    """Return the exact cost of calls that have the same prices.

    Args:
        unit: The prices in USD per million tokens and per search, or None if unknown.
        buckets: The calls' combined tokens and searches.
        calls: The number of calls.
    """
    if unit is None:
        return Cost(None, buckets.prompt + buckets.completion, whole=False)
    tokens, unpriced, priced = Decimal(0), 0, False
    for number, price in _token_parts(unit, buckets):
        if number and price is None:
            unpriced += number
        elif number and price is not None:
            tokens, priced = tokens + number * price, True
    usd, whole = tokens.scaleb(-6) + calls * unit.call, not unpriced
    for number, price in (
        (buckets.web_searches, unit.search),
        (buckets.file_searches, unit.file_search),
        (buckets.other_tools, unit.other_tool),
    ):
        usd += number * (price or Decimal(0))
        priced = priced or bool(number and price is not None)
        whole = whole and (not number or price is not None)
    return Cost(usd if priced or whole else None, unpriced, whole, unit.is_derived)


def _token_parts(unit: UnitPrices, b: Buckets) -> tuple[tuple[int, Decimal | None], ...]:
    return (
        (b.input - b.audio_input - b.image_input - b.video_input, unit.input),
        (b.cache_read - b.audio_cache_read - b.image_cache_read, unit.cache_read),
        (b.cache_write_5m + b.cache_write, unit.cache_write),
        (b.cache_write_1h, unit.cache_write_1h),
        (b.output - b.audio_output - b.image_output, unit.output),
        (b.reasoning, unit.reasoning),
        (b.audio_input, unit.audio_input),
        (b.audio_cache_read, unit.audio_cache_read),
        (b.audio_output, unit.audio_output),
        (b.image_input, unit.image_input),
        (b.image_cache_read, unit.image_cache_read),
        (b.image_output, unit.image_output),
        (b.video_input, unit.video_input),
    )
