"""Which tariff holds for a model: the user's own word, else the list's, else none."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from sidecar.cost.tariffs import OwnTariff
from sidecar.counting.names import LOCAL_PROVIDERS, parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal
    from pathlib import Path

    from genai_prices.data_snapshot import DataSnapshot

    from sidecar.config.settings import Price
    from sidecar.cost.events import Buckets, Event
    from sidecar.cost.tariffs import Tariff


class Prices:
    """Tariffs by model and provider. Safe to share between threads; loads the list when asked."""

    def __init__(self, entries: Sequence[Price] = (), stored_list: Path | None = None) -> None:
        self._entries = [(entry.models, OwnTariff(entry)) for entry in entries]
        self._stored_list = stored_list
        self._snapshot: DataSnapshot | None = None
        self._found: dict[tuple[str, str], Tariff | None] = {}
        self._lock = threading.Lock()
        self.problem: str | None = None
        """Why the list that the user fetched is not used; None as long as it is."""

    def tariff(self, model: str, provider: str) -> Tariff | None:
        """What the model costs at the provider; None where nobody says.

        A `[[price]]` wins over the list: it is what the user says. Loads the price list at first
        (0.7 s). Where the user's newer list cannot be read, the package's is used and `problem` is
        set.
        """
        key = (model, provider)
        with self._lock:
            if key not in self._found:
                self._found[key] = self._own(model) or self._listed(model, provider)
            return self._found[key]

    def cost(self, event: Event) -> Decimal | None:
        """USD of one call: what the vendor reported, else by tariff, else None (unpriced)."""
        if event.reported_cost is not None:
            return event.reported_cost
        return self.price(event.buckets, event.model, event.provider, event.at, event.tier)

    def price(
        self,
        buckets: Buckets,
        model: str,
        provider: str,
        at: datetime | None = None,
        tier: str = "",
    ) -> Decimal | None:
        """USD of a call with these buckets (now, by default), else None (unpriced)."""
        tariff = self.tariff(model, provider)
        if tariff is None:
            return None
        when = datetime.now(UTC) if at is None else at
        prices = tariff.prices(when, tier, buckets.prompt)
        return None if prices is None else prices.cost(buckets)

    def _own(self, model: str) -> Tariff | None:
        name = model.lower()
        for globs, tariff in self._entries:
            if any(fnmatchcase(name, glob.lower()) for glob in globs):
                return tariff
        return None

    def _listed(self, model: str, provider: str) -> Tariff | None:
        if provider in LOCAL_PROVIDERS:
            return None
        from sidecar.cost.price_list import find_tariff

        if self._snapshot is None:
            self._snapshot = self._load()
        return find_tariff(self._snapshot, model, provider) or find_tariff(
            self._snapshot, parse(model).host_id, provider
        )

    def _load(self) -> DataSnapshot:
        from sidecar.cost.price_list import bundled_list, stored_list

        try:
            stored = None if self._stored_list is None else stored_list(self._stored_list)
        except ValueError as error:
            self.problem, stored = str(error), None
        return stored or bundled_list()
