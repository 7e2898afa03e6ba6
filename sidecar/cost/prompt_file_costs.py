"""Computes the cost of prompt files from their sizes and from the calls that included the files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from sidecar.cost.events import REPORTED, Buckets, typical_prompt
from sidecar.cost.ledger import DAY_MS, PROMPT_SQL
from sidecar.cost.prices import Prices, cost_of
from sidecar.cost.sums import Scope, calls_condition, kinds_in

if TYPE_CHECKING:
    from sidecar.cost.ledger import Ledger
    from sidecar.models.tariffs import UnitPrices

_CACHE_BUCKET = (
    "CASE WHEN cache_read > 0 THEN 'cache_read' WHEN cache_write_1h > 0 THEN 'cache_write_1h' "
    "WHEN cache_write_5m + cache_write > 0 THEN 'cache_write' ELSE 'input' END"
)
"""An SQL expression for the bucket of a prompt's first tokens.

If only a part of a prompt is cached, it is the beginning.
"""


class CallGroup(NamedTuple):
    """Calls by one agent. In all of them, the tokens of a prompt file have the same price.

    Prompt files are among the first tokens of a prompt, so `bucket` determines their price.
    """

    agent: str
    bucket: str
    """The bucket of the first prompt tokens: `cache_read`, `cache_write_1h`, `cache_write` or
    `input`.
    """
    calls: int
    unit: UnitPrices | None
    """The calls' prices, or None if unknown."""
    largest_file: int = 0
    """The size, in tokens, of the largest prompt file that fits in the prompt of each call."""


class PromptFileCost(NamedTuple):
    """A prompt file's cost in all requests that included it."""

    requests: int
    cost: Decimal | None
    """The cost in USD, or None if no request has a price."""
    cached: int
    """The number of requests that read the file from a cache."""
    unpriced: int
    """The number of requests without a price. `cost` excludes them."""


def group_calls(
    ledger: Ledger, prices: Prices, scope: Scope, sizes: Iterable[int] = ()
) -> list[CallGroup]:
    """Group calls by agent, price, cache use and the largest prompt file that fits in the prompt.

    Args:
        ledger: The ledger.
        prices: The prices.
        scope: The calls to group.
        sizes: The prompt files' sizes in tokens.

    Raises:
        LedgerError: Reading failed.
    """
    steps = sorted(set(sizes), reverse=True)
    steps_sql = " ".join(f"WHEN {PROMPT_SQL} >= {int(size)} THEN {int(size)}" for size in steps)
    largest = f"CASE {steps_sql} ELSE 0 END" if steps_sql else "0"
    where, values = calls_condition(scope)
    with ledger.reader() as connection:
        kinds = kinds_in(connection)
        rows = connection.execute(
            f"SELECT agent, kind, band, at / {DAY_MS} AS utc, {_CACHE_BUCKET} AS bucket, "  # noqa: S608
            f"{largest} AS largest, count(*) FROM event JOIN session ON session.id = event.session "
            f"WHERE {where} GROUP BY 1, 2, 3, 4, 5, 6",
            values,
        ).fetchall()
    return [
        CallGroup(
            agent, bucket, calls, _unit_prices_at(prices, kinds[kind], band, day), largest_file
        )
        for agent, kind, band, day, bucket, largest_file, calls in rows
    ]


def _unit_prices_at(
    prices: Prices, kind: tuple[str, str, str, str], band: int, day: int
) -> UnitPrices | None:
    provider, model, _, tier = kind
    tariff = prices.tariff(model, provider)
    at = datetime.fromtimestamp(day * DAY_MS // 1000, UTC)
    prompt = typical_prompt(0 if band == REPORTED else band)
    return None if tariff is None else tariff.prices(at, tier, prompt)


def prompt_file_cost(
    tokens: int, agents: frozenset[str], groups: Iterable[CallGroup]
) -> PromptFileCost:
    """Return what a prompt file cost in all calls by the agents that send it.

    Calls with prompts smaller than the file, such as calls that generate a title, are excluded.

    Args:
        tokens: The file's size in tokens.
        agents: The agents that send the file.
        groups: All calls, in groups from `group_calls`.
    """
    requests = cached = unpriced = 0
    total, priced = Decimal(0), False
    for group in groups:
        if group.agent not in agents or group.largest_file < tokens:
            continue
        requests += group.calls
        cached += group.calls * (group.bucket == "cache_read")
        cost = cost_of(group.unit, Buckets(**{group.bucket: tokens * group.calls}), 0)
        if cost.usd is None or not cost.whole:
            unpriced += group.calls
        else:
            total, priced = total + cost.usd, True
    return PromptFileCost(requests, total if priced else None, cached, unpriced)
