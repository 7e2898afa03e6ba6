"""Forecasts how a session grows, what its next input costs, and what it costs per hour."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from sidecar.cost.cache_losses import HOUR, CacheEnd, cache_lifetime
from sidecar.cost.days import TimeRange
from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.cost.prices import Prices
from sidecar.cost.sums import Scope, read_events

SPAN = timedelta(hours=24)
"""How far back a forecast looks for calls, counted from the session's last update."""
PACE_SPAN = timedelta(hours=1)
SHORTEST_PACE = timedelta(minutes=5)
"""A pace is computed only if at least this much time has passed."""
_STEPS = 20
"""The average growth is based on at most this many calls."""
_LEAST_STEPS = 2


class PriceUntil(NamedTuple):
    """The price of a session's next input in USD, and until when it is valid.

    `until` is None if the price does not change any more.
    """

    usd: Decimal | None
    until: datetime | None


class NextInput(NamedTuple):
    """The size of a session's next input in tokens, and its price in USD."""

    tokens: int
    cached_usd: Decimal | None
    """The price if the input is read from the cache. None if the price is unknown, the context was
    compacted, or the session uses no cache.
    """
    uncached_usd: Decimal | None
    """The price if nothing is read from a cache."""
    prices: tuple[PriceUntil, ...]
    """The price over time, if no further call is made. It rises whenever a part of the cache
    expires. Empty if it is unknown when the cache expires.
    """
    cache_end: CacheEnd | None
    """What is known about the times in `prices`, or None if there are none."""


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
    call read or wrote is still cached, until its lifetime ends. Each read restarts the lifetime.

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
    used = (call for call in reversed(main) if call.buckets.cache_read or call.buckets.cache_writes)
    user = next(used, None)
    is_cut = is_compacted and context < last.buckets.prompt
    if user is None or is_cut:
        cached = kept = 0
    else:
        cached = min(context, last.buckets.prompt)
        kept = min(cached, _kept_for_an_hour(main))
    bucket = _write_bucket(main)

    def price(read: int) -> Decimal | None:
        hour = max(0, kept - read) if bucket != "cache_write_1h" else 0
        written = {"cache_write_1h": hour, bucket: context - read - hour}
        buckets = Buckets(cache_read=read, **written)
        return prices.price(buckets, last.model, last.provider, now, last.tier)

    uncached = price(0)
    if not cached or user is None:
        return NextInput(context, None, uncached, (), None)
    steps, end = list[PriceUntil](), None
    if lifetime := cache_lifetime(last.model, last.agent):
        end = lifetime.end
        # Where vendors report no writes, they store every prompt.
        used_at = user.at if end == "exact" else last.at
        reads = [(cached, used_at + timedelta(minutes=lifetime.minutes))] if kept < cached else []
        reads += [(kept, used_at + HOUR)] if kept else []
        steps = [PriceUntil(price(read), until) for read, until in reads]
        steps.append(PriceUntil(uncached, None))
    return NextInput(context, price(cached), uncached, tuple(steps), end)


def _kept_for_an_hour(main: Sequence[LedgerEvent]) -> int:
    """Return how many tokens of the last prompt, from its start, are cached for an hour.

    A part that is written for an hour follows the part that is read, and is stored together with
    it. Prompts that a call does not read or write again are not part of the next prompt.
    """
    kept = 0
    for call in main:
        read, hour = call.buckets.cache_read, call.buckets.cache_write_1h
        kept = read + hour if hour else min(kept, read)
    if kept and kept >= main[-1].buckets.cache_read + main[-1].buckets.cache_writes:
        return main[-1].buckets.prompt  # the few uncached tokens at the end do not count
    return kept


def _write_bucket(main: Sequence[LedgerEvent]) -> str:
    """Return the bucket that the end of the next prompt is billed in."""
    writer = next((call.buckets for call in reversed(main) if call.buckets.cache_writes), None)
    if writer is None:
        return "input"
    if writer.cache_write_5m or writer.cache_write:
        return "cache_write_5m"
    return "cache_write_1h"


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
    if not recent or now - began < SHORTEST_PACE:
        return None
    costs = [call.cost.usd for call in recent if call.cost is not None and call.cost.whole]
    known = [usd for usd in costs if usd is not None]
    return sum(known, Decimal(0)) / hours if len(known) == len(recent) else None


def _main_calls(calls: Sequence[LedgerEvent]) -> list[LedgerEvent]:
    return [call for call in calls if call.category == "main"]
