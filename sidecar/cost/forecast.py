"""Forecasts how a session grows, what its next input costs, and what it costs per hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.events import REPORTED, Buckets
from sidecar.cost.ledger import BUCKETS, usd
from sidecar.cost.sums import Scope, kinds_in, owner_condition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.cost.ledger import Ledger
    from sidecar.cost.prices import Prices

SPAN = timedelta(hours=24)
"""Maximum age of the calls in a forecast, relative to the session's last update."""
PACE_SPAN = timedelta(hours=1)
_SHORTEST_PACE = timedelta(minutes=5)
"""Minimum duration of a session before its cost per hour is meaningful."""
_STEPS = 20
"""Maximum number of calls over which the growth is averaged."""
_LEAST_STEPS = 2
_FIVE_MINUTES, _HOUR = timedelta(minutes=5), timedelta(hours=1)


class SessionCall(NamedTuple):
    """A recorded call of a session."""

    at: datetime
    model: str
    provider: str
    category: str
    tier: str
    buckets: Buckets
    reported_usd: Decimal | None = None
    """The cost reported by the provider, in USD."""
    agent_usd: Decimal | None = None
    """The cost computed by the agent, in USD."""

    @property
    def cache_lifetime(self) -> timedelta | None:
        """How long the provider keeps the tokens that the call wrote to its cache, or None if
        unknown.
        """
        if self.buckets.cache_write_1h:
            return _HOUR
        return _FIVE_MINUTES if self.buckets.cache_writes else None


class NextInput(NamedTuple):
    """The size of a session's next input in tokens, and its price in USD."""

    tokens: int
    cached_usd: Decimal | None
    """The price if the cache is used. None if it is unknown, or if the session uses no cache."""
    uncached_usd: Decimal | None
    """The price if no cache is used, or after the cache has expired."""
    cached_until: datetime | None
    """When the cache expires, or None if unknown."""


def session_calls(ledger: Ledger, session: str, agent: str, newest: datetime) -> list[SessionCall]:
    """Return the calls of a session in the 24 hours before `newest`, oldest first.

    Args:
        ledger: The ledger.
        session: The id of the session.
        agent: The agent, or `protocol` for a client's session.
        newest: The time of the session's last update.

    Raises:
        LedgerError: Reading failed.
    """
    owner, values = owner_condition(Scope(session=session, agent=agent), "session")
    since = int((newest - SPAN).timestamp() * 1000)
    with ledger.reader() as connection:
        kinds = kinds_in(connection)
        rows = connection.execute(
            f"SELECT at, kind, band, reported, {', '.join(BUCKETS)} FROM event "  # noqa: S608
            f"WHERE at >= ? {owner} ORDER BY at, id",
            (since, *values),
        ).fetchall()
    return [
        _call_of(kinds[kind], at, band, reported, buckets)
        for at, kind, band, reported, *buckets in rows
    ]


def _call_of(
    kind: tuple[str, str, str, str],
    at: int,
    band: int,
    reported: int | None,
    buckets: Sequence[int],
) -> SessionCall:
    provider, model, category, tier = kind
    amount = None if reported is None else usd(reported)
    is_billed = band == REPORTED
    return SessionCall(
        at=datetime.fromtimestamp(at / 1000, UTC),
        model=model,
        provider=provider,
        category=category,
        tier=tier,
        buckets=Buckets(**dict(zip(BUCKETS, buckets, strict=True))),
        reported_usd=amount if is_billed else None,
        agent_usd=None if is_billed else amount,
    )


def growth_per_call(calls: Sequence[SessionCall]) -> float | None:
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
    calls: Sequence[SessionCall], context: int, prices: Prices, now: datetime
) -> NextInput | None:
    """Return the size and price of a session's next input, or None without recorded calls.

    The forecast assumes that the next call sends the same context, and that everything the last
    call read or wrote is still cached.

    Args:
        calls: The calls of the session, oldest first.
        context: The size of the context in tokens.
        prices: The prices.
        now: The time for which prices are looked up.
    """
    main = _main_calls(calls)
    if not main:
        return None
    last = main[-1]
    writer = next((call for call in reversed(main) if call.buckets.cache_writes), None)
    uses_cache = writer is not None or any(call.buckets.cache_read for call in main)
    cached = min(context, last.buckets.prompt) if uses_cache else 0
    bucket = "input" if writer is None else _write_bucket(writer.buckets)

    def price(read: int) -> Decimal | None:
        buckets = Buckets(**{"cache_read": read, bucket: context - read})
        return prices.price(buckets, last.model, last.provider, now, last.tier)

    lifetime = None if writer is None else writer.cache_lifetime
    return NextInput(
        context,
        price(cached) if uses_cache else None,
        price(0),
        None if lifetime is None else last.at + lifetime,
    )


def cache_hit_rate(calls: Sequence[SessionCall]) -> float | None:
    """Return the share of prompt tokens read from a cache, from 0 to 1, or None without prompts."""
    main = _main_calls(calls)
    prompt = sum(call.buckets.prompt for call in main)
    return sum(call.buckets.cache_read for call in main) / prompt if prompt else None


def usd_per_hour(calls: Sequence[SessionCall], prices: Prices, now: datetime) -> Decimal | None:
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
    costs = [_cost(call, prices) for call in recent]
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) / hours if len(known) == len(costs) else None


def _cost(call: SessionCall, prices: Prices) -> Decimal | None:
    if call.reported_usd is not None:
        return call.reported_usd
    cost = prices.price(call.buckets, call.model, call.provider, call.at, call.tier)
    return call.agent_usd if cost is None else cost


def _main_calls(calls: Sequence[SessionCall]) -> list[SessionCall]:
    return [call for call in calls if call.category == "main"]


def _write_bucket(buckets: Buckets) -> str:
    return "cache_write_1h" if buckets.cache_write_1h else "cache_write_5m"
