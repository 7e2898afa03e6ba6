"""Prices of tokens, searches and tools, and the costs of calls.

They come from the user's `[[price]]` entries and from the price list (`sidecar.models.catalogue`).
Prices are selected in the same way as in genai-prices. Costs are computed here, because a part of a
call and a tier without a listed price need one, too. A newer list can be downloaded.
"""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, time
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sidecar.config.safe_files import FileStamp, make_folder, read_price_list, stamp_of, write
from sidecar.config.settings import Price
from sidecar.cost.ledger_events import Basis, Buckets, Cost, LedgerEvent
from sidecar.errors import SidecarError
from sidecar.messages.vendor_usage import MOST_USD
from sidecar.models.catalogue import (
    is_list_loaded,
    package_versions,
    parse_list,
    price_facts,
    price_list,
)
from sidecar.models.names import CREDIT_PROVIDERS, LOCAL_PROVIDERS, matches, parse, undated_name

if TYPE_CHECKING:
    import httpx
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, Provider

_PICO = Decimal("1e-12")
"""The unit of costs in the ledger, in USD."""


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
        self.note = price_facts().notes.get(provider.id, "")
        # Providers that resell a model do not offer the vendor's service tiers.
        own = any(model is listed for listed in provider.models)
        self._variants = (model.price_variants or []) if own else []
        self._optional_tiers = (
            _service_tiers(provider)
            if provider.id in price_facts().optional_tier_providers
            else set()
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
        factor = price_facts().regional_factors.get(place)
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
        hour = price_facts().hour_to_input * fresh
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


class Prices:
    """The prices of all models. The price list is loaded on first use. Thread-safe."""

    def __init__(self, entries: Sequence[Price] = (), stored_list: Path | None = None) -> None:
        self._entries, self._stored_list = tuple(entries), stored_list
        self._own = [(entry.models, UserTariff(entry)) for entry in entries]
        self._found: dict[tuple[str, str], Tariff | None] = {}
        self._version: FileStamp | None = None
        self._fingerprint = ""
        self._lock = threading.Lock()

    @property
    def is_loaded(self) -> bool:
        return bool(self._found) or is_list_loaded(self._stored_list)

    def load(self) -> None:
        """Load the price list, which takes up to 0.8 s, unless it is loaded."""
        if not self.is_loaded:
            price_list(self._stored_list)

    def fingerprint(self) -> str:
        """Return a text that identifies these prices.

        If the price list has changed since the last call, it is loaded again.
        """
        version = stamp_of(self._stored_list)
        with self._lock:
            is_changed = version != self._version or not self._fingerprint
            if is_changed:
                self._version = version
                self._found.clear()
        self.load()
        if is_changed:
            # A list that was downloaded again is often the same.
            stored = hashlib.sha256(read_price_list(self._stored_list) or b"").hexdigest()
            content = msgspec.json.encode((package_versions(), stored, self._entries))
            self._fingerprint = hashlib.sha256(content).hexdigest()[:16]
        return self._fingerprint

    def tariff(self, model: str, provider: str) -> Tariff | None:
        """Return a provider's tariff for a model, or None if unknown.

        A `[[price]]` entry takes precedence over the price list.
        """
        key = (model, provider)
        with self._lock:
            if key not in self._found:
                own = (tariff for globs, tariff in self._own if matches(model, globs))
                self._found[key] = next(own, None) or self._listed_tariff(model, provider)
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
        buckets = event.buckets
        cost = self._cost_by_tariff(buckets, event.model, event.provider, event.at, event.tier)
        usd, unpriced, whole, basis, listed, _ = cost
        if usd is not None and usd > MOST_USD:  # a wrong price or a damaged token count
            usd, unpriced, whole, basis = None, buckets.prompt + buckets.completion, False, None
        if event.reported_cost is not None:
            listed = usd if whole else None
            usd, unpriced, whole, basis = event.reported_cost, 0, True, "reported"
        elif usd is None and event.agent_cost:
            usd, unpriced, whole, basis = event.agent_cost, 0, True, "agent"
        return Cost(
            _rounded(usd), unpriced, whole, basis, _rounded(listed), _rounded(self._lost(event))
        )

    def _lost(self, event: LedgerEvent) -> Decimal | None:
        """Return what a lost cache cost: the price of the call less the one with a cache read."""
        if event.loss is None or not event.loss.tokens:
            return None
        cached = event.buckets.with_cached(event.loss.tokens)
        paid, otherwise = (
            self.price(buckets, event.model, event.provider, event.at, event.tier)
            for buckets in (event.buckets, cached)
        )
        return None if paid is None or otherwise is None else max(Decimal(0), paid - otherwise)

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
        usd, unpriced, whole, *_ = cost_of(prices, buckets)
        basis: Basis | None = None
        if prices is not None and usd is not None:
            basis = "own" if isinstance(tariff, UserTariff) else "list"
            basis = "derived" if prices.is_derived else basis
        return Cost(usd, unpriced, whole, basis)

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
    return Cost(usd if priced or whole else None, unpriced, whole)


def _rounded(usd: Decimal | None) -> Decimal | None:
    """Round an amount to the unit of the ledger. Most amounts have no more decimal places."""
    return None if usd is None else usd.quantize(_PICO, ROUND_HALF_EVEN)


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


LARGEST_LIST = 64 * 1024 * 1024
_SECONDS = 30.0
_PLAIN = {"Accept-Encoding": "identity"}


class UpdateError(SidecarError):
    """The price list cannot be downloaded, parsed or stored."""

    kind = "endpoint"


def update_prices(target: Path, url: str | None = None) -> int:
    """Download the price list to `target`, and return the number of models with a price.

    Raises:
        UpdateError: The download failed. An existing file is left unchanged.
    """
    from genai_prices.update_prices import DEFAULT_UPDATE_URL

    data = _fetch_list(url or DEFAULT_UPDATE_URL)
    try:
        found = parse_list(data)
    except ValueError as error:
        raise UpdateError("the downloaded file is not in genai-prices' format") from error
    try:
        make_folder(target.parent)
        write(target, data)  # atomically, because other processes may be reading the file
    except OSError as error:
        raise UpdateError(f"{target} cannot be written: {error.strerror}") from error
    return sum(len(provider.models) for provider in found.providers)


def _fetch_list(url: str) -> bytes:
    import httpx

    from sidecar.endpoints.http import without_secrets

    try:
        with httpx.stream(
            "GET", url, headers=_PLAIN, timeout=_SECONDS, follow_redirects=True
        ) as answer:
            answer.raise_for_status()
            return _read_answer(answer)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise UpdateError(f"{without_secrets(url)} returned HTTP {status}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        where, reason = without_secrets(url), re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        raise UpdateError(f"cannot download the price list from {where}: {reason}") from error


def _read_answer(answer: httpx.Response) -> bytes:
    from sidecar.endpoints.http import is_encoded

    if is_encoded(answer.headers):
        raise UpdateError("the server compressed the price list without being asked to")
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) > LARGEST_LIST:
            raise UpdateError("the price list is larger than 64 MB")
    return bytes(data)
