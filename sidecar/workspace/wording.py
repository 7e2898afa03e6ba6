"""Texts for users that several surfaces share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sidecar.counting.count import Count, number_text, tokens_text
from sidecar.text.printable import counted, markdown, percent_text, printable, usd_text
from sidecar.text.tables import align_columns

if TYPE_CHECKING:
    from sidecar.context.protocol import ContextUsage, FitResult, Removed

_COMPARED = ("model", "tokens", "of window", "input cost", "method")


def unknown_model_text(similar: Sequence[str]) -> str:
    """Return that a model is unknown, with the most similar known models."""
    if similar:
        return f"not a known model; did you mean {' or '.join(similar)}?"
    return "not a known model; its tokens are a general estimate"


def comparison_text(counts: Iterable[Count]) -> str:
    """Format the counts of a text for several models as a table, fewest tokens first."""
    rows = [
        [printable(cell) for cell in _comparison_cells(count)]
        for count in sorted(counts, key=lambda count: count.tokens)
    ]
    return "\n".join(align_columns([_COMPARED, *rows]))


def comparison_markdown(title: str, counts: Sequence[Count]) -> str:
    """Format the counts of a text for several models as a Markdown table."""
    lines = [f"**{markdown(title)}**\n", _markdown_row(_COMPARED), "|---|---:|---:|---:|---|"]
    for count in counts:
        model, *numbers = _comparison_cells(count)
        lines.append(_markdown_row((markdown(model), *numbers)))
    return "\n".join(lines)


def _comparison_cells(count: Count) -> tuple[str, str, str, str, str]:
    return (
        count.model,
        number_text(count.tokens, count.method),
        "?" if count.percent is None else percent_text(count.percent),
        "unpriced" if count.input_cost_usd is None else usd_text(count.input_cost_usd),
        count.method,
    )


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


NO_CONTEXT = (
    "No conversation found for this workspace yet. Coding agents are picked up automatically; chat "
    "plugins report theirs with `context/append`."
)
NO_COST = (
    "No calls recorded for this workspace yet. Coding agents are picked up automatically; plugins "
    "report theirs with `cost/record`."
)
NO_BUDGETS = (
    "No budgets are configured; `token-sidecar config init` creates a sample .token-sidecar.toml."
)
NO_ENDPOINTS = (
    "None configured; `token-sidecar config init --user` creates a sample with [[endpoint]]."
)


def fit_text(plan: FitResult) -> str:
    """Return what a pruning plan removes. The first line is a summary."""
    if not plan.removed:
        return plan.reason or f"Nothing to remove: {plan.tokens_before:,} tokens already fit."
    verdict = "" if plan.fits else f"; {plan.reason or 'it still does not fit'}"
    turns, cached = len(plan.removed), plan.cached_tokens_lost
    head = (
        f"{plan.tokens_before:,} -> {plan.tokens_after:,} tokens, {counted(turns, 'turn')}, "
        f"{counted(cached, 'cached token')} lost{verdict}"
    )
    return "\n".join([head, "", *map(_removed_text, plan.removed)])


def undo_text(usage: ContextUsage, undone: bool) -> str:
    """Return what `context/undo` did."""
    if not undone:
        return "Nothing to undo: no plan has been applied since the last undo."
    size = tokens_text(usage.tokens or 0, usage.method or "exact")
    return f"Undone: the context is back to {size}."


def reset_text(agent: str | None, *, is_reset: bool) -> str:
    """Return what `context/reset` did.

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
