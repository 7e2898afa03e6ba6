"""Prices of models: from the installed list, and from the user's settings.

Prices are selected in the same way as in genai-prices. Costs are computed in `sidecar.cost.prices`,
which can also price a part of a call, and tiers without a listed price.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from datetime import UTC, datetime, time
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sidecar import typed
from sidecar.config.safe_files import FileStamp, ListFile, read_price_list, set_aside, stamp_of
from sidecar.config.settings import Price

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider


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


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What `prices.toml` says."""

    notes: dict[str, str]
    regional_factors: dict[str, Decimal]
    hour_to_input: int
    optional_tier_providers: frozenset[str]
    providers: list[dict[str, Any]]


@cache
def _facts() -> _Facts:
    return typed.read_table("sidecar.models", "prices.toml", _Facts)


_lock = threading.Lock()
_loaded: dict[tuple[ListFile, FileStamp | None], DataSnapshot] = {}


def is_loaded(file: ListFile = None) -> bool:
    """Return whether `price_list` returns without reading a file."""
    return (file, stamp_of(file)) in _loaded


@cache
def package_versions() -> str:
    """Return a text that changes whenever the bundled list or `prices.toml` may change."""
    from importlib.metadata import version

    from sidecar import __version__

    return f"{__version__} {version('genai-prices')}"


def price_list(file: ListFile = None) -> DataSnapshot:
    """Return the price list that `update-prices` saved to `file`, or the bundled list.

    If the file is unusable, it is renamed and the reason is logged. The first call blocks for
    0.2 to 0.8 s. The list is cached until the file changes.
    """
    with _lock:
        key = (file, stamp_of(file))
        if key not in _loaded:
            _loaded[key] = _load_list(file)
        return _loaded[key]


def _load_list(file: ListFile) -> DataSnapshot:
    from genai_prices.data_snapshot import get_snapshot

    data = read_price_list(file)
    if file is not None and data is not None:
        try:
            return _with_own_prices(parse_list(data))
        except ValueError as error:
            set_aside(file, f"{error}; download it again with `token-sidecar cost update-prices`")
    return _with_own_prices(get_snapshot())


def _with_own_prices(snapshot: DataSnapshot) -> DataSnapshot:
    """Return a copy with the providers in `prices.toml` that the list does not contain."""
    from genai_prices.data_snapshot import DataSnapshot

    own, listed = _read_providers(_facts().providers), {one.id for one in snapshot.providers}
    missing = [provider for provider in own if provider.id not in listed]
    return DataSnapshot([*snapshot.providers, *missing], snapshot.from_auto_update)


def parse_list(data: bytes) -> DataSnapshot:
    """Parse a price list in genai-prices' JSON format.

    Raises:
        ValueError: The data is not a price list.
    """
    from genai_prices.data_snapshot import DataSnapshot

    try:
        providers = _read_providers(typed.decode(data, list[dict[str, Any]]))
    except Exception as error:  # any error in the library means that the list is invalid
        raise ValueError("this is not a price list in the format of genai-prices") from error
    if not providers:
        raise ValueError("the price list is empty")
    return DataSnapshot(providers, from_auto_update=True)


def _read_providers(raw: list[dict[str, Any]]) -> list[Provider]:
    import warnings

    from genai_prices.types import _providers_from_raw

    with warnings.catch_warnings():
        # Newer price lists may contain units that this version does not know.
        warnings.simplefilter("ignore")
        return _providers_from_raw(raw)


def find_tariff(snapshot: DataSnapshot, model: str, provider: str) -> ListedTariff | None:
    """Return a model's listed prices, or None if it is not listed.

    Args:
        snapshot: The price list.
        model: The model's id.
        provider: The provider's id. If empty, the provider is derived from the model's id.
    """
    try:
        found, info = snapshot.find_provider_model(model, None, provider or None, None)
    except LookupError:
        return None
    return ListedTariff(found, info) if info.prices else None


