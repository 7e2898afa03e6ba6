"""Computes what a change of an agent's instructions costs a month.

Instructions are among the first tokens of a prompt. They are written to the cache when a session
or a sub-agent begins, and are read from it in every later call. In a session that is open while
they are changed, more is sent again once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import NamedTuple

import msgspec

from sidecar.cost.ledger_events import Buckets
from sidecar.cost.prices import cost_of
from sidecar.cost.usage_profile import PREFIX_BUCKETS, AgentUsage, PrefixCalls
from sidecar.models.price_list import UnitPrices

MONTH_DAYS = 30


class ChangePrice(msgspec.Struct, frozen=True, kw_only=True):
    """What a change costs in 30 days, in USD. Amounts are negative if the change saves tokens."""

    calls: int
    """The agent's calls in the profile, including those without a price."""
    unpriced_calls: int = 0
    reads: Decimal = Decimal(0)
    """The part of the cost for reading from a cache."""
    writes: Decimal = Decimal(0)
    uncached: Decimal = Decimal(0)
    subagents: Decimal = Decimal(0)
    """The part of the cost, of all three kinds, that sub-agents cause."""
    open_session: Decimal | None = None
    """What an open session costs more once, when it is resumed. None if that is nothing or unknown.
    """

    @property
    def usd(self) -> Decimal | None:
        """The whole cost, or None if no call has a price."""
        is_unpriced = self.unpriced_calls == self.calls
        return None if is_unpriced else self.reads + self.writes + self.uncached

    @property
    def read_percent(self) -> float:
        """The share of the cost for cache reads, in percent."""
        return float(100 * self.reads / self.usd) if self.usd else 0.0


class ChangedCalls(NamedTuple):
    """Calls of a model, and how many of its tokens a change adds to each.

    The numbers are negative if the change removes tokens.
    """

    usage: AgentUsage
    added: int
    added_to_subagents: int


def price_change(
    changes: Iterable[ChangedCalls],
    unit_of: Callable[[AgentUsage], UnitPrices | None],
    days: int,
) -> ChangePrice:
    """Return the price of a change of the instructions of an agent.

    Args:
        changes: The agent's calls. Models have different tokenizers, so the same change may add
            different numbers of tokens.
        unit_of: Returns the prices of calls, or None if they are unknown.
        days: The number of days in which the calls were made.
    """
    calls = unpriced = 0
    amounts = dict.fromkeys(PREFIX_BUCKETS, Decimal(0))
    subagents = Decimal(0)
    for usage, added, added_to_subagents in changes:
        unit = unit_of(usage)
        for part, tokens in ((usage.main, added), (usage.subagents, added_to_subagents)):
            calls += part.calls
            costs = _costs_of(part, tokens, unit)
            if costs is None:
                unpriced += part.calls
                continue
            for name, cost in costs.items():
                amounts[name] += cost
            subagents += sum(costs.values()) if part is usage.subagents else 0
    month = Decimal(MONTH_DAYS) / days
    return ChangePrice(
        calls=calls,
        unpriced_calls=unpriced,
        reads=amounts["reads"] * month,
        writes=(amounts["writes_5m"] + amounts["writes_1h"]) * month,
        uncached=amounts["uncached"] * month,
        subagents=subagents * month,
    )


def price_open_session(
    usage: AgentUsage, unit: UnitPrices | None, appended: int | None
) -> Decimal | None:
    """Return what a change costs once in an open session, or None if that is nothing or unknown.

    If the agent replaces the old text in place, what follows it is no longer in the cache: the call
    writes its prompt instead of reading it. If the agent appends the new text, it writes that.

    Args:
        usage: The agent's calls. Their mean prompt stands for that of the session.
        unit: The prices of the calls.
        appended: The tokens that are appended, or None if the text is replaced in place.
    """
    main = usage.main
    kinds = {name: getattr(main, name) for name in ("writes_1h", "writes_5m", "uncached")}
    first = max(kinds, key=lambda name: kinds[name])
    tokens = usage.prompt_tokens if appended is None else appended
    written = _costs_of(PrefixCalls(**{first: 1}), tokens, unit)
    if appended is not None:
        return written[first] if written and appended else None
    read = _costs_of(PrefixCalls(reads=1), tokens, unit) if main.reads else None
    more = written[first] - read["reads"] if written and read else Decimal(0)
    return more if more > 0 else None


def _costs_of(part: PrefixCalls, added: int, unit: UnitPrices | None) -> dict[str, Decimal] | None:
    """Return the cost of the added tokens by kind of call, or None if any of it is unknown."""
    costs = {}
    for name, bucket in PREFIX_BUCKETS.items():
        tokens = added * getattr(part, name)
        cost = cost_of(unit, Buckets(**{bucket: tokens}), 0)
        if tokens and (cost.usd is None or not cost.whole):
            return None
        costs[name] = cost.usd or Decimal(0)
    return costs
