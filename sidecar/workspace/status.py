"""The status line and its tooltips. Editors show this text unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from sidecar.budgets.budget_rules import percent_of, severity_of
from sidecar.conversations.context_protocol import ViewRow
from sidecar.conversations.context_rows import (
    UNKNOWN,
    cache_text,
    extra_usd,
    forecast_cells,
    is_cold,
    limit_name,
    rows_markdown,
    short_text,
    tooltip_rows,
    window_text,
)
from sidecar.counting.count_result import (
    Count,
    Method,
    banded_text,
    estimated_percent_text,
    number_text,
    tokens_text,
)
from sidecar.models.window import Severity
from sidecar.text.printable import cost_text, counted, percent_text, usd_text
from sidecar.workspace.views import (
    branch_cell,
    describe_unknown_model,
    format_session_cost,
    subagents_text,
)

if TYPE_CHECKING:
    from sidecar.config.settings import Caps, Loaded, Problem, Show
    from sidecar.conversations.context_protocol import ContextUsage
    from sidecar.workspace.spending import Costs
    from sidecar.workspace.workspace import Workspace


API_PRICES = "at API prices"
"""Appended to agents' costs. The actual price is unknown for users with a subscription."""
_DOCUMENT_ROWS = 4
"""Maximum number of rows in a document's tooltip."""

_METHODS: dict[Method, str] = {
    "exact": "exact, counted with the model's tokenizer",
    "endpoint": "counted by the endpoint",
    "calibrated": "estimate, fitted to real counts",
    "estimate": "estimate",
}


class DocumentStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The status of a document.

    `percent` refers to the budget if there is one, otherwise to the usable window.
    """

    tokens: int
    method: Method
    percent: int | None
    budget: int | None
    text: str
    tooltip: str
    severity: Severity = "ok"
    """The highest severity among the budgets of the document and its sections."""


class ContextStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The status of a conversation. `percent` is relative to the usable window."""

    tokens: int | None
    percent: int | None
    text: str
    tooltip: str
    severity: Severity
    source: str = ""
    """The source of the displayed session: `protocol`, or the name of an agent."""
    sessions: int = 0
    """A counter that changes whenever `context/sessions` may return a different result."""


class CostStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Costs in USD.

    `text` shows the cost of the displayed agent session. Without one, it shows today's cost in
    all workspaces and ends in `today`. The tooltip shows both costs and the workspace's total.
    """

    cost_usd: float | None
    text: str
    tooltip: str
    severity: Severity


class CacheStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How long the vendor keeps the shown session's prompt in its cache.

    `text` is `cache until 14:32` or, once it has expired, `cold: next input $4.10 instead of
    $0.41`.
    """

    text: str
    severity: Severity
    """`warning` if the cache has expired."""
    extra_usd: float
    """How much more the next input costs in USD without the cache."""


