"""Exports recorded calls as CSV or JSON Lines, with numbers, ids and times but no text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import IO, Literal

import msgspec

from sidecar.cost.ledger import BUCKETS, EVENT_COLUMNS, EVENT_TABLES, Ledger, event_of_row
from sidecar.cost.ledger_events import Buckets, Cost, LedgerEvent
from sidecar.cost.sums import Scope, calls_condition
from sidecar.text.printable import json_text, printable

ExportFormat = Literal["csv", "jsonl"]
CostSource = Literal["reported", "list", "own", "derived", "partly", "unpriced", "agent"]


class ExportedCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An exported call. Only the columns for audio, images and video overlap with other columns.

    `cost_usd` is null if no price is known.
    """

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
    """Tokens written to a cache with an unknown lifetime."""
    output_tokens: int
    """Output tokens, excluding reasoning."""
    reasoning_tokens: int
    web_searches: int
    file_searches: int
    audio_input_tokens: int
    """Audio tokens, which are also included in `input_tokens`."""
    audio_cache_read_tokens: int
    audio_output_tokens: int
    image_input_tokens: int
    image_cache_read_tokens: int
    image_output_tokens: int
    video_input_tokens: int
    other_tools: int
    estimated_tokens: int | None
    cost_usd: float | None
    cost_source: CostSource
    """How the cost was determined.

    With `derived`, the service tier had no listed price, so its price was derived from the standard
    price. With `partly`, a part of the call has no price and is excluded. With `agent`, the agent
    computed the cost. With `own`, a `[[price]]` entry has the price.
    """
    agent_cost_usd: float | None
    """The cost in USD that the agent computed from its price list."""
    branch: str = ""
    """The git branch that was checked out, or an empty string if unknown."""
    lost_tokens: int | None = None
    """The tokens of a lost cache that were sent again; 0 if it was not lost, null if unknown."""
    cache_loss: str | None = None
    """Why the cache was lost, as in reports by `cache-loss`."""
    lost_cost_usd: float | None = None
    """What the lost tokens cost more than a cache read; null if unknown."""


_USES = frozenset({"web_searches", "file_searches", "other_tools"})
_FIELDS = tuple(name if name in _USES else f"{name}_tokens" for name in BUCKETS)
"""The `ExportedCall` fields for a call's buckets, in the order of `BUCKETS`."""


def read_events(ledger: Ledger, scope: Scope) -> Iterator[LedgerEvent]:
    """Yield the calls in scope, oldest first."""
    where, values = calls_condition(scope)
    with ledger.reader() as connection:
        rows = connection.execute(
            f"SELECT {EVENT_COLUMNS} FROM {EVENT_TABLES} WHERE {where} ORDER BY at, event.id",  # noqa: S608
            values,
        )
        for row in rows:
            yield event_of_row(row)


def write_calls(events: Iterator[LedgerEvent], stream: IO[str], form: ExportFormat = "csv") -> None:
    """Write calls and their costs to a stream."""
    calls = map(exported, events)
    if form == "csv":
        rows = map(msgspec.structs.astuple, calls)
        _write_csv(ExportedCall.__struct_encode_fields__, rows, stream)
    else:
        stream.writelines(f"{json_text(call)}\n" for call in calls)


def buckets_of_export(call: ExportedCall) -> Buckets:
    """Return the buckets of an exported call."""
    return Buckets.of(getattr(call, name) for name in _FIELDS)


def source_of(cost: Cost) -> CostSource:
    """Return how a call's cost was determined."""
    if cost.basis is None:
        return "unpriced"
    return cost.basis if cost.whole else "partly"


def exported(event: LedgerEvent) -> ExportedCall:
    cost = event.cost or Cost(None, whole=False)
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
        **dict(zip(_FIELDS, msgspec.structs.astuple(event.buckets), strict=True)),
        estimated_tokens=event.estimated_tokens,
        cost_usd=None if cost.usd is None else float(cost.usd),
        cost_source=source_of(cost),
        agent_cost_usd=None if event.agent_cost is None else float(event.agent_cost),
        branch=event.branch,
        lost_tokens=None if event.loss is None else event.loss.tokens,
        cache_loss=event.loss.cause.text if event.loss and event.loss.cause else None,
        lost_cost_usd=None if cost.lost is None else float(cost.lost),
    )


def table_csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as CSV with full precision. None becomes an empty cell."""
    stream = StringIO()
    _write_csv(heads, rows, stream)
    return stream.getvalue()


def _write_csv(heads: Sequence[str], rows: Iterable[Sequence[object]], stream: IO[str]) -> None:
    import csv

    table = csv.writer(stream, lineterminator="\n")
    table.writerow(heads)
    for row in rows:
        table.writerow(["" if value is None else _format_cell(value) for value in row])


_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_SPACE = ("\t", "\r")


def _format_cell(value: object) -> object:
    """Format a CSV cell. Text that a spreadsheet would interpret as a formula is quoted."""
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".")
    if not isinstance(value, str):
        return value
    return printable("'" + value if _is_formula(value) else value)


def without_quote(cell: str) -> str:
    """Return the text of a cell that `_format_cell` may have quoted."""
    return cell[1:] if cell[:1] == "'" and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    return text.lstrip().startswith(_FORMULA) or text.startswith(_SPACE)
