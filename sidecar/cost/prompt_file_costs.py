"""Computes what prompt files cost, and what a change of an agent's instructions costs a month.

Both are among the first tokens of a prompt. They are written to the cache when a session or a
sub-agent begins, and are read from it in every later call. In a session that is open while
instructions are changed, more is sent again once.

A usage profile says how agents call models, as counts from which the price of a longer prompt
follows. It is written to a file that a repository can contain, so it has no ids, paths or text.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from sidecar import typed
from sidecar.cost.ledger import PROMPT_SQL, Ledger
from sidecar.cost.ledger_events import PROTOCOL, Buckets
from sidecar.cost.prices import Prices, UnitPrices, cost_of
from sidecar.cost.sums import Scope, calls_condition, kinds_in
from sidecar.messages.vendor_usage import LONGEST_ID, MOST_TOKENS

FILE_NAME = "usage-profile.json"
MOST_BYTES = 1 << 20
MOST_MODELS = 200
"""Maximum number of agents' models in a profile. Less frequent ones are left out."""
_MOST_CALLS = 10**9

Count = Annotated[int, Meta(ge=0, le=_MOST_CALLS)]
Name = Annotated[str, Meta(max_length=LONGEST_ID)]


class PrefixCalls(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """Calls, by how the first tokens of their prompts are billed. Instructions are among these."""

    reads: Count = 0
    """Read from a cache."""
    writes_5m: Count = msgspec.field(default=0, name="writes5m")
    """Written to a cache with a lifetime of five minutes or an unknown lifetime."""
    writes_1h: Count = msgspec.field(default=0, name="writes1h")
    uncached: Count = 0

    @property
    def calls(self) -> int:
        return self.reads + self.writes_5m + self.writes_1h + self.uncached


class AgentUsage(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """An agent's calls of a model."""

    agent: Annotated[Name, Meta(min_length=1)]
    model: Annotated[Name, Meta(min_length=1)]
    provider: Name = ""
    tier: Name = ""
    """The service tier; empty for the standard tier."""
    sessions: Count = 0
    """The number of sessions that began with this model."""
    prompt_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)] = 0
    """The mean size of a prompt, which decides the price of some models."""
    main: PrefixCalls = PrefixCalls()
    subagents: PrefixCalls = PrefixCalls()

    @property
    def calls(self) -> int:
        return self.main.calls + self.subagents.calls


