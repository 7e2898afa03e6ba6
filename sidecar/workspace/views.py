"""What trees and lists show of a workspace's sessions, worked out here once for every editor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from sidecar.context.usage import ContextUsage, SessionInfo, SessionRow, ViewRow
from sidecar.counting.count import banded_text, tokens_text
from sidecar.text.printable import percent_text, printable
from sidecar.text.tables import aligned, gauge
from sidecar.workspace.wording import NO_CONTEXT, context_text, session_cost

if TYPE_CHECKING:
    from sidecar.workspace.spending import Costs

_GAUGE, _SHORT_GAUGE = 10, 5
"""Cells: of a line in columns, of a narrow list."""
_TITLE, _SHORT_TITLE = 40, 24
_ID = 8
"""Of an id so many characters stand for it."""


def session_rows(
    rows: Sequence[SessionRow], costs: Costs, now: datetime | None = None
) -> list[SessionRow]:
    """The same rows with what a person reads; `text` in columns over all of them."""
    if not rows:
        return []
    parts = [_parts(row, costs, now or datetime.now(UTC)) for row in rows]
    lines = aligned([_cells(row, *each) for row, each in zip(rows, parts, strict=True)], left=9)
    return [
        msgspec.structs.replace(
            row,
            label=_label(row),
            detail=" · ".join(filter(None, (_size(row, _SHORT_GAUGE), *each, _rest(row)))),
            text=line,
        )
        for row, each, line in zip(rows, parts, lines, strict=True)
    ]


def _label(row: SessionRow) -> str:
    return _title(row, _SHORT_TITLE) if row.title else row.source


def _rest(row: SessionRow) -> str:
    """What the label leaves out."""
    return row.source if row.title else printable(row.id[:_ID])


def _title(row: SessionRow, most: int) -> str:
    title = printable(" ".join(row.title.split())) if row.title else printable(row.id[:_ID])
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _parts(row: SessionRow, costs: Costs, now: datetime) -> tuple[str, str, str, str]:
    """Cost, age, state, model."""
    info = SessionInfo(id=row.id, source=row.source, updated_at=row.updated_at)
    state = row.state if not row.pinned else f"{row.state}, pinned"
    return (
        session_cost(costs, info),
        age(row.updated_at, now),
        state,
        printable(row.model or ""),
    )


def _size(row: SessionRow, cells: int) -> str:
    if row.tokens is None or row.method is None:
        return row.note or "size not known"
    if row.percent is None:
        return tokens_text(row.tokens, row.method)
    mark = "" if row.method in ("exact", "endpoint") else "~"
    share = f"{mark}{percent_text(row.percent)}"
    if cells == _GAUGE:
        share = share.rjust(len("~100 %"))
    return f"{share} {gauge(row.percent, cells)}"


def _cells(row: SessionRow, cost: str, old: str, state: str, model: str) -> list[str]:
    mark = "●" if row.shown else " "
    return [mark, row.source, _title(row, _TITLE), _size(row, _GAUGE), cost, old, state, model, ""]


def age(updated_at: str, now: datetime) -> str:
    """How long ago: `now`, `3 min`, `2 h`, `5 days`; "" for no time."""
    if not updated_at:
        return ""
    passed = now - datetime.fromisoformat(updated_at)
    if passed < timedelta(minutes=1):
        return "now"
    if passed < timedelta(hours=1):
        return f"{passed // timedelta(minutes=1)} min"
    if passed < timedelta(days=2):
        return f"{passed // timedelta(hours=1)} h"
    return f"{passed.days} days"


def usage_report(usage: ContextUsage | None, costs: Costs) -> ContextUsage:
    """A usage with what a person reads; None where no conversation is known."""
    if usage is None:
        return ContextUsage(text=NO_CONTEXT)
    text = context_text(usage, session_cost(costs, usage.session, 6)) or NO_CONTEXT
    return msgspec.structs.replace(usage, text=text, rows=usage_rows(usage, costs))


def usage_rows(usage: ContextUsage, costs: Costs) -> list[ViewRow]:
    """How full a context is and what fills it; none where no conversation is known."""
    if usage.session is None or (usage.tokens is None and usage.note is None):
        return []
    session = f"{printable(usage.session.id)} ({usage.session.source})"
    window = f"{usage.limit or 0:,} ({usage.limit_source or 'unknown'})"
    samples = usage.calibration.samples if usage.calibration else 0
    found = [
        ("Context", _fill(usage)),
        ("Model", printable(usage.model or "")),
        ("Cost", session_cost(costs, usage.session, 6)),
        ("Available", "" if usage.available is None else f"{usage.available:,}"),
        ("Usable", "" if usage.usable is None else f"{usage.usable:,}"),
        ("Window", "" if usage.limit is None else window),
        ("Turns", "" if usage.turns is None else f"{usage.turns:,}"),
        ("Session", session),
        ("Calibrated by", f"{samples:,} replies" if samples else ""),
    ]
    rows = [ViewRow(label=label, value=value) for label, value in found if value]
    return [*rows[:2], *_shares(usage), *rows[2:]]


def _fill(usage: ContextUsage) -> str:
    if usage.tokens is None or usage.method is None:
        return usage.note or ""
    share = "" if usage.percent is None else f" ({percent_text(usage.percent)})"
    return banded_text(usage.tokens, usage.method, usage.error_percent) + share


def _shares(usage: ContextUsage) -> list[ViewRow]:
    """What takes the tokens, by kind and by part."""
    kinds = msgspec.structs.asdict(usage.breakdown) if usage.breakdown else {}
    groups = (
        ("Breakdown", [(name.capitalize(), tokens) for name, tokens in kinds.items()]),
        ("Largest", [(printable(part.label), part.tokens) for part in usage.largest]),
    )
    return [
        ViewRow(
            label=label,
            value="",
            children=[ViewRow(label=name, value=f"{tokens:,}") for name, tokens in parts],
        )
        for label, parts in groups
        if parts
    ]
