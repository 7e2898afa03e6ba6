"""What a person sees in the status bar: worked out here once, the same for every editor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.counting.count import Count, Method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.context.results import ContextUsage
    from sidecar.workspace.spending import Costs
    from sidecar.workspace.workspace import Workspace

Severity = Literal["ok", "warning", "error"]
Show = Literal["tokens", "percent", "both"]

_METHODS: dict[Method, str] = {
    "exact": "exact, by the model's own tokenizer",
    "endpoint": "counted by the model's server",
    "calibrated": "estimate corrected by measured counts",
    "estimate": "estimate",
}


class DocumentStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document's part; `percent` is of its budget, else of the usable window."""

    tokens: int
    method: Method
    percent: int | None
    budget: int | None
    text: str
    tooltip: str


class ContextStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The conversation's part; `percent` is of the usable window."""

    tokens: int | None
    percent: int | None
    text: str
    tooltip: str
    severity: Severity


class CostStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was spent today, everywhere, in USD; the tooltip has the workspace's total too."""

    cost_usd: float | None
    text: str
    tooltip: str
    severity: Severity


class StatusUpdate(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params of `status/update`: `text` is the line to show; null parts are not known."""

    workspace: str | None
    uri: str | None
    version: int | None
    text: str
    severity: Severity
    document: DocumentStatus | None
    context: ContextStatus | None = None
    cost: CostStatus | None = None


def tokens_text(tokens: int, method: Method) -> str:
    """`12,345 tokens`, with `~` before what is calibrated or estimated."""
    mark = "~" if method in ("calibrated", "estimate") else ""
    return f"{mark}{tokens:,} tokens"


def document_severity(shown: DocumentStatus) -> Severity:
    """Over its budget a document warns, from twice its budget it is an error."""
    if shown.budget is None or shown.tokens <= shown.budget:
        return "ok"
    return "error" if shown.tokens >= 2 * shown.budget else "warning"


def document_status(count: Count, budget: int | None, show: Show = "both") -> DocumentStatus:
    """The document's status from its count; `budget` is the tightest that applies, in tokens."""
    percent = count.percent if budget is None else percent_of(count.tokens, budget)
    return DocumentStatus(
        tokens=count.tokens,
        method=count.method,
        percent=percent,
        budget=budget,
        text=_document_text(count, percent, show),
        tooltip=_document_tooltip(count, percent, budget),
    )


def percent_of(tokens: int, budget: int) -> int:
    """Whole percent of a budget, rounded down; over 100 when over it."""
    return 100 * tokens // max(1, budget)


def _document_text(count: Count, percent: int | None, show: Show) -> str:
    tokens = tokens_text(count.tokens, count.method)
    if percent is None or show == "tokens":
        return tokens
    return f"{percent}%" if show == "percent" else f"{tokens} ({percent}%)"


def _document_tooltip(count: Count, percent: int | None, budget: int | None) -> str:
    rows = [
        ("Document", tokens_text(count.tokens, count.method)),
        ("Characters", f"{count.characters:,}"),
        ("Model", f"{count.model} ({count.tokenizer})"),
        ("Method", _method_text(count)),
    ]
    if budget is not None:
        rows.append(("Budget", f"{budget:,} tokens, {percent}% used"))
    if count.limit is not None:
        rows.append(("Window", _window_text(count, count.limit)))
    if count.input_cost_usd is not None:
        rows.append(("As input", f"${count.input_cost_usd:.6f}"))
    return _table(rows)


def _window_text(count: Count, limit: int) -> str:
    window = f"{limit:,} tokens"
    if count.limit_source == "default":
        window = f"unknown, {window} assumed"
    if count.tokens > limit:
        return f"{window}, {count.tokens - limit:,} too few"
    return f"{window}, {count.percent}% of what is usable"


def comparison(title: str, counts: Sequence[Count]) -> str:
    """One text counted for several models: tokens, percent of the window, price as input."""
    head = f"**{title}**\n\n| model | tokens | of window | as input | |\n|---|---:|---:|---:|---|"
    rows = [
        f"| {count.model} | {tokens_text(count.tokens, count.method).removesuffix(' tokens')} "
        f"| {'' if count.percent is None else f'{count.percent}%'} "
        f"| {'' if count.input_cost_usd is None else f'${count.input_cost_usd:.6f}'} "
        f"| {count.method} |"
        for count in counts
    ]
    return "\n".join([head, *rows])


def _method_text(count: Count) -> str:
    text = _METHODS[count.method]
    if count.method in ("exact", "endpoint"):
        return text
    if count.error_percent is None:
        return f"{text}, error not measured"
    return f"{text}, ±{count.error_percent:g} %"


_RANKS: tuple[Severity, ...] = ("ok", "warning", "error")


def graver(one: Severity, other: Severity) -> Severity:
    """The graver of two."""
    return max(one, other, key=_RANKS.index)


def status_update(
    workspace: Workspace,
    uri: str | None,
    version: int | None,
    document: DocumentStatus | None,
    severity: Severity,
) -> StatusUpdate:
    """The whole status of a document: its own part, the conversation's and the cost's."""
    status = workspace.settings.status
    talk = workspace.known_talk
    context = context_status(talk.shown, talk.severity, status.show) if talk else None
    cost = cost_status(workspace.costs)
    parts = [part.text for part in (document, context, cost) if part is not None]
    others = [part.severity for part in (context, cost) if part is not None]
    return StatusUpdate(
        workspace=workspace.uri,
        uri=uri,
        version=version,
        text="" if status.hide else " · ".join(parts),
        severity=max([severity, *others], key=_RANKS.index),
        document=document,
        context=context,
        cost=cost,
    )


def context_status(
    usage: ContextUsage | None, severity: Severity, show: Show
) -> ContextStatus | None:
    """The conversation's part; None while there is no conversation with anything in it."""
    if usage is None or usage.tokens is None or usage.method is None:
        return None
    tokens, percent = tokens_text(usage.tokens, usage.method), f"{usage.percent}%"
    text = {"tokens": tokens, "percent": percent, "both": f"{tokens} ({percent})"}[show]
    return ContextStatus(
        tokens=usage.tokens,
        percent=usage.percent,
        text=f"ctx {text}",
        tooltip=_context_tooltip(usage, tokens),
        severity=severity,
    )


def cost_status(costs: Costs) -> CostStatus | None:
    """The cost's part; None until something was recorded."""
    if costs.today is None:
        return None
    rows = [("Today", f"${costs.today:,.4f}"), ("This workspace", f"${costs.workspace:,.4f}")]
    return CostStatus(
        cost_usd=float(costs.today),
        text=f"${costs.today:,.2f}",
        tooltip=_table(rows),
        severity=costs.severity,
    )


def _context_tooltip(usage: ContextUsage, tokens: str) -> str:
    limit, usable = usage.limit or 0, usage.usable or 0
    rows = [
        ("Context", f"{tokens}, {usage.percent}% of {usable:,} usable"),
        ("Window", f"{limit:,} tokens (from: {usage.limit_source})"),
        ("Model", usage.model or ""),
        ("Turns", f"{usage.turns}"),
    ]
    if usage.breakdown is not None:
        parts = usage.breakdown
        rows += [
            (name, f"{number:,}")
            for name, number in (
                ("System prompt", parts.system),
                ("Tools", parts.tools),
                ("Sections", parts.sections),
                ("Messages", parts.turns),
                ("Overhead", parts.overhead),
            )
            if number
        ]
    return _table(rows)


def _table(rows: list[tuple[str, str]]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
