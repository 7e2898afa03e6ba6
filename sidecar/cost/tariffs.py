"""What a model costs: unit prices, when they change, and what a number of tokens comes to."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.config.settings import Price
    from sidecar.cost.events import Buckets


class UnitPrices(msgspec.Struct, frozen=True, kw_only=True):
    """USD for a million tokens of each bucket; None where no price is known."""

    input: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    """For five minutes, and for a time that was not said (five minutes is the default)."""
    cache_write_1h: Decimal | None
    output: Decimal | None
    reasoning: Decimal | None
    call: Decimal = Decimal(0)
    """USD for a call, whatever it holds."""
    search: Decimal | None = None
    """USD for a web search."""

    def cost(self, buckets: Buckets, calls: int = 1) -> Decimal | None:
        """USD, exact; None where a bucket that is not empty has no price."""
        tokens = Decimal(0)
        for number, price in (
            (buckets.input, self.input),
            (buckets.cache_read, self.cache_read),
            (buckets.cache_write_5m + buckets.cache_write, self.cache_write),
            (buckets.cache_write_1h, self.cache_write_1h),
            (buckets.output, self.output),
            (buckets.reasoning, self.reasoning),
        ):
            if number == 0:
                continue
            if price is None:
                return None
            tokens += number * price
        if buckets.web_searches and self.search is None:
            return None
        searches = buckets.web_searches * (self.search or Decimal(0))
        return tokens.scaleb(-6) + calls * self.call + searches


class Tariff(Protocol):
    """The prices of one model at one provider, over time."""

    @property
    def changes(self) -> frozenset[int]:
        """UTC days (since 1970) on which a price begins."""

    @property
    def by_clock(self) -> bool:
        """True where a price depends on the time of day."""

    @property
    def thresholds(self) -> frozenset[int]:
        """Prompt sizes, in tokens, above which other prices hold."""

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """What holds for a call at that time, in that service tier, with a prompt of that size.

        None where the list does not know the tier.
        """


class OwnTariff:
    """A `[[price]]` of the user's: the same at all times, in every tier, for every size."""

    changes: frozenset[int] = frozenset()
    by_clock = False
    thresholds: frozenset[int] = frozenset()

    def __init__(self, entry: Price) -> None:
        write = entry.input if entry.cache_write is None else entry.cache_write
        self._prices = UnitPrices(
            input=entry.input,
            cache_read=entry.input if entry.cache_read is None else entry.cache_read,
            cache_write=write,
            cache_write_1h=write,
            output=entry.output,
            reasoning=entry.output,
            search=Decimal(0),
        )

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices:  # noqa: ARG002
        """The user's own prices."""
        return self._prices