class UsageProfile(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The calls of all agents in some days. The most frequent agents and models come first."""

    version: Literal[1] = 1
    days: Annotated[int, Meta(ge=1, le=36_525)]
    agents: Annotated[tuple[AgentUsage, ...], Meta(max_length=MOST_MODELS)] = ()

    def of(self, agent: str) -> tuple[AgentUsage, ...]:
        """Return an agent's calls."""
        return tuple(usage for usage in self.agents if usage.agent == agent)


def read_profile(path: Path) -> UsageProfile:
    """Read a profile from a file.

    Raises:
        ValueError: The file cannot be read, or is not a profile. The message says what to do.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError("it is larger than 1 MB")
        return typed.decode(data, UsageProfile)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ValueError(
            f"{path} is not a usage profile ({error}); write it again with "
            "`token-sidecar cost profile`"
        ) from error


_WRITTEN = "cache_write_1h + cache_write_5m + cache_write"
_UNREAD = (
    "CASE WHEN cache_write_1h > 0 THEN 'cache_write_1h' "
    "WHEN cache_write_5m + cache_write > 0 THEN 'cache_write_5m' ELSE 'input' END"
)
"""An SQL expression for how a call is billed for first tokens that it does not read."""
PREFIX_BUCKETS = {
    "reads": "cache_read",
    "writes_5m": "cache_write_5m",
    "writes_1h": "cache_write_1h",
    "uncached": "input",
}
"""The bucket that each field of `PrefixCalls` is billed as."""
_PREFIX_FIELDS = {bucket: field for field, bucket in PREFIX_BUCKETS.items()}


@dataclass
class _Conversations:
    """The calls of a session's main conversation, or of its sub-agents, with one model."""

    shortest: int | None = None
    """The size of the shortest prefix that a call has left in the cache, in tokens.

    It contains the instructions, because they precede the first message.
    """
    is_new: bool = True
    """Whether there is no earlier call, or the latest one has written a summary."""

    def add(self, category: str, read: int, written: int) -> bool:
        """Add a call, and return whether it has read the instructions from the cache.

        Args:
            category: The call's category.
            read: The tokens that it has read from the cache.
            written: The tokens that it has written to the cache.
        """
        if self.shortest is not None:
            has_read = read >= self.shortest
        else:  # some providers do not report writes
            has_read = read > 0 and not self.is_new
        if written:
            self.shortest = min(self.shortest or read + written, read + written)
        self.is_new = category == "summary"
        return has_read


class AgentCall(NamedTuple):
    """An agent's call, and how the instructions in its prompt are billed."""

    session: tuple[str, str]
    """The session's name and its agent."""
    kind: int
    at_ms: int
    """The time of the call, in milliseconds since 1970."""
    is_subagents: bool
    prompt: int
    """The size of the prompt in tokens."""
    bucket: str
    """A bucket in `PREFIX_BUCKETS`."""

    @property
    def agent(self) -> str:
        return self.session[1]


def _read_agent_calls(
    connection: sqlite3.Connection, scope: Scope, kinds: Mapping[int, tuple[str, str, str, str]]
) -> Iterator[AgentCall]:
    """Yield the agents' calls in scope, oldest first.

    The first call of a session or of a sub-agent does not read instructions from a cache, even if
    it reads the agent's own system prompt. The same applies to the first call after a summary.

    Args:
        connection: The ledger.
        scope: The calls.
        kinds: The kinds of calls, from `kinds_in`.
    """
    where, values = calls_condition(scope)
    conversations: dict[tuple[tuple[str, str], bool, str], _Conversations] = {}
    rows = connection.execute(
        f"SELECT session.name, agent, kind, at, {PROMPT_SQL}, cache_read, {_WRITTEN}, {_UNREAD} "  # noqa: S608
        "FROM event JOIN session ON session.id = event.session "
        f"WHERE agent != ? AND {where} ORDER BY at, event.id",
        (PROTOCOL, *values),
    )
    for name, agent, kind, at, prompt, read, written, unread in rows:
        _provider, model, category, _tier = kinds[kind]
        is_sub = category == "subagent"
        key = (name, agent), is_sub, model
        calls = conversations.setdefault(key, _Conversations())
        bucket = "cache_read" if calls.add(category, read, written) else unread
        yield AgentCall((name, agent), kind, at, is_sub, prompt, bucket)


def profile_usage(ledger: Ledger, scope: Scope, days: int) -> UsageProfile:
    """Return the profile of the agents' calls in scope.

    Args:
        ledger: The ledger.
        scope: The calls.
        days: The number of days that the scope covers.

    Raises:
        LedgerError: Reading failed.
    """
    rows: Counter[tuple[str, tuple[str, str, str], str, str]] = Counter()
    prompts, sessions = Counter[tuple[str, tuple[str, str, str]]](), Counter[object]()
    begun: set[tuple[str, str]] = set()
    with ledger.reader() as connection:
        kinds = kinds_in(connection)
        for call in _read_agent_calls(connection, scope, kinds):
            provider, model, _category, tier = kinds[call.kind]
            key = call.agent, (model, provider, tier)
            sessions[key] += not call.is_subagents and call.session not in begun
            begun.update([] if call.is_subagents else [call.session])
            prompts[key] += call.prompt
            part = "subagents" if call.is_subagents else "main"
            rows[(*key, part, _PREFIX_FIELDS[call.bucket])] += 1
    usages = [
        _agent_usage(
            key,
            sessions[key],
            prompts[key],
            {row[2:]: calls for row, calls in rows.items() if row[:2] == key},
        )
        for key in prompts
    ]
    return UsageProfile(days=days, agents=_most_frequent_first(usages))


def _agent_usage(
    key: tuple[str, tuple[str, str, str]],
    sessions: int,
    prompts: int,
    calls: dict[tuple[str, str], int],
) -> AgentUsage:
    agent, (model, provider, tier) = key
    main, subagents = (
        PrefixCalls(**{name: number for (part, name), number in calls.items() if part == wanted})
        for wanted in ("main", "subagents")
    )
    return AgentUsage(
        agent=agent,
        model=model,
        provider=provider,
        tier=tier,
        sessions=sessions,
        prompt_tokens=prompts // sum(calls.values()),
        main=main,
        subagents=subagents,
    )


def _most_frequent_first(usages: Iterable[AgentUsage]) -> tuple[AgentUsage, ...]:
    by_name = sorted(usages, key=attrgetter("agent", "model", "provider", "tier"))
    totals = Counter[str]()
    for usage in by_name:
        totals[usage.agent] += usage.calls
    return tuple(
        sorted(by_name, key=lambda usage: (-totals[usage.agent], usage.agent, -usage.calls))
    )[:MOST_MODELS]


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
        for call in _read_agent_calls(connection, scope, kinds):
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