class ListedTariff:
    """A model's prices in the price list."""

    def __init__(self, provider: Provider, model: ModelInfo) -> None:
        self._provider, self._model = provider.id, model
        self.note = _facts().notes.get(provider.id, "")
        # Providers that resell a model do not offer the vendor's service tiers.
        own = any(model is listed for listed in provider.models)
        self._variants = (model.price_variants or []) if own else []
        self._optional_tiers = (
            _service_tiers(provider) if provider.id in _facts().optional_tier_providers else set()
        )
        self._thresholds = self._find_thresholds()
        self._known: dict[tuple[int, int], UnitPrices | None] = {}
        """Cached prices. A key consists of the identity of the listed prices and the number of
        thresholds exceeded.
        """

    def __eq__(self, other: object) -> bool:
        """Return whether the provider asks the same prices for two models, at any time."""
        if not isinstance(other, ListedTariff):
            return NotImplemented
        return self._listed_prices == other._listed_prices

    __hash__ = None  # type: ignore[assignment]

    @property
    def _listed_prices(self) -> tuple[object, ...]:
        return self._provider, self._model.prices, self._variants

    def prices(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """Return a call's prices, or None if they are unknown.

        They depend on the call's time, service tier and prompt size in tokens.
        """
        tier, confined, place = tier.partition("@")
        found = self._prices_in_tier(at, tier, prompt_tokens)
        if not confined or found is None:
            return found
        factor = _facts().regional_factors.get(place)
        return None if factor is None else found.times(factor)

    def _prices_in_tier(self, at: datetime, tier: str, prompt_tokens: int) -> UnitPrices | None:
        """Return a tier's prices, or None if they are unknown.

        If the list has no price for that day, the prices are derived from the standard prices by
        the ratio on the nearest day with a price.
        """
        standard = self._standard_prices(at, prompt_tokens)
        if not tier or standard is None:
            return standard
        context = {"service_tier": tier, "processing": tier, "speed": tier}
        constraints = [
            variant.constraint
            for variant in self._variants
            if all(context.get(key) == value for key, value in variant.when.items())
        ]
        if any(constraint is None or constraint.active(at) for constraint in constraints):
            return _unit_prices(self._model.get_prices(at, context), prompt_tokens)
        days = [one.start_date for one in constraints if one and hasattr(one, "start_date")]
        if not days:
            is_standard = not constraints and tier in self._optional_tiers
            return msgspec.structs.replace(standard, is_derived=True) if is_standard else None
        then = datetime.combine(min(days), time(), UTC)  # all of them are later than `at`
        listed = _unit_prices(self._model.get_prices(then, context), prompt_tokens)
        base = self._standard_prices(then, prompt_tokens)
        return standard.in_tier(listed, base) if listed and base else None

    def _standard_prices(self, at: datetime, prompt_tokens: int) -> UnitPrices | None:
        listed = self._model.get_prices(at)
        key = id(listed), bisect_left(self._thresholds, prompt_tokens)
        if key not in self._known:
            self._known[key] = _unit_prices(listed, prompt_tokens)
        return self._known[key]

    def _find_thresholds(self) -> list[int]:
        """Return the prompt sizes in tokens above which different prices apply."""
        prices = self._model.prices
        sets = [entry.prices for entry in prices] if isinstance(prices, list) else [prices]
        found = {
            tier.start
            for model_price in (*sets, *(variant.prices for variant in self._variants))
            for value in vars(model_price).values()
            for tier in getattr(value, "tiers", ())
        }
        return sorted(found)


def _service_tiers(provider: Provider) -> set[str]:
    """Return all service tiers that have a price for any of the provider's models."""
    return {
        variant.when["service_tier"]
        for model in provider.models
        for variant in model.price_variants or ()
        if "service_tier" in variant.when
    }


def _unit_prices(listed: ModelPrice, prompt_tokens: int) -> UnitPrices | None:
    """Return a model's unit prices for a prompt size.

    If a price is not listed, cached tokens are billed at the input price, and images and video at
    the text price, as vendors do. An audio price that is not listed is unknown. If a model is
    billed per call and no price for searches is listed, the price per call includes searches.
    """

    def price(*keys: str) -> Decimal | None:
        """Return the first of these prices that is listed, per million tokens."""
        prices = (_price_of_key(listed, key, prompt_tokens) for key in keys)
        return next((found for found in prices if found is not None), None)

    def price_of_one(key: str) -> Decimal | None:
        """Return the price per use. The price list contains prices per thousand uses."""
        found = price(key)
        return None if found is None else found.scaleb(-3)

    fresh, output = price("input_mtok"), price("output_mtok")
    if fresh is None and output is None:
        return None
    hour = price("cache_write_1h_mtok")
    if hour is None and fresh is not None and price("cache_write_mtok") is not None:
        hour = _facts().hour_to_input * fresh
    call, search = price_of_one("requests_kcount"), price_of_one("web_searches_kcount")
    if call is not None and search is None:
        search = Decimal(0)
    return UnitPrices(
        input=fresh,
        cache_read=price("cache_read_mtok", "input_mtok"),
        cache_write=price("cache_write_mtok", "input_mtok"),
        cache_write_1h=fresh if hour is None else hour,
        output=output,
        reasoning=price("output_reasoning_mtok", "output_mtok"),
        call=call or Decimal(0),
        search=search,
        file_search=price_of_one("storage_searches_kcount"),
        audio_input=price("input_audio_mtok"),
        audio_cache_read=price("cache_audio_read_mtok", "input_audio_mtok"),
        audio_output=price("output_audio_mtok"),
        image_input=price("input_image_mtok", "input_mtok"),
        image_cache_read=price(
            "cache_image_read_mtok", "input_image_mtok", "cache_read_mtok", "input_mtok"
        ),
        image_output=price("output_image_mtok", "output_mtok"),
        video_input=price("input_video_mtok", "input_mtok"),
    )


def _price_of_key(listed: ModelPrice, key: str, prompt_tokens: int) -> Decimal | None:
    """Return the price in a field of the listed prices, for a prompt of the given size.

    If the prompt exceeds a threshold, the higher price applies to the entire prompt.
    """
    value: Any = getattr(listed, key, None)
    if value is None or isinstance(value, Decimal):
        return value
    over = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    price = over[-1] if over else value.base
    return price if isinstance(price, Decimal) else None
