"""Text shown by both the editors and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sidecar.conversations.context_protocol import ContextUsage, SessionInfo, SessionRow
from sidecar.conversations.context_rows import context_rows, rows_text
from sidecar.counting.count_result import Count, estimated_percent_text, number_text, tokens_text
from sidecar.known_agents import lower_bound_agents
from sidecar.models.names import short_names
from sidecar.text.printable import (
    HOW_RECORDED,
    cost_text,
    counted,
    days_text,
    markdown,
    printable,
    shorten,
)
from sidecar.text.tables import align_columns, draw_gauge, markdown_table

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.conversations.context_protocol import FitResult, Removed
    from sidecar.cost.context_costs import BranchCost
    from sidecar.cost.ledger_events import Cost
    from sidecar.text.pages import Page
    from sidecar.workspace.spending import Costs

_COLUMNS = ("model", "tokens", "of window", "input cost", "method")


def describe_unknown_model(similar: Sequence[str]) -> str:
    """Return a message about an unknown model that suggests similar models."""
    if similar:
        return f"not a known model; did you mean {' or '.join(similar)}?"
    return "not a known model; the count is a rough estimate"


def unknown_model_text(model: str, settings: Settings) -> str | None:
    """Return a warning if a model is neither in the catalogue nor in the settings."""
    from sidecar.counting.windows import similar_models

    similar = similar_models(model, settings)
    return None if similar is None else f"{model} is {describe_unknown_model(similar)}"


def format_comparison(counts: Iterable[Count]) -> str:
    """Format token counts for several models as a table, fewest tokens first."""
    rows = [
        [printable(cell) for cell in _comparison_cells(count)]
        for count in sorted(counts, key=lambda count: count.tokens)
    ]
    return "\n".join(align_columns([_COLUMNS, *rows]))


def format_comparison_as_markdown(title: str, counts: Sequence[Count]) -> str:
    """Format token counts for several models as a Markdown table."""
    rows = [(markdown(model), *numbers) for model, *numbers in map(_comparison_cells, counts)]
    return f"**{markdown(title)}**\n\n{markdown_table([_COLUMNS, *rows])}"


def _comparison_cells(count: Count) -> tuple[str, str, str, str, str]:
    return (
        count.model,
        number_text(count.tokens, count.method),
        "?" if count.percent is None else estimated_percent_text(count.percent, count.method),
        count.input_cost_text or "unpriced",
        count.method,
    )


NO_CONTEXT = (
    "No conversation found for this workspace yet. Start a coding agent or a chat plugin in this "
    "folder, and its session appears here."
)
NO_COST = f"No calls recorded for this workspace yet. {HOW_RECORDED}"
NO_ENDPOINTS = (
    "None configured. `token-sidecar config init --user` creates a sample with [[endpoint]]."
)


def format_fit_result(plan: FitResult) -> str:
    """Describe a pruning plan. The first line is a summary."""
    if not plan.removed:
        return plan.reason or f"Nothing to remove: {plan.tokens_before:,} tokens already fit."
    verdict = "" if plan.fits else f"; {plan.reason or 'it still does not fit'}"
    turns, cached = len(plan.removed), plan.cached_tokens_lost
    head = (
        f"{plan.tokens_before:,} -> {plan.tokens_after:,} tokens, {counted(turns, 'turn')}, "
        f"{counted(cached, 'cached token')} lost{verdict}"
    )
    return "\n".join([head, "", *map(_removed_text, plan.removed)])


def format_undo_result(usage: ContextUsage, undone: bool) -> str:
    """Return the message shown after `context/undo`."""
    if not undone:
        return "Nothing to undo: no plan has been applied since the last undo."
    size = tokens_text(usage.tokens or 0, usage.method or "exact")
    return f"Undone: the context is back to {size}."


def format_reset_result(agent: str | None, *, is_reset: bool) -> str:
    """Return the message shown after `context/reset`.

    Args:
        agent: The agent of the shown session, or None for a conversation of this server.
        is_reset: Whether a conversation was reset.
    """
    if is_reset:
        return "The conversation's context has been reset. Its recorded costs are kept."
    if agent is not None:
        return f"The shown session belongs to {printable(agent)} and cannot be reset here."
    return "Nothing to reset: there is no conversation."


def _removed_text(turn: Removed) -> str:
    tokens = counted(turn.tokens, "token")
    return f"turn {turn.index} ({printable(turn.role)}): {tokens}, {turn.reason}"


BEING_READ = "being read"
"""Displayed instead of a session's cost while its calls are being read."""
NOT_READ = "not read yet"
"""Displayed instead of a cost by commands that do not record agents' calls."""

