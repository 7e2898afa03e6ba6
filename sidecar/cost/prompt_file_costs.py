"""Computes the cost of prompt files from their sizes and from the calls that included the files."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

from sidecar.cost.ledger import Ledger
from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prices import Prices, cost_of
from sidecar.cost.sums import Scope, kinds_in
from sidecar.cost.usage_profile import read_agent_calls
from sidecar.models.price_list import UnitPrices


class CallGroup(NamedTuple):
    """Calls by one agent. In all of them, the tokens of a prompt file have the same price.

    Prompt files are among the first tokens of a prompt, so `bucket` determines their price.
    """

    agent: str
    bucket: str
    """The bucket of the first prompt tokens (`AgentCall.bucket`)."""
    unit: UnitPrices | None
    """The calls' prices, or None if unknown."""
    largest_file: int = 0
    """The size, in tokens, of the largest prompt file that fits in the prompt of each call."""
    calls: int = 0


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
    ledger: Ledger, prices: Prices, scope: Scope, sizes: Iterable[int]
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
    steps = sorted({0, *sizes})
    groups: Counter[CallGroup] = Counter()
    with ledger.reader() as connection:
        kinds = kinds_in(connection)
        tariffs = {number: prices.tariff(kind[1], kind[0]) for number, kind in kinds.items()}
        for call in read_agent_calls(connection, scope, kinds):
            tariff, tier = tariffs[call.kind], kinds[call.kind][3]
            moment = datetime.fromtimestamp(call.at_ms / 1000, UTC)
            unit = None if tariff is None else tariff.prices(moment, tier, call.prompt)
            largest_file = steps[bisect_right(steps, call.prompt) - 1]
            groups[CallGroup(call.agent, call.bucket, unit, largest_file)] += 1
    return [group._replace(calls=calls) for group, calls in groups.items()]


def models_by_calls(calls: Mapping[str, int]) -> list[str]:
    """Return models, those with most calls first."""
    return sorted(calls, key=lambda model: (-calls[model], model))


def prompt_file_cost(tokens: Mapping[str, int], groups: Iterable[CallGroup]) -> PromptFileCost:
    """Return what a prompt file cost in all calls by the agents that send it.

    Calls with prompts smaller than the file, such as calls that generate a title, are excluded.

    Args:
        tokens: How many of the file's tokens each agent sends.
        groups: All calls, in groups from `group_calls`.
    """
    requests = cached = unpriced = 0
    total, priced = Decimal(0), False
    for group in groups:
        size = tokens.get(group.agent)
        if size is None or group.largest_file < size:
            continue
        requests += group.calls
        cached += group.calls * (group.bucket == "cache_read")
        cost = cost_of(group.unit, Buckets(**{group.bucket: size * group.calls}), 0)
        if cost.usd is None or not cost.whole:
            unpriced += group.calls
        else:
            total, priced = total + cost.usd, True
    return PromptFileCost(requests, total if priced else None, cached, unpriced)
