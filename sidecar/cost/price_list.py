"""genai-prices, read offline: its prices, their tiers and dates, as tariffs.

The arithmetic is ours, because sums of many calls are priced at once: genai-prices would take the
sum for one enormous prompt. Which price holds for what is decided as genai-prices decides it.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sidecar.cost.tariffs import UnitPrices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, PriceVariant, Provider

STORED_LIST = "prices.json"
"""Name of the updated price list in the state folder."""

_EPOCH = date(1970, 1, 1)
_HOUR_TO_INPUT = 2
"""A cache write for an hour costs twice the input (Anthropic), where the list does not say."""


def bundled_list() -> DataSnapshot:
    """The price list of the package. Importing it takes 0.7 s: call it where nobody waits."""
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot()


def stored_list(file: Path) -> DataSnapshot | None:
    """The list that `update-prices` stored, if any.

    Raises ValueError, with what to do, for one that this version cannot read.
    """
    try:
        return parse_list(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the price list {file} cannot be read: delete it, "
            "or fetch it again with `token-sidecar cost update-prices`"
        ) from error


def parse_list(data: bytes) -> DataSnapshot:
    """A price list in genai-prices' JSON form. Raises ValueError where it is none."""
    import warnings

    import msgspec
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import _providers_from_raw

    raw = msgspec.json.decode(data)
    if not isinstance(raw, list) or not raw:
        raise ValueError("a price list is an array of providers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # units of a later version, which no call here has
        return DataSnapshot(_providers_from_raw(raw), from_auto_update=True)


def find_tariff(snapshot: DataSnapshot, model: str, provider: str) -> ListedTariff | None:
    """The listed prices of a model, else None. An empty provider: the one that the model shows."""
    try:
        found, info = snapshot.find_provider_model(model, None, provider or None, None)
    except LookupError:
        return None
    return ListedTariff(found, info) if info.prices else None


class ListedTariff:
    """The prices of one model of genai-prices."""

    def __init__(self, provider: Provider, model: ModelInfo) -> None:
        self._model = model
        # A model that another provider lends has none of the lender's service tiers.
        own = any(model is listed for listed in provider.models)
        self._variants = (model.price_variants or []) if own else []
        constraints = [*self._constraints()]
        self.changes = frozenset(
            (constraint.start_date - _EPOCH).days
            for constraint in constraints
            if hasattr(constraint, "start_date")
        )
        self.by_clock = any(hasattr(constraint, "start_time") for constraint in constraints)
        self.thresholds = frozenset(self._thresholds())

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """What holds for a call at that time, in that service tier, with a prompt of that size."""
        if not tier:
            return _unit_prices(self._model.get_prices(at), prompt_tokens)
        context = {"service_tier": tier, "processing": tier, "speed": tier}
        if not any(self._holds(variant, at, context) for variant in self._variants):
            return None
        return _unit_prices(self._model.get_prices(at, context), prompt_tokens)

    @staticmethod
    def _holds(variant: PriceVariant, at: datetime, context: dict[str, str]) -> bool:
        if variant.constraint is not None and not variant.constraint.active(at):
            return False
        return all(context.get(key) == value for key, value in variant.when.items())

    def _constraints(self) -> Iterator[Any]:
        prices = self._model.prices
        for conditional in prices if isinstance(prices, list) else []:
            yield conditional.constraint
        for variant in self._variants:
            yield variant.constraint

    def _thresholds(self) -> Iterator[int]:
        prices = self._model.prices
        sets = [entry.prices for entry in prices] if isinstance(prices, list) else [prices]
        for model_price in (*sets, *(variant.prices for variant in self._variants)):
            for value in vars(model_price).values():
                for tier in getattr(value, "tiers", ()):
                    yield tier.start


def _unit_prices(listed: ModelPrice, prompt_tokens: int) -> UnitPrices | None:
    """Prices for one prompt size; a cache price that is not listed is the input's."""
    fresh = _price(listed, "input_mtok", prompt_tokens)
    output = _price(listed, "output_mtok", prompt_tokens)
    if fresh is None and output is None:
        return None
    write = _price(listed, "cache_write_mtok", prompt_tokens)
    hour = _price(listed, "cache_write_1h_mtok", prompt_tokens)
    if hour is None and write is not None and fresh is not None:
        hour = _HOUR_TO_INPUT * fresh
    read = _price(listed, "cache_read_mtok", prompt_tokens)
    reasoning = _price(listed, "output_reasoning_mtok", prompt_tokens)
    call = _price(listed, "requests_kcount", prompt_tokens)
    search = _price(listed, "web_searches_kcount", prompt_tokens)
    return UnitPrices(
        input=fresh,
        cache_read=fresh if read is None else read,
        cache_write=fresh if write is None else write,
        cache_write_1h=fresh if hour is None else hour,
        output=output,
        reasoning=output if reasoning is None else reasoning,
        call=Decimal(0) if call is None else call.scaleb(-3),
        search=None if search is None else search.scaleb(-3),
    )


def _price(listed: ModelPrice, key: str, prompt_tokens: int) -> Decimal | None:
    """The price of one key; a tier holds for the whole call once its prompt is over the start."""
    value: Any = getattr(listed, key)
    if value is None or isinstance(value, Decimal):
        return value
    over = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    price = over[-1] if over else value.base
    return price if isinstance(price, Decimal) else None
