"""Renders a session's context as a page: what fills the window, and what comes next."""

from __future__ import annotations

from datetime import datetime

import msgspec

from sidecar.conversations.context_protocol import ContextUsage
from sidecar.conversations.context_rows import (
    PARTS,
    cache_losses_text,
    forecast_cells,
    own_share_text,
    prompt_limit_text,
    share_text,
    subagent_rows,
    window_text,
)
from sidecar.counting.count_result import method_mark, number_text
from sidecar.models.names import short_name
from sidecar.text.pages import STYLE, Page, escape, facts, parts_bar
from sidecar.text.printable import is_generated_id

_TITLE = "Context"
_MOST_LARGEST = 5
_STYLE = f"""{STYLE}
body{{background:var(--vscode-sideBar-background,var(--bg));padding:8px 14px}}
h1{{font-size:15px}}h2{{font-size:13px;margin:16px 0 4px}}
"""
"""The stylesheet for a narrow side bar, which has its own background color."""


def context_page(
    usage: ContextUsage,
    *,
    cost: str,
    updated: str,
    empty: str,
    now: datetime,
    subagents: str = "",
    branch: str = "",
) -> Page:
    """Return the page for a context.

    Args:
        usage: The context, with contents and forecast.
        cost: The session's cost as text.
        updated: How long ago the session was last used, as text.
        empty: The text to show if there is no session.
        now: The current time.
        subagents: The costs of the main conversation and of its sub-agents, as text.
        branch: The name and the cost of the branch that is checked out, as text.
    """
    session = usage.session
    if session is None or is_empty(usage):
        return Page(title=_TITLE, html=f"<h1>{_TITLE}</h1><p>{escape(empty)}</p>", style=_STYLE)
    agent = "conversation" if session.source == "protocol" else session.source
    name = session.label or ("Conversation" if is_generated_id(session.id) else session.id)
    model = short_name(usage.model) if usage.model else ""
    about = " · ".join(filter(None, (agent, model, cost, updated)))
    body = [
        f"<h1>{escape(name)}</h1><p>{escape(about)}</p>",
        _size_html(usage),
        f'<div class="list">{_bar_html(usage)}</div>',
    ]
    if cells := [cell for cell in forecast_cells(usage, now) if cell[1]]:
        body.append(f"<h2>What comes next</h2>{facts(cells)}")
    if costs := [cell for cell in (("Sub-agents", subagents), ("This branch", branch)) if cell[1]]:
        body.append(f"<h2>Cost</h2>{facts(costs)}")
    for group in subagent_rows(usage):
        contexts = [(row.label, row.value) for row in group.children]
        body.append(f"<h2>{escape(group.label)}</h2>{facts(contexts)}")
    if losses := cache_losses_text(usage.cache_losses):
        body.append(f"<h2>Cache losses</h2><p>{escape(losses)}</p>")
    if usage.largest:
        largest = [
            (" ".join(part.label.split()), number_text(part.tokens, usage.method or "estimate"))
            for part in usage.largest[:_MOST_LARGEST]
        ]
        body.append(f"<h2>Largest messages</h2>{facts(largest)}")
    return Page(title=_TITLE, html="".join(body), style=_STYLE)


def is_empty(usage: ContextUsage) -> bool:
    """Return whether there is no session to show, or nothing to say about it."""
    return usage.session is None or (usage.tokens is None and usage.note is None)


def _size_html(usage: ContextUsage) -> str:
    if usage.tokens is None:
        return f"<p>{escape(usage.note or '')}</p>"
    size = number_text(usage.tokens, usage.method or "estimate")
    note = f'<p class="note">{escape(usage.note)}</p>' if usage.note else ""
    if usage.percent is None or usage.limit is None or usage.limit_source is None:
        return f'<p class="size"><b>{size} tokens</b></p>{note}'
    window = window_text(usage.limit, usage.limit_source) + prompt_limit_text(usage)
    return (
        f'<p class="size {usage.severity}"><b>{share_text(usage)}</b></p>'
        f"<p>{size} of {escape(window + own_share_text(usage))}</p>{note}"
    )


def _bar_html(usage: ContextUsage) -> str:
    tokens = usage.tokens or 0
    if usage.contents:
        parts = [(part.label, part.tokens) for part in usage.contents]
    elif usage.breakdown:
        kinds = msgspec.structs.asdict(usage.breakdown)
        parts = [(PARTS[name], number) for name, number in kinds.items() if number]
    else:
        parts = [("In use", tokens)] if tokens else []
    free, reserved = usage.available, (usage.limit or 0) - (usage.usable or 0)
    about = "<p>Shares are estimated from the sizes of the parts.</p>" if usage.contents else ""
    mark = method_mark(usage.method or "estimate")
    marks = method_mark("estimate") if usage.contents else mark, mark
    return parts_bar(parts, "Tokens in the context window", free, reserved, marks) + about