NOT_RECORDED = "not recorded"
"""Displayed instead of a cost while the ledger cannot be used."""

_GAUGE_WIDTH = 10
"""Width of gauges in a terminal, in characters."""
_LABEL_WIDTH = 32
"""Maximum length of labels in a terminal, in characters."""
_SHORT_ID = 8


def format_session_cost(costs: Costs, session: SessionInfo | SessionRow | None) -> str:
    """Return a session's cost, such as `$1.92` or `≥$1.92`, or the reason why it is unknown."""
    if session is None:
        return ""
    if session.id in costs.sessions:
        return _session_cost_text(costs, session, costs.sessions[session.id].total)
    if session.source == "protocol" or costs.read:
        return ""
    if costs.problem:
        return NOT_RECORDED
    return BEING_READ if costs.reading else NOT_READ


def _session_cost_text(costs: Costs, session: SessionInfo | SessionRow, cost: Cost) -> str:
    """Format the cost of all or of some calls of a session."""
    is_unread = costs.unread is not None and session.id in costs.unread.sessions
    is_partial = is_unread or session.source in lower_bound_agents() or not cost.whole
    return cost_text(None if cost.usd is None else float(cost.usd), is_partial=is_partial)


def subagents_text(usage: ContextUsage, costs: Costs) -> str:
    """Return text such as `main $0.40 + 3 sub-agents $0.05, 1 running`.

    Returns an empty string if the session has no sub-agents.
    """
    session, number = usage.session, len(usage.subagents)
    cost = costs.sessions.get(session.id) if session else None
    named = counted(number, "sub-agent") if number else "sub-agents"
    if session is not None and cost is not None and cost.split is not None:
        main, others = (_session_cost_text(costs, session, part) for part in cost.split)
        text = f"main {main} + {named} {others}"
    elif number:
        text = named
    else:
        return ""
    running = sum(one.state == "running" for one in usage.subagents)
    return f"{text}, {running:,} running" if running else text


def format_branch_cost(branch: BranchCost | None, *, is_unread: bool = False) -> str:
    """Return a branch's cost, such as `$12.40 (3 sessions)`, or "" if it has no calls.

    Args:
        branch: The branch's cost.
        is_unread: Whether some calls have not been read yet.
    """
    if branch is None or not branch.calls:
        return ""
    cost = cost_text(branch.cost_usd, is_partial=branch.partial or is_unread)
    return f"{cost} ({counted(branch.sessions, 'session')})" if branch.sessions else cost


def branch_cell(costs: Costs) -> str:
    """Return the name and the cost of the branch that is checked out, or an empty string."""
    branch = costs.sums.branch_cost
    cost = format_branch_cost(branch, is_unread=costs.unread is not None)
    return f"{cost} on {branch.name}" if branch and cost else ""


def add_view_to_usage(
    usage: ContextUsage | None, costs: Costs, now: datetime | None = None
) -> ContextUsage:
    """Return a copy of the context usage that includes the rows and text to display."""
    usage, now = usage or ContextUsage(), now or datetime.now(UTC)
    session = usage.session
    updated = format_age(session.updated_at, now) if session else ""
    cost = format_session_cost(costs, session)
    rows = context_rows(
        usage,
        cost=cost,
        subagents=subagents_text(usage, costs),
        branch=branch_cell(costs),
        cap=costs.caps_text,
        updated=updated,
        now=now,
    )
    text = rows_text(rows) if rows else NO_CONTEXT
    return msgspec.structs.replace(usage, branch=costs.sums.branch_cost, rows=rows, text=text)


