"""The unit prices of a model, and when they change."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.config.settings import Price


_EACH = ("call", "search", "file_search", "other_tool")
"""Prices that are not per token."""


class UnitPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in USD per million tokens, or per call or search; None if unknown."""

    input: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    """The price of cache writes that live for five minutes or for an unknown time."""
    cache_write_1h: Decimal | None
    output: Decimal | None
    reasoning: Decimal | None
    call: Decimal = Decimal(0)
    """USD per call of any size."""
    search: Decimal | None = None
    """USD per web search."""
    file_search: Decimal | None = None
    """USD per search in stored files."""
    other_tool: Decimal | None = None
    """USD per use of another tool that the vendor runs."""
    audio_input: Decimal | None = None
    audio_cache_read: Decimal | None = None
    audio_output: Decimal | None = None
    image_input: Decimal | None = None
    image_cache_read: Decimal | None = None
    image_output: Decimal | None = None
    video_input: Decimal | None = None

    def times(self, factor: Decimal) -> UnitPrices:
        """Return a copy with multiplied token prices. Prices per call and search stay the same."""
        prices = msgspec.structs.asdict(self)
        tokens = {
            name: price * factor
            for name, price in prices.items()
            if price is not None and name not in _EACH
        }
        return msgspec.structs.replace(self, **tokens)


class Tariff(Protocol):
    """The prices of one model at one provider over time."""

    @property
    def changes(self) -> frozenset[int]:
        """The days on which a price changes, as numbers of days since 1970 in UTC."""

    @property
    def by_clock(self) -> bool:
        """Whether a price depends on the time of day."""

    @property
    def thresholds(self) -> frozenset[int]:
        """The prompt sizes in tokens above which other prices apply."""

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """Return the prices of a call by its time, service tier and prompt size, or None if
        unknown.
        """


class UserTariff:
    """The prices of a `[[price]]` entry in the user's settings, which never change."""

    changes: frozenset[int] = frozenset()
    by_clock = False
    thresholds: frozenset[int] = frozenset()

    def __init__(self, entry: Price) -> None:
        write = entry.input if entry.cache_write is None else entry.cache_write
        read = entry.input if entry.cache_read is None else entry.cache_read
        self._prices = UnitPrices(
            input=entry.input,
            cache_read=read,
            cache_write=write,
            cache_write_1h=write,
            output=entry.output,
            reasoning=entry.output,
            search=Decimal(0),
            file_search=Decimal(0),
            other_tool=Decimal(0),
            audio_input=entry.input,
            audio_cache_read=read,
            audio_output=entry.output,
            image_input=entry.input,
            image_cache_read=read,
            image_output=entry.output,
            video_input=entry.input,
        )

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices:  # noqa: ARG002
        return self._prices
