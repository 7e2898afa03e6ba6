"""Forecasts how a session grows, what its next input costs, and what it costs per hour."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.days import TimeRange
from sidecar.cost.export import read_events
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.sums import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.cost.ledger import Ledger
    from sidecar.cost.prices import Prices

SPAN = timedelta(hours=24)
"""How far back a forecast looks for calls, counted from the session's last update."""
PACE_SPAN = timedelta(hours=1)
_SHORTEST_PACE = timedelta(minutes=5)
"""The cost per hour is computed only for sessions that are at least this long."""
_STEPS = 20
"""The average growth is based on at most this many calls."""
_LEAST_STEPS = 2
_FIVE_MINUTES, _HOUR = timedelta(minutes=5), timedelta(hours=1)


class NextInput(NamedTuple):
    """The size of a session's next input in tokens, and its price in USD."""

    tokens: int
    cached_usd: Decimal | None
    """The price if the input is read from the cache. None if the price is unknown, the context was
    compacted, or the session uses no cache.
    """
    uncached_usd: Decimal | None
    """The price if there is no cache, or after the cache has expired."""
    cached_until: datetime | None
    """When the cache expires, or None if unknown."""


def session_calls(ledger: Ledger, session: str, agent: str, newest: datetime) -> list[LedgerEvent]:
    """Return a session's calls in the 24 hours before `newest`, oldest first.

    Args:
        ledger: The ledger.
        session: The session's id.
        agent: The agent, or `protocol` for a client's session.
        newest: When the session was last updated.

    Raises:
        LedgerError: Reading failed.
    """
    times = TimeRange(start_ms=int((newest - SPAN).timestamp() * 1000))
    return list(read_events(ledger, Scope(times=times, session=session, agent=agent)))


def growth_per_call(calls: Sequence[LedgerEvent]) -> float | None:
    """Return the average growth of the prompt per call since the last compaction, in tokens.

    Returns None if there are too few calls, or if the prompt has not grown.
    """
    prompts = [call.buckets.prompt for call in _main_calls(calls)]
    shrunk = [number for number, (a, b) in enumerate(pairwise(prompts), 1) if b < a]
    prompts = prompts[shrunk[-1] if shrunk else 0 :][-_STEPS - 1 :]
    steps = len(prompts) - 1
    if steps < _LEAST_STEPS or prompts[-1] <= prompts[0]:
        return None
    return (prompts[-1] - prompts[0]) / steps


def next_input(
    calls: Sequence[LedgerEvent],
    context: int,
    prices: Prices,
    now: datetime,
    *,
    is_compacted: bool = False,
) -> NextInput | None:
    """Return the size and price of a session's next input, or None if no calls are recorded.

    The forecast assumes that the next call sends the same context, and that everything the last
    call read or wrote is still cached.

    Args:
        calls: The session's calls, oldest first.
        context: The context's size in tokens.
        prices: The prices.
        now: The time for which prices are looked up.
        is_compacted: Whether the context was compacted. In this case, the contents of the cache are
            unknown until the next call.
    """
    main = _main_calls(calls)
    if not main:
        return None
    last = main[-1]
    writer = next((call for call in reversed(main) if call.buckets.cache_writes), None)
    is_cut = is_compacted and context < last.buckets.prompt
    uses_cache = not is_cut and any(
        call.buckets.cache_read or call.buckets.cache_writes for call in main
    )
    cached = min(context, last.buckets.prompt) if uses_cache else 0
    lives_an_hour = writer is not None and writer.buckets.cache_write_1h > 0
    bucket = "input"
    if writer is not None:
        bucket = "cache_write_1h" if lives_an_hour else "cache_write_5m"

    def price(read: int) -> Decimal | None:
        buckets = Buckets(**{"cache_read": read, bucket: context - read})
        return prices.price(buckets, last.model, last.provider, now, last.tier)

    lifetime = _HOUR if lives_an_hour else _FIVE_MINUTES
    return NextInput(
        context,
        price(cached) if uses_cache else None,
        price(0),
        None if writer is None or is_cut else last.at + lifetime,
    )


def cache_hit_rate(calls: Sequence[LedgerEvent]) -> float | None:
    """Return the share (0 to 1) of prompt tokens that were read from a cache.

    Returns None if there are no prompt tokens.
    """
    main = _main_calls(calls)
    prompt = sum(call.buckets.prompt for call in main)
    return sum(call.buckets.cache_read for call in main) / prompt if prompt else None


def usd_per_hour(calls: Sequence[LedgerEvent], now: datetime) -> Decimal | None:
    """Return a session's cost per hour in USD, based on its calls in the last hour.

    Returns None if there are no such calls, if any of them has no price, or if the session is
    less than five minutes old.
    """
    if not calls:
        return None
    began = max(calls[0].at, now - PACE_SPAN)
    recent = [call for call in calls if call.at >= began]
    hours = Decimal((now - began) / timedelta(hours=1))
    if not recent or now - began < _SHORTEST_PACE:
        return None
    costs = [call.cost.usd for call in recent if call.cost is not None and call.cost.whole]
    known = [usd for usd in costs if usd is not None]
    return sum(known, Decimal(0)) / hours if len(known) == len(recent) else None


def _main_calls(calls: Sequence[LedgerEvent]) -> list[LedgerEvent]:
    return [call for call in calls if call.category == "main"]