class StatusUpdate(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params of `status/update`. `text` is the status line. Fields without data are null.

    `text` shows `?` for a document that is out of sync with the editor.
    """

    workspace: str | None
    uri: str | None
    version: int | None
    text: str
    severity: Severity
    model: str = ""
    """The workspace's model: texts are counted for it unless a budget names another."""
    document: DocumentStatus | None
    context: ContextStatus | None = None
    cost: CostStatus | None = None
    cache: CacheStatus | None = None
    """Null if the difference is smaller than `cost.cold-warning-usd`, or unknown."""
    cost_revision: int = 0
    """A counter that changes whenever a call is recorded in the workspace, even one without a
    price, so that clients know when to update a cost report.
    """


def document_severity(tokens: int, budget: int | None) -> Severity:
    """Return `warning` for a document over its budget, or `error` at twice the budget or more."""
    if budget is None or not tokens:
        return "ok"
    severity = severity_of(tokens, budget)
    return "ok" if severity is None or severity == "information" else severity


def document_status(count: Count, budget: int | None, loaded: Loaded) -> DocumentStatus:
    """Return the status of a document.

    Args:
        count: The document's count.
        budget: The lowest budget that applies, in tokens.
        loaded: The configuration. The tooltip shows its errors.
    """
    percent = count.percent if budget is None else percent_of(count.tokens, budget)
    return DocumentStatus(
        tokens=count.tokens,
        method=count.method,
        percent=percent,
        budget=budget,
        text=_document_text(count, percent, loaded.settings.status.show),
        tooltip=rows_markdown(document_rows(count, budget, loaded)),
        severity=document_severity(count.tokens, budget),
    )


def _document_text(count: Count, percent: int | None, show: Show) -> str:
    tokens = tokens_text(count.tokens, count.method)
    if percent is None or show == "tokens":
        return tokens
    share = estimated_percent_text(percent, count.method)
    if show == "percent":
        return share
    return f"{tokens} ({percent_text(percent)})" if percent else tokens


def document_rows(count: Count, budget: int | None, loaded: Loaded) -> list[ViewRow]:
    """Return the rows of a document's tooltip. See `document_status` for the arguments."""
    wrong, used = _configuration_text(loaded.problems), ""
    if budget is not None:
        share = estimated_percent_text(percent_of(count.tokens, budget), count.method)
        used = f"{counted(budget, 'token')}, {share} used"
    tokens = banded_text(count.tokens, count.method, count.error_percent)
    cost = "" if count.input_cost_text is None else f", {count.input_cost_text} as input"
    rows = [
        ("Document", f"{tokens}, {_method_text(count)}{cost}"),
        ("Model", _model_text(count)),
        ("Configuration", wrong),
        ("Endpoint", count.note or ""),
        ("Budget", used),
        ("Window", "" if count.limit is None else _window_text(count, count.limit)),
    ]
    shown = [ViewRow(label=label, value=value) for label, value in rows if value]
    return shown[:_DOCUMENT_ROWS]


def _model_text(count: Count) -> str:
    similar = count.similar_models
    unknown = "" if similar is None else f", {describe_unknown_model(similar)}"
    return f"{count.model} ({count.tokenizer}){unknown}"


def _configuration_text(problems: Sequence[Problem]) -> str:
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return ""
    first = errors[0]
    name = "the editor's settings" if first.file is None else first.file.name
    place = f"{name}, line {first.line}" if first.line else name
    more = f" and {len(errors) - 1:,} more" if errors[1:] else ""
    return f"error in {place}{more}"


def _window_text(count: Count, limit: int) -> str:
    window = window_text(limit, count.limit_source or "default")
    if count.tokens > limit:
        return f"{window}, exceeded by {number_text(count.tokens - limit, count.method)}"
    share = estimated_percent_text(count.percent or 0, count.method)
    return f"{window}, {share} of the usable window"


def _method_text(count: Count) -> str:
    text = _METHODS[count.method]
    if count.method in ("exact", "endpoint"):
        return text
    return f"{text}, margin of error unknown" if count.error_percent is None else text


_RANKS: tuple[Severity, ...] = ("ok", "warning", "error")


def worse_severity(first: Severity, second: Severity) -> Severity:
    return max(first, second, key=_RANKS.index)


def status_update(
    workspace: Workspace,
    uri: str | None,
    version: int | None,
    document: DocumentStatus | None,
    severity: Severity,
) -> StatusUpdate:
    """Return the status of a document, including the workspace's conversation and costs."""
    status = workspace.settings.status
    state = workspace.context
    context = context_status(state.usage, status.show, state.revision)
    usage = with_forecast(state.usage, workspace.costs)
    cost = cost_status(workspace.costs, usage)
    cache = cache_status(usage, workspace.settings.cost)
    parts = [part.text for part in (document, context, cost, cache) if part is not None]
    if uri is not None and document is None:
        parts.insert(0, UNKNOWN)
    others = [part.severity for part in (context, cost, cache) if part is not None]
    return StatusUpdate(
        workspace=workspace.uri,
        uri=uri,
        version=version,
        text="" if status.hide else " · ".join(parts),
        severity=max([severity, *others], key=_RANKS.index),
        model=workspace.model,
        document=None if document is None else msgspec.structs.replace(document, severity=severity),
        context=context,
        cost=cost,
        cache=cache,
        cost_revision=workspace.costs.revision,
    )


def context_status(
    usage: ContextUsage | None, show: Show, sessions: int = 0
) -> ContextStatus | None:
    """Return the status of a conversation, or None if there is nothing to show."""
    if usage is None or (usage.tokens is None and usage.note is None):
        return None
    return ContextStatus(
        tokens=usage.tokens,
        percent=usage.percent,
        text=f"ctx {short_text(usage, show)}",
        tooltip=rows_markdown(tooltip_rows(usage)),
        severity=usage.severity,
        source=usage.session.source if usage.session else "",
        sessions=sessions,
    )


def with_forecast(usage: ContextUsage | None, costs: Costs) -> ContextUsage | None:
    """Return a copy of the shown context with the session's forecast, as last read."""
    session = usage.session if usage else None
    if usage is None or session is None:
        return usage
    return msgspec.structs.replace(usage, forecast=costs.forecasts.get(session.id))


def cache_status(
    usage: ContextUsage | None, caps: Caps, now: datetime | None = None
) -> CacheStatus | None:
    """Return until when a session's prompt is cached, or what its expiry costs.

    Returns None if the difference is smaller than `cost.cold-warning-usd`, or unknown. During a
    turn, it is unknown whether an expired cache was read in time.
    """
    forecast, now = usage.forecast if usage else None, now or datetime.now(UTC)
    extra = None if forecast is None else extra_usd(forecast, now)
    if usage is None or forecast is None or extra is None or not caps.cold_warning_usd:
        return None
    is_expired = is_cold(forecast, now)
    if extra < caps.cold_warning_usd or (is_expired and forecast.running):
        return None
    return CacheStatus(
        text=cache_text(forecast, now, usage.method or "exact"),
        severity="warning" if is_expired else "ok",
        extra_usd=extra,
    )


def cost_status(costs: Costs, usage: ContextUsage | None = None) -> CostStatus | None:
    """Return the costs to show, or None if no calls are recorded.

    `text` shows the cost of the agent's session or, if that is unknown, today's cost.
    """
    session = usage.session if usage else None
    is_agent = session is not None and session.source != "protocol"
    live, sums = costs.session_usd(session.id) if session and is_agent else None, costs.sums
    if sums.today is None and live is None:
        return None
    today, own = sums.today or 0, format_session_cost(costs, session)
    is_partial = costs.unread is not None or "day" in sums.partial
    today_text = cost_text(sums.today if is_partial else today, is_partial=is_partial)
    is_lower_bound = costs.unread is not None or "workspace" in sums.partial
    total_text = cost_text(sums.workspace, is_partial=is_lower_bound)
    priced = f"{own} {API_PRICES}" if live is not None else own
    is_more = sums.workspace not in (0, today)
    rows = [
        ("This session", priced or ("nothing recorded" if is_agent else "")),
        ("Sub-agents", subagents_text(usage, costs) if usage else ""),
        ("This branch", branch_cell(costs)),
        ("Today", f"{today_text} in all workspaces" if is_more else today_text),
        ("This workspace", f"{total_text} in total" if is_more else ""),
        ("Cap", costs.caps_text),
        _team_row(costs),
        ("Not sent to the team", costs.shipping_problem),
        *_plan_rows(usage),
    ]
    return CostStatus(
        cost_usd=float(today if live is None else live),
        text=f"{today_text} today" if live is None else own,
        tooltip=rows_markdown(
            [ViewRow(label=label, value=value) for label, value in rows if value]
        ),
        severity=worse_severity(sums.severity, costs.team.severity if costs.team else "ok"),
    )


def _plan_rows(usage: ContextUsage | None) -> list[tuple[str, str]]:
    """Return the tooltip rows about the cache and the subscription's limits."""
    if usage is None or usage.forecast is None:
        return []
    cells = dict(forecast_cells(usage, datetime.now(UTC)))
    names = ("Cache", "5-hour block", *map(limit_name, usage.forecast.limits))
    return [(name, cells[name]) for name in names]


def _team_row(costs: Costs) -> tuple[str, str]:
    """Return the tooltip row with the team's spending and any outage of its store."""
    outage = costs.team_outage.text if costs.team_outage else ""
    if costs.team is None:
        return "Team store", outage
    usd = usd_text(costs.team.usd)
    return "Team this month", f"{usd}, store {outage}" if outage else usd
