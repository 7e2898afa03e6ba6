"""Computes the costs of calls from the user's `[[price]]` entries and the price list.

The list is part of a package. A newer one can be downloaded at the user's request.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sidecar.config.safe_files import FileStamp, make_folder, read_price_list, stamp_of, write
from sidecar.config.settings import Price
from sidecar.cost.ledger_events import Basis, Buckets, Cost, LedgerEvent
from sidecar.errors import SidecarError
from sidecar.messages.vendor_usage import MOST_USD
from sidecar.models.names import CREDIT_PROVIDERS, LOCAL_PROVIDERS, matches, parse, undated_name
from sidecar.models.price_list import (
    Tariff,
    UnitPrices,
    UserTariff,
    find_tariff,
    is_loaded,
    package_versions,
    parse_list,
    price_list,
)

if TYPE_CHECKING:
    import httpx

_PICO = Decimal("1e-12")
"""The unit of costs in the ledger, in USD."""


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
        return bool(self._found) or is_loaded(self._stored_list)

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
