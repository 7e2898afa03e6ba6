"""What a text at the head of every request has cost: from its tokens and the ledger's calls."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.bands import REPORTED, typical_prompt
from sidecar.cost.events import Buckets
from sidecar.cost.prices import Prices, cost_of
from sidecar.cost.schema import DAY_MS, PROMPT_SQL
from sidecar.cost.sums import Scope, kinds_in, owner_condition, time_condition

if TYPE_CHECKING:
    from sidecar.cost.ledger import Ledger
    from sidecar.models.tariffs import UnitPrices

_HOW = (
    "CASE WHEN cache_read > 0 THEN 'cache_read' WHEN cache_write_1h > 0 THEN 'cache_write_1h' "
    "WHEN cache_write_5m + cache_write > 0 THEN 'cache_write' ELSE 'input' END"
)
"""How a call took in what stands at its head: the head is what caches hold first."""


class Calls(NamedTuple):
    """Calls of one agent that paid the same for what stands at their head."""

    agent: str
    how: str
    """A bucket: `cache_read`, `cache_write_1h`, `cache_write` or `input`."""
    calls: int
    unit: UnitPrices | None
    """None: no price is known."""
    most: int = 0
    """Tokens of the largest file asked about that their prompts can hold."""


class Ridden(NamedTuple):
    """What a file has cost."""

    requests: int
    cost: Decimal | None
    """USD at the prices of the list; None where no call has a price."""
    cached: int
    """Requests that read a cache."""
    unpriced: int
    """Requests without a price, which the cost leaves out."""


def calls_in(
    ledger: Ledger, prices: Prices, scope: Scope, sizes: Iterable[int] = ()
) -> list[Calls]:
    """The calls in scope by agent, price, what their caches did, and which of the files of these
    sizes (tokens) their prompts can hold. Raises LedgerError."""
    steps = sorted(set(sizes), reverse=True)
    held = " ".join(f"WHEN {PROMPT_SQL} >= {int(size)} THEN {int(size)}" for size in steps)
    most = f"CASE {held} ELSE 0 END" if held else "0"
    times, moments = time_condition(scope.times)
    owner, values = owner_condition(scope, "event.session")
    with ledger.reader() as connection:
        kinds = kinds_in(connection)
        rows = connection.execute(
            f"SELECT agent, kind, band, at / {DAY_MS} AS utc, {_HOW} AS how, "  # noqa: S608
            f"{most} AS most, count(*) FROM event JOIN session ON session.id = event.session "
            f"WHERE {times} {owner} GROUP BY 1, 2, 3, 4, 5, 6",
            (*moments, *values),
        ).fetchall()
    return [
        Calls(agent, how, calls, _unit(prices, kinds[kind], band, day), most)
        for agent, kind, band, day, how, most, calls in rows
    ]


def _unit(
    prices: Prices, kind: tuple[str, str, str, str], band: int, day: int
) -> UnitPrices | None:
    provider, model, _, tier = kind
    tariff = prices.tariff(model, provider)
    at = datetime.fromtimestamp(day * DAY_MS // 1000, UTC)
    prompt = typical_prompt(0 if band == REPORTED else band)
    return None if tariff is None else tariff.prices(at, tier, prompt)


def ridden(tokens: int, agents: frozenset[str], calls: Iterable[Calls]) -> Ridden:
    """What a file of so many tokens has cost in these agents' calls.

    A call whose prompt is smaller cannot have carried it: titles and probes are asked for without.
    """
    requests = cached = unpriced = 0
    total, priced = Decimal(0), False
    for some in calls:
        if some.agent not in agents or some.most < tokens:
            continue
        requests += some.calls
        cached += some.calls * (some.how == "cache_read")
        cost = cost_of(some.unit, Buckets(**{some.how: tokens * some.calls}), 0)
        if cost.usd is None or not cost.whole:
            unpriced += some.calls
        else:
            total, priced = total + cost.usd, True
    return Ridden(requests, total if priced else None, cached, unpriced)
