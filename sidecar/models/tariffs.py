"""Represents a model's unit prices and how they change over time."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from sidecar.config.settings import Price


_EACH = ("call", "search", "file_search", "other_tool", "is_derived")
"""The fields of `UnitPrices` that are not prices per token."""


class UnitPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in USD per million tokens, unless noted otherwise. None if unknown."""

    input: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    """The price of cache writes with a lifetime of five minutes or an unknown lifetime."""
    cache_write_1h: Decimal | None
    output: Decimal | None
    reasoning: Decimal | None
    call: Decimal = Decimal(0)
    """The price per call in USD, regardless of size."""
    search: Decimal | None = None
    """The price per web search in USD."""
    file_search: Decimal | None = None
    """The price per search in stored files in USD."""
    other_tool: Decimal | None = None
    """The price in USD per use of any other tool that the vendor runs."""
    audio_input: Decimal | None = None
    audio_cache_read: Decimal | None = None
    audio_output: Decimal | None = None
    image_input: Decimal | None = None
    image_cache_read: Decimal | None = None
    image_output: Decimal | None = None
    video_input: Decimal | None = None
    is_derived: bool = False
    """Whether the prices of a service tier are derived from the standard prices."""

    def times(self, factor: Decimal) -> UnitPrices:
        """Return a copy with all token prices multiplied by a factor.

        Prices per call and per search do not change.
        """
        prices = msgspec.structs.asdict(self)
        tokens = {
            name: price * factor
            for name, price in prices.items()
            if price is not None and name not in _EACH
        }
        return msgspec.structs.replace(self, **tokens)

    def in_tier(self, tier: UnitPrices, standard: UnitPrices) -> UnitPrices:
        """Return the prices of a service tier, derived from these standard prices.

        Args:
            tier: The tier's prices on another day.
            standard: The standard prices on that day.
        """
        prices = msgspec.structs.asdict(self)
        then, base = msgspec.structs.asdict(tier), msgspec.structs.asdict(standard)
        tokens = {
            name: price * then[name] / base[name] if price and base[name] else then[name]
            for name, price in prices.items()
            if name not in _EACH and then[name] is not None
        }
        return msgspec.structs.replace(self, **tokens, is_derived=True)


class Tariff(Protocol):
    """A model's prices at a provider over time."""

    @property
    def note(self) -> str:
        """What reports say about these prices, or ""."""

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """Return a call's prices, or None if they are unknown.

        They depend on the call's time, service tier and prompt size in tokens.
        """


class UserTariff:
    """The prices in a `[[price]]` entry of the user's settings. They never change."""

    note = ""

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
