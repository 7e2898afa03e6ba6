"""How a session's context and a workspace's list of sessions are shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from sidecar.config.settings import LOWER_BOUND_AGENTS
from sidecar.context.protocol import ContextUsage, SessionInfo, SessionRow
from sidecar.context.view import context_rows, rows_text
from sidecar.counting.count import number_text, tokens_text
from sidecar.text.printable import percent_text, printable, usd_text
from sidecar.text.tables import align_columns, draw_gauge
from sidecar.workspace.wording import NO_CONTEXT

if TYPE_CHECKING:
    from sidecar.workspace.spending import Costs

BEING_READ = "being read"
"""Shown as the cost of a session whose calls are still being read."""
NOT_READ = "not read yet"
"""Shown as that cost by commands that do not read agents' calls."""
AT_LEAST = "≥"
"""Marks a cost that may lack calls."""

_BAR, _SHORT_BAR = 10, 5
"""Width of a bar in cells, in a terminal and in an editor's tree."""
_TITLE, _SHORT_TITLE = 40, 24
"""Longest title in characters, in a terminal and in an editor's tree."""
_SHORT_ID = 8
"""How many characters of a session's id are shown."""


def session_cost(costs: Costs, session: SessionInfo | None) -> str:
    """Return a session's cost such as `$1.92` or `≥$1.92`, or why it is unknown."""
    if session is None:
        return ""
    if session.id in costs.sessions:
        cost = costs.sessions[session.id]
        is_behind = not (costs.read or costs.reading or session.source == "protocol")
        mark = AT_LEAST if is_behind or session.source in LOWER_BOUND_AGENTS else ""
        return "unpriced" if cost is None else f"{mark}{usd_text(cost)}"
    if session.source == "protocol" or costs.read:
        return ""
    return BEING_READ if costs.reading else NOT_READ


def usage_report(
    usage: ContextUsage | None, costs: Costs, now: datetime | None = None
) -> ContextUsage:
    """Return a usage with its view."""
    usage, now = usage or ContextUsage(), now or datetime.now(UTC)
    session = usage.session
    updated = age_text(session.updated_at, now) if session else ""
    rows = context_rows(usage, cost=session_cost(costs, session), updated=updated, now=now)
    return msgspec.structs.replace(usage, rows=rows, text=rows_text(rows) if rows else NO_CONTEXT)


def session_rows(
    rows: Sequence[SessionRow], costs: Costs, now: datetime | None = None
) -> list[SessionRow]:
    """Return the rows with their texts: label and detail for a tree, a line for a terminal."""
    if not rows:
        return []
    now = now or datetime.now(UTC)
    cells = [_row_cells(row, costs, now) for row in rows]
    lines = align_columns(
        [_terminal_cells(row, *each) for row, each in zip(rows, cells, strict=True)], left=3
    )
    return [
        msgspec.structs.replace(
            row, label=_short_label(row), detail=_tree_detail(row, *each), text=line
        )
        for row, each, line in zip(rows, cells, lines, strict=True)
    ]


def _row_cells(row: SessionRow, costs: Costs, now: datetime) -> tuple[str, str, str, str]:
    info = SessionInfo(id=row.id, source=row.source, updated_at=row.updated_at)
    state = f"{row.state}, pinned" if row.pinned else row.state
    model = printable(row.model or "")
    cost = session_cost(costs, info)
    if cost in (BEING_READ, NOT_READ):
        cost = f"cost {cost}"
    return cost, age_text(row.updated_at, now), state, model


def _terminal_cells(row: SessionRow, cost: str, age: str, state: str, model: str) -> list[str]:
    mark = "●" if row.shown else " "
    tokens, fill = "", _size_text(row, _BAR)
    if row.percent is not None:
        tokens = number_text(row.tokens or 0, row.method or "estimate")
    identity = _short_id(row) if row.title else ""
    head = [mark, row.source, _short_title(row, _TITLE), tokens, fill]
    return [*head, cost, age, state, "  ".join(filter(None, (model, identity)))]


def _tree_detail(row: SessionRow, cost: str, age: str, state: str, model: str) -> str:
    rest = row.source if row.title else _short_id(row)
    parts = (_size_text(row, _SHORT_BAR), cost, age, state, model, rest)
    return " · ".join(part for part in parts if part)


def _short_label(row: SessionRow) -> str:
    return _short_title(row, _SHORT_TITLE) if row.title else row.source


def _short_id(row: SessionRow) -> str:
    return printable(row.id[:_SHORT_ID])


def _short_title(row: SessionRow, longest: int) -> str:
    title = printable(" ".join(row.title.split())) if row.title else _short_id(row)
    return title if len(title) <= longest else f"{title[: longest - 1]}…"


def _size_text(row: SessionRow, width: int) -> str:
    if row.tokens is None or row.method is None:
        return row.note or "size unknown"
    if row.percent is None:
        return tokens_text(row.tokens, row.method)
    mark = "" if row.method in ("exact", "endpoint") else "~"
    share = f"{mark}{percent_text(row.percent)}"
    if width == _BAR:
        share = share.rjust(len("~100 %"))
    return f"{share} {draw_gauge(row.percent, width)}"


def age_text(updated_at: str, now: datetime) -> str:
    """Return how long ago a time was: `just now`, `3 min ago`, `2 h ago`, `5 days ago`."""
    if not updated_at:
        return ""
    passed = now - datetime.fromisoformat(updated_at)
    if passed < timedelta(minutes=1):
        return "just now"
    if passed < timedelta(hours=1):
        return f"{passed // timedelta(minutes=1)} min ago"
    if passed < timedelta(days=2):
        return f"{passed // timedelta(hours=1)} h ago"
    return f"{passed.days} days ago"
