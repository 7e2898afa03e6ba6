"""Which tariff holds for a model: the user's own word, else the list's, else none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from sidecar.models.names import CREDIT_PROVIDERS, LOCAL_PROVIDERS, matches, parse
from sidecar.models.price_list import find_tariff, price_list
from sidecar.models.tariffs import OwnTariff, Tariff, UnitPrices

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar.config.settings import Price
    from sidecar.cost.events import Buckets, LedgerEvent


class Cost(NamedTuple):
    """What calls cost, as far as prices are known."""

    usd: Decimal | None
    """Of all that has a price; None where nothing has one."""
    unpriced_tokens: int = 0
    """Tokens that have no price."""
    whole: bool = True
    """False where something has no price, be it a search."""


class Prices:
    """Tariffs by model and provider. Safe to share between threads; loads the list when asked."""

    def __init__(self, entries: Sequence[Price] = (), stored_list: Path | None = None) -> None:
        self._entries = [(entry.models, OwnTariff(entry)) for entry in entries]
        self._stored_list = stored_list
        self._found: dict[tuple[str, str], Tariff | None] = {}
        self._lock = threading.Lock()

    def tariff(self, model: str, provider: str) -> Tariff | None:
        """What the model costs at the provider; None where nobody says.

        A `[[price]]` wins over the list: it is what the user says. Loads the price list at first
        (0.7 s). Where the user's newer list cannot be used, the package's is, and the log says so.
        """
        key = (model, provider)
        with self._lock:
            if key not in self._found:
                self._found[key] = self._own(model) or self._listed(model, provider)
            return self._found[key]

    def cost(self, event: LedgerEvent) -> Cost:
        """What one call cost: as the vendor reported, else by tariff, else as the agent says."""
        if event.reported_cost is not None:
            return Cost(event.reported_cost)
        cost = self._cost(event.buckets, event.model, event.provider, event.at, event.tier)
        return Cost(event.agent_cost) if cost.usd is None and event.agent_cost else cost

    def price(
        self,
        buckets: Buckets,
        model: str,
        provider: str,
        at: datetime | None = None,
        tier: str = "",
    ) -> Decimal | None:
        """USD of a call with these buckets (now, by default); None where a part has no price."""
        when = datetime.now(UTC) if at is None else at
        cost = self._cost(buckets, model, provider, when, tier)
        return cost.usd if cost.whole else None

    def _cost(self, buckets: Buckets, model: str, provider: str, at: datetime, tier: str) -> Cost:
        tariff = self.tariff(model, provider)
        prices = None if tariff is None else tariff.prices(at, tier, buckets.prompt)
        return cost_of(prices, buckets)

    def _own(self, model: str) -> Tariff | None:
        return next((tariff for globs, tariff in self._entries if matches(model, globs)), None)

    def _listed(self, model: str, provider: str) -> Tariff | None:
        if provider in LOCAL_PROVIDERS | CREDIT_PROVIDERS:
            return None
        snapshot, names = price_list(self._stored_list), (model, parse(model).host_id)
        tariffs = (find_tariff(snapshot, name, provider) for name in names)
        return next((tariff for tariff in tariffs if tariff), None)


def cost_of(unit: UnitPrices | None, buckets: Buckets, calls: int = 1) -> Cost:
    """What these calls cost, exact: the parts that have a price, and whether that is all.

    A price is USD for a million tokens, or for one search.
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
    return Cost(usd if priced or whole else None, unpriced, whole)


def _token_parts(unit: UnitPrices, b: Buckets) -> tuple[tuple[int, Decimal | None], ...]:
    """Each part of the tokens with its price; text is what is neither audio, picture nor video."""
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
