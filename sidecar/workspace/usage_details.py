"""Adds a forecast and a breakdown of the context to the result of `context/usage`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import msgspec

from sidecar.agents.session_events import StoredSession
from sidecar.conversations.context_protocol import (
    CacheLosses,
    ContextPart,
    Forecast,
    PlanLimit,
    PriceUntil,
)
from sidecar.errors import SidecarError
from sidecar.workspace.sessions import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sidecar.agents.context_sizes import ContextSizes
    from sidecar.agents.session_events import ReportedLimit
    from sidecar.conversations.context_protocol import ContextUsage
    from sidecar.conversations.conversation import Conversation
    from sidecar.cost.book import CostBook
    from sidecar.cost.context_costs import UsageBlock
    from sidecar.workspace.services import Services
    from sidecar.workspace.workspace import Workspace


TOOLS_NAMED = 4
"""How many tools are listed separately. All other tools share one entry."""
_LABELS = {
    "system": "System prompt and tools",
    "instructions": "Instructions",
    "user": "User messages",
    "assistant": "Assistant messages",
    "call": "Tool calls",
    "attachment": "Attachments",
    "summary": "Summary of earlier messages",
}
_SMALL_WINDOW = 100_000
"""In smaller windows, agents do not compact at less than half of the window."""
_FULL = 100.0


async def add_details(
    services: Services,
    workspace: Workspace,
    session: Conversation | StoredSession,
    usage: ContextUsage,
    *,
    contents: bool = True,
) -> ContextUsage:
    """Add what fills the context, a forecast, and why the cache was lost.

    What is unknown stays empty: agents may not store their messages, and the forecast and the
    losses need calls in the ledger.

    Args:
        services: The services.
        workspace: The session's workspace.
        session: The session.
        usage: The session's context usage.
        contents: Whether to add what fills the context.
    """
    if (
        contents
        and isinstance(session, StoredSession)
        and session.path
        and usage.tokens is not None
    ):
        from sidecar.agents.context_sizes import unpack

        sizes = unpack(session.sizes) or await services.agents.sizes.of(session)
        usage = msgspec.structs.replace(usage, contents=label_parts(sizes, usage.tokens))
    if usage.session is None or usage.session.id not in workspace.costs.sessions:
        return usage
    found = await read_forecast(services, workspace, session, usage, datetime.now(UTC))
    book, info = services.spending(workspace).book, usage.session
    losses = await services.workers.run(partial(cache_losses, book, info.id, info.source))
    return msgspec.structs.replace(usage, forecast=found, cache_losses=losses)


async def read_forecast(
    services: Services,
    workspace: Workspace,
    session: Conversation | StoredSession | None,
    usage: ContextUsage,
    now: datetime,
) -> Forecast | None:
    """Return a session's forecast, or None if the ledger contains no calls from it."""
    if usage.session is None:
        return None
    from sidecar.agents.plan_limits import current_limits

    book, state = services.spending(workspace).book, services.state.folder
    source, settings = usage.session.source, workspace.settings.agents
    is_agents = isinstance(session, StoredSession)
    is_running = isinstance(session, StoredSession) and session.state(now) == "running"
    return await services.workers.run(
        lambda: forecast(
            book,
            usage,
            now,
            limits=current_limits(source, settings, state) if is_agents else (),
            is_running=is_running,
        )
    )


def cache_losses(book: CostBook, session: str, agent: str) -> list[CacheLosses]:
    """Return why a session's cache was lost, most frequent cause first. This call blocks."""
    from sidecar.cost.cache_losses import LossCause
    from sidecar.cost.sums import Scope, read_tallies

    try:
        with book.report_reader() as connection:
            found = read_tallies(connection, Scope(session=session, agent=agent), ("loss",))
    except SidecarError:
        return []
    losses = [
        CacheLosses(
            cause=LossCause(number).text,
            calls=tally.calls,
            tokens=tally.buckets.prompt,
            cost_usd=tally.cost_usd,
            partial=tally.unpriced,
        )
        for (number,), tally in found.items()
    ]
    return sorted(losses, key=lambda one: -one.calls)