def usage_page(usage: ContextUsage, costs: Costs, now: datetime | None = None) -> Page:
    """Return a page that shows the context usage."""
    from sidecar.conversations.context_page import context_page

    now = now or datetime.now(UTC)
    updated = format_age(usage.session.updated_at, now) if usage.session else ""
    cost = _cost_with_noun(format_session_cost(costs, usage.session))
    return context_page(
        usage,
        cost=cost,
        updated=updated,
        empty=NO_CONTEXT,
        now=now,
        subagents=subagents_text(usage, costs),
        branch=branch_cell(costs),
    )


def session_rows(
    rows: Sequence[SessionRow], costs: Costs, now: datetime | None = None
) -> list[SessionRow]:
    """Return copies of the rows with `detail` (for a tree) and `text` (for a terminal) set."""
    if not rows:
        return []
    now = now or datetime.now(UTC)
    cells = all_row_cells(rows, costs, now)
    ends = align_columns(
        [
            (each.model, row.source, each.state, printable(row.id[:_SHORT_ID]))
            for row, each in zip(rows, cells, strict=True)
        ],
        left=3,
    )
    lines = align_columns(
        [
            (
                "●" if row.shown else " ",
                shorten(printable(row.label or row.source), _LABEL_WIDTH),
                size_text(row, _GAUGE_WIDTH),
                _cost_with_noun(each.cost),
                each.age,
                end,
            )
            for row, each, end in zip(rows, cells, ends, strict=True)
        ],
        left=2,
    )
    return [
        msgspec.structs.replace(
            row,
            label=printable(row.label or row.source),
            figures=(figures := _joined(size_text(row), _cost_with_noun(each.cost))),
            detail=_joined(figures, each.age, each.model, each.state),
            text=line,
        )
        for row, each, line in zip(rows, cells, lines, strict=True)
    ]


class RowCells(NamedTuple):
    """The columns of the session list, except for the label and size."""

    cost: str
    age: str
    model: str
    state: str
    """The session's state: `running`, `pinned`, `running, pinned`, or an empty string."""


def all_row_cells(rows: Sequence[SessionRow], costs: Costs, now: datetime) -> list[RowCells]:
    """Return the columns that describe each session in a list."""
    models = short_names(row.model for row in rows if row.model)
    return [_row_cells(row, costs, now, models.get(row.model or "", "")) for row in rows]


def _row_cells(row: SessionRow, costs: Costs, now: datetime, model: str) -> RowCells:
    states = ("running" if row.state == "running" else "", "pinned" if row.pinned else "")
    return RowCells(
        cost=format_session_cost(costs, row),
        age=format_age(row.updated_at, now),
        model=printable(model),
        state=", ".join(filter(None, states)),
    )


def _cost_with_noun(cost: str) -> str:
    return f"cost {cost}" if cost in (BEING_READ, NOT_READ, NOT_RECORDED) else cost


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def size_text(row: SessionRow, width: int = 0) -> str:
    """Return the percentage of the context window that a session uses.

    A gauge of `width` characters is appended unless `width` is 0. If the window is unknown, the
    number of tokens is returned. If the number of tokens is unknown, a note is returned.
    """
    if row.tokens is None or row.method is None:
        return row.note or "size unknown"
    if row.percent is None:
        return tokens_text(row.tokens, row.method)
    share = estimated_percent_text(row.percent, row.method)
    if not width:
        return share
    return f"{share.rjust(len('~100 %'))} {draw_gauge(row.percent, width)}"


def format_age(updated_at: str, now: datetime) -> str:
    """Return the time since an update, such as `just now`, `3 min ago` or `2 days 5 h ago`."""
    if not updated_at:
        return ""
    passed = now - datetime.fromisoformat(updated_at)
    if passed < timedelta(minutes=1):
        return "just now"
    if passed < timedelta(hours=1):
        return f"{passed // timedelta(minutes=1)} min ago"
    if passed < timedelta(days=2):
        return f"{passed // timedelta(hours=1)} h ago"
    return f"{days_text(passed)} ago"
