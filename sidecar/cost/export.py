"""Every call in scope, one by one, for spreadsheets and scripts: numbers, ids and times only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Literal

import msgspec

from sidecar.cost.events import Buckets, Event
from sidecar.cost.ledger import usd
from sidecar.cost.migrations import BUCKETS
from sidecar.cost.sums import Scope, owner_condition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal

    from sidecar.cost.ledger import Ledger
    from sidecar.cost.prices import Prices
    from sidecar.cost.reports import Cancelled

Format = Literal["csv", "jsonl"]


class ExportedCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One call. Token columns do not overlap; `cost_usd` is null where no price is known."""

    at: str
    workspace: str
    session: str
    agent: str
    provider: str
    model: str
    category: str
    service_tier: str
    request_id: str | None
    input_tokens: int
    cache_read_tokens: int
    cache_write_5m_tokens: int = msgspec.field(name="cacheWrite5mTokens")
    cache_write_1h_tokens: int = msgspec.field(name="cacheWrite1hTokens")
    cache_write_tokens: int
    """Cache writes whose time to live was not said."""
    output_tokens: int
    """Without reasoning."""
    reasoning_tokens: int
    web_searches: int
    estimated_tokens: int | None
    cost_usd: float | None
    cost_source: Literal["reported", "list", "unpriced"]


_SELECT = (
    "SELECT at, workspace, session.name, agent, provider.name, model, category, tier, request, "  # noqa: S608
    f"estimated, reported, {', '.join(BUCKETS)} "
    "FROM event JOIN session ON session.id = event.session JOIN kind ON kind.id = event.kind "
    "JOIN provider ON provider.id = kind.provider WHERE at >= ? AND at < ? {owner} ORDER BY at"
)


def read_events(
    ledger: Ledger, scope: Scope | None = None, cancelled: Cancelled | None = None
) -> Iterator[Event]:
    """The events in scope, first to last."""
    wanted = scope or Scope()
    owner, values = owner_condition(wanted, "event.session")
    with ledger.reader(cancelled) as connection:
        rows = connection.execute(
            _SELECT.format(owner=owner), (wanted.start_ms, wanted.end_ms, *values)
        )
        for row in rows:
            yield _event(row)


def write_calls(
    events: Iterator[Event], prices: Prices, stream: IO[str], form: Format = "csv"
) -> int:
    """Write the calls, priced now, and return how many they were."""
    calls = (exported(event, prices.cost(event)) for event in events)
    return _write_csv(calls, stream) if form == "csv" else _write_lines(calls, stream)


def exported(event: Event, cost: Decimal | None) -> ExportedCall:
    """An event as it is exported."""
    buckets = event.buckets
    listed: Literal["list", "unpriced"] = "unpriced" if cost is None else "list"
    return ExportedCall(
        at=event.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        workspace=event.workspace,
        session=event.session,
        agent=event.agent,
        provider=event.provider,
        model=event.model,
        category=event.category,
        service_tier=event.tier or "standard",
        request_id=event.request_id,
        input_tokens=buckets.input,
        cache_read_tokens=buckets.cache_read,
        cache_write_5m_tokens=buckets.cache_write_5m,
        cache_write_1h_tokens=buckets.cache_write_1h,
        cache_write_tokens=buckets.cache_write,
        output_tokens=buckets.output,
        reasoning_tokens=buckets.reasoning,
        web_searches=buckets.web_searches,
        estimated_tokens=event.estimated_tokens,
        cost_usd=None if cost is None else float(cost),
        cost_source=listed if event.reported_cost is None else "reported",
    )


def _event(row: tuple[object, ...]) -> Event:
    at, workspace, session, agent, provider, model, category, tier, request, *numbers = row
    estimated, reported, *buckets = numbers
    return msgspec.convert(
        {
            "at": datetime.fromtimestamp(int(str(at)) / 1000, UTC),
            "model": model,
            "provider": provider,
            "buckets": Buckets(**dict(zip(BUCKETS, buckets, strict=True))),  # type: ignore[arg-type]
            "category": category,
            "tier": tier,
            "workspace": workspace,
            "session": session,
            "agent": agent,
            "request_id": request,
            "estimated_tokens": estimated,
            "reported_cost": None if reported is None else usd(int(str(reported))),
        },
        Event,
    )


def _write_csv(calls: Iterator[ExportedCall], stream: IO[str]) -> int:
    import csv

    table = csv.writer(stream, lineterminator="\n")
    table.writerow(ExportedCall.__struct_encode_fields__)
    count = 0
    for call in calls:
        values = msgspec.structs.astuple(call)
        table.writerow(["" if value is None else _cell(value) for value in values])
        count += 1
    return count


def _cell(value: object) -> object:
    """Money without an exponent, and no cell that a spreadsheet would run as a formula."""
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".")
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return "'" + value
    return value


def _write_lines(calls: Iterator[ExportedCall], stream: IO[str]) -> int:
    count = 0
    for call in calls:
        stream.write(msgspec.json.encode(call).decode() + "\n")
        count += 1
    return count