def forecast(
    book: CostBook,
    usage: ContextUsage,
    now: datetime | None = None,
    limits: Sequence[ReportedLimit] = (),
    *,
    is_running: bool = False,
) -> Forecast | None:
    """Return a forecast for a session, or None if it has no recorded calls.

    This call blocks.

    Args:
        book: The ledger and its prices.
        usage: The session's context usage.
        now: The current time.
        limits: The subscription's limits.
        is_running: Whether the agent is working on a turn.
    """
    from sidecar.agents.plan_limits import end_of_block
    from sidecar.cost.forecast import (
        cache_hit_rate,
        growth_per_call,
        next_input,
        session_calls,
        usd_per_hour,
    )

    session, now = usage.session, now or datetime.now(UTC)
    if session is None:
        return None
    try:
        newest = datetime.fromisoformat(session.updated_at)
        calls = session_calls(book.ledger, session.id, session.source, newest)
    except (SidecarError, ValueError):
        return None
    if not calls:
        return None
    growth, hits = growth_per_call(calls), cache_hit_rate(calls)
    rate = usd_per_hour(calls, now)
    following = None
    if usage.tokens is not None:
        is_compacted = bool(usage.compacted)
        following = next_input(calls, usage.tokens, book.prices, now, is_compacted=is_compacted)
    calls_left, room = None, _room_to_grow(usage)
    if growth is not None and room is not None:
        calls_left = ceil(max(0, room) / growth)
    steps = following.prices if following else ()
    block, ends_at = None, end_of_block(limits, now)
    if ends_at is not None:
        with suppress(SidecarError):
            block = book.current_block(session.source, ends_at, now)
    return Forecast(
        calls_left=calls_left,
        next_input_usd=_as_float(following.cached_usd if following else None),
        next_input_uncached_usd=_as_float(following.uncached_usd if following else None),
        cached_until=_as_iso(steps[0].until) if steps else None,
        cache_end=following.cache_end if following else None,
        next_input_prices=[
            PriceUntil(usd=_as_float(usd), until=_as_iso(until)) for usd, until in steps
        ],
        cache_hit_percent=None if hits is None else round(100 * hits, 1),
        running=is_running,
        usd_per_hour=_as_float(rate),
        limits=plan_limits(limits, block, now),
        block=block,
    )


def plan_limits(
    limits: Iterable[ReportedLimit], block: UsageBlock | None, now: datetime
) -> list[PlanLimit]:
    """Return an agent's limits, and when they are reached at this pace."""
    return [
        PlanLimit(
            minutes=limit.minutes,
            used_percent=limit.used_percent,
            resets_at=_as_iso(limit.resets_at),
            full_at=_as_iso(_full_at(limit, block, now)),
        )
        for limit in limits
    ]


def _full_at(limit: ReportedLimit, block: UsageBlock | None, now: datetime) -> datetime | None:
    from sidecar.agents.plan_limits import BLOCK_MINUTES
    from sidecar.cost.forecast import SHORTEST_PACE

    if limit.resets_at is None or not 0 < limit.used_percent < _FULL:
        return None
    began = limit.resets_at - timedelta(minutes=limit.minutes)
    if block is not None and limit.minutes == BLOCK_MINUTES:
        began = max(began, block.first_call_at)
    if now - began < SHORTEST_PACE:
        return None
    full = now + (now - began) * ((_FULL - limit.used_percent) / limit.used_percent)
    return full if full < limit.resets_at else None


def _room_to_grow(usage: ContextUsage) -> int | None:
    """Return how many tokens can be added before a compaction, or until the window is full."""
    left, free = tokens_until_compaction(usage), usage.available
    return free if left is None or free is None else min(free, left)


def tokens_until_compaction(usage: ContextUsage) -> int | None:
    """Return how many tokens can be added before the agent compacts the conversation.

    The result is negative beyond the agent's threshold, and None if the threshold is unknown.
    """
    from sidecar.agents.reader_registry import reader_of

    tokens, limit = usage.tokens, usage.limit
    is_own = usage.limit_source == "settings"  # agents do not know the user's limit
    if tokens is None or limit is None or usage.session is None or is_own:
        return None
    if usage.session.source == PROTOCOL:
        return None
    end = reader_of(usage.session.source).compacts_at(limit, usage.model or "")
    if end < min(limit, _SMALL_WINDOW) // 2:  # the agent's reserve is meant for larger windows
        end = limit
    return end - tokens


def _as_iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def _as_float(amount: object) -> float | None:
    return None if amount is None else float(str(amount))


def label_parts(sizes: ContextSizes, tokens: int) -> list[ContextPart]:
    """Divide a context's tokens among labeled content types. The largest type comes first.

    The result is empty if the sizes are unknown.
    """
    parts: Counter[str] = Counter()
    named = 0
    for share in sizes.split(tokens):
        label = _LABELS.get(share.kind)
        if label is None:
            named += 1
            is_named = share.name and named <= TOOLS_NAMED
            label = f"Results of {share.name}" if is_named else "Other tool results"
        parts[label] += share.tokens
    return [ContextPart(label=label, tokens=number) for label, number in parts.most_common()]
