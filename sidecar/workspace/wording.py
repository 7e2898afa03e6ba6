"""Reports in plain text, a line a part: for every client that shows text and needs no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.count import Count, number_text, tokens_text
from sidecar.text.printable import counted, percent_text, printable
from sidecar.text.tables import aligned, bar, gauge

if TYPE_CHECKING:
    from sidecar.context.results import FitResult, Removed
    from sidecar.context.usage import ContextUsage, SessionInfo
    from sidecar.workspace.spending import Costs

_GAUGE = 20
"""Cells of a terminal."""

HEAD = ("model", "tokens", "of window", "as input", "method")


def unknown_model_text(similar: Sequence[str]) -> str:
    """Say that a model's name is not known, and name the known ones that are like it."""
    if similar:
        return f"in no list of models: did you mean {' or '.join(similar)}?"
    return "in no list of models: counted as an unknown one"


def comparison_text(counts: Iterable[Count]) -> str:
    """One text counted for several models, the fewest tokens first: a table with a head."""
    rows = [
        (
            printable(count.model),
            number_text(count.tokens, count.method),
            "?" if count.percent is None else percent_text(count.percent),
            _usd(count.input_cost_usd),
            count.method,
        )
        for count in sorted(counts, key=lambda count: count.tokens)
    ]
    return "\n".join(aligned([HEAD, *rows]))


NO_CONTEXT = (
    "No conversation is known here yet. Sessions of coding agents appear by themselves ([agents]), "
    "those of chat plugins when they send context/append."
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


BEING_READ = "cost is being read"
"""Of an agent's session whose calls are not in the ledger yet."""
NOT_READ = "cost not read yet"
"""The same where nobody reads them unasked."""
AT_LEAST = "≥"
"""Before a cost that lacks the newest calls, where nobody reads them unasked."""


def session_cost(costs: Costs, session: SessionInfo | None, digits: int = 2) -> str:
    """`$1.92`, `≥$1.92`, `unpriced`, that it is being read, or "" where nothing was recorded."""
    if session is None:
        return ""
    if session.id in costs.sessions:
        cost = costs.sessions[session.id]
        partial = not (costs.read or costs.reading or session.source == "protocol")
        mark = AT_LEAST if partial else ""
        return "unpriced" if cost is None else f"{mark}${cost:,.{digits}f}"
    if session.source == "protocol" or costs.read:
        return ""
    return BEING_READ if costs.reading else NOT_READ


def context_text(usage: ContextUsage, cost: str) -> str:
    """How full the context is, of what, and what fills it; "" where none is known.

    `cost`: of the session, as `session_cost` says it.
    """
    session = usage.session
    if session is None or (usage.tokens is None and usage.note is None):
        return ""
    turns = "" if usage.turns is None else f", {counted(usage.turns, 'turn')}"
    lines = [
        _fill_text(usage),
        f"model {printable(usage.model or 'not known')}, {_so_far(cost)}",
        f"session {printable(session.id)} ({session.source}){turns}",
    ]
    if usage.limit is not None:
        window = f"window {usage.limit:,} ({usage.limit_source}), reserve {usage.reserve:,}"
        lines.insert(1, window)
    parts = _parts(usage)
    return "\n".join([*lines, "", *aligned(parts)] if parts else lines)


def _so_far(cost: str) -> str:
    if not cost or cost in (BEING_READ, NOT_READ):
        return cost or "no cost recorded"
    return f"cost so far {cost}"


def _fill_text(usage: ContextUsage) -> str:
    if usage.tokens is None or usage.method is None:
        return usage.note or ""
    if usage.percent is None:
        return tokens_text(usage.tokens, usage.method)
    tokens, drawn = number_text(usage.tokens, usage.method), gauge(usage.percent, _GAUGE)
    return f"{tokens} of {usage.usable:,} usable tokens, {percent_text(usage.percent)}  {drawn}"


def fit_text(plan: FitResult) -> str:
    """What a plan takes out, and what that costs: its first line says all of it in short."""
    if not plan.removed:
        return plan.reason or f"Nothing is to be taken out: {plan.tokens_before:,} tokens fit."
    verdict = "" if plan.fits else f"; {plan.reason or 'it still does not fit'}"
    turns, cached = len(plan.removed), plan.cached_tokens_lost
    head = (
        f"{plan.tokens_before:,} -> {plan.tokens_after:,} tokens, {counted(turns, 'turn')}, "
        f"{counted(cached, 'cached token')} lost{verdict}"
    )
    return "\n".join([head, "", *map(_removed_text, plan.removed)])


def undo_text(usage: ContextUsage, undone: bool) -> str:
    """What taking the last plan back has done."""
    if not undone:
        return "Nothing is taken back: no plan was applied since the last time."
    size = tokens_text(usage.tokens or 0, usage.method or "exact")
    return f"The last plan is taken back: {size}."


def reset_text(agents: str | None, *, forgotten: bool) -> str:
    """What a reset has done. `agents`: whose own session is shown, which nobody here changes."""
    if forgotten:
        return "The conversation's context is forgotten. What it has cost stays recorded."
    if agents is not None:
        return f"Nothing is forgotten: the session that is shown is {printable(agents)}'s own."
    return "Nothing is forgotten: no conversation holds anything."


def _removed_text(turn: Removed) -> str:
    tokens = counted(turn.tokens, "token")
    return f"turn {turn.index} ({printable(turn.role)}): {tokens}, {turn.reason}"


def _parts(usage: ContextUsage) -> list[tuple[str, str, str]]:
    parts = msgspec.structs.asdict(usage.breakdown) if usage.breakdown is not None else {}
    whole = max(1, usage.tokens or 0, sum(parts.values()))
    return [
        *(
            (name, f"{tokens:,}", bar(tokens / whole, _GAUGE))
            for name, tokens in parts.items()
            if tokens or name not in ("logs", "config", "time")
        ),
        *(
            ("largest", f"{part.tokens:,}", printable(" ".join(part.label.split())))
            for part in usage.largest
        ),
    ]


def _usd(usd: float | None) -> str:
    return "unpriced" if usd is None else f"${usd:.6f}"
