"""What a person sees in the status bar: worked out here once, the same for every editor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sidecar.budget.finding import percent_of, severity_of
from sidecar.context.thresholds import Severity
from sidecar.counting.count import Count, Method, banded_text, number_text, tokens_text
from sidecar.text.printable import counted, markdown, percent_text
from sidecar.workspace.wording import session_cost, unknown_model_text

if TYPE_CHECKING:
    from sidecar.config.options import Loaded, Problem
    from sidecar.config.settings import Show
    from sidecar.context.usage import ContextUsage
    from sidecar.workspace.spending import Costs
    from sidecar.workspace.workspace import Workspace


API_PRICES = "at API prices"
"""Of an agent's calls: what a subscription bills stands in no file."""
NO_BUDGET = "none: .token-sidecar.toml may set one"
UNKNOWN = "?"
"""Stands for a document that is out of step with the editor: any number of it would be wrong."""

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
    sessions: int = 0
    """No count: another number whenever `context/sessions` would answer something else."""


class CostStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """USD: what the agent's session that is shown has cost, else what was spent today, everywhere:
    then `text` says `today`.

    The tooltip has both, and the workspace's total.
    """

    cost_usd: float | None
    text: str
    tooltip: str
    severity: Severity


class StatusUpdate(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Params of `status/update`: `text` is the line to show; null parts are not known.

    The text of a document whose text is not known, for a change of it was not understood, is `?`.
    """

    workspace: str | None
    uri: str | None
    version: int | None
    text: str
    severity: Severity
    document: DocumentStatus | None
    context: ContextStatus | None = None
    cost: CostStatus | None = None


def document_severity(part: DocumentStatus) -> Severity:
    """Over its budget a document warns, from twice its budget it is an error."""
    if part.budget is None or not part.tokens:
        return "ok"
    found = severity_of(part.tokens, part.budget)
    return "ok" if found is None or found == "information" else found


def document_status(
    count: Count,
    budget: int | None,
    loaded: Loaded,
) -> DocumentStatus:
    """The document's status from its count; `budget` is the tightest that applies, in tokens.

    `loaded`: the configuration, whose mistakes may be why no budget applies.
    """
    percent = count.percent if budget is None else percent_of(count.tokens, budget)
    return DocumentStatus(
        tokens=count.tokens,
        method=count.method,
        percent=percent,
        budget=budget,
        text=_document_text(count, percent, loaded.settings.status.show),
        tooltip=_document_tooltip(count, percent, budget, loaded),
    )


def _document_text(count: Count, percent: int | None, show: Show) -> str:
    tokens = tokens_text(count.tokens, count.method)
    if percent is None or show == "tokens":
        return tokens
    share = percent_text(percent)
    return share if show == "percent" else f"{tokens} ({share})"


def _document_tooltip(count: Count, percent: int | None, budget: int | None, loaded: Loaded) -> str:
    rows = [
        ("Document", banded_text(count.tokens, count.method, count.error_percent)),
        ("Characters", f"{count.characters:,}"),
        ("Model", markdown(_model_text(count))),
        ("Method", _method_text(count)),
    ]
    if count.note is not None:
        rows.append(("Endpoint", markdown(count.note)))
    used = (
        None if budget is None else f"{counted(budget, 'token')}, {percent_text(percent or 0)} used"
    )
    wrong = _configuration_text(loaded.problems)
    rows.append(("Budget", used or ("none" if wrong else NO_BUDGET)))
    if wrong:
        rows.append(("Configuration", wrong))
    if count.limit is not None:
        rows.append(("Window", _window_text(count, count.limit)))
    if count.input_cost_usd is not None:
        rows.append(("As input", f"${count.input_cost_usd:.6f}"))
    return _table(rows)


def _model_text(count: Count) -> str:
    similar = count.similar_models
    unknown = "" if similar is None else f", {unknown_model_text(similar)}"
    return f"{count.model} ({count.tokenizer}){unknown}"


def _configuration_text(problems: Sequence[Problem]) -> str:
    """Where the configuration is wrong; "" where it is not."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if not errors:
        return ""
    first = errors[0]
    name = "the editor's settings" if first.file is None else first.file.name
    place = f"{name}, line {first.line}" if first.line else name
    more = f", and {len(errors) - 1:,} more" if errors[1:] else ""
    return markdown(f"wrong: {place}{more}")


def _window_text(count: Count, limit: int) -> str:
    window = counted(limit, "token")
    if count.limit_source == "default":
        window = f"unknown, {window} assumed"
    if count.tokens > limit:
        return f"{window}, {count.tokens - limit:,} too few"
    return f"{window}, {percent_text(count.percent or 0)} of what is usable"


def comparison(title: str, counts: Sequence[Count]) -> str:
    """One text counted for several models: tokens, percent of the window, price as input."""
    table = "| model | tokens | of window | as input | |\n|---|---:|---:|---:|---|"
    head = f"**{markdown(title)}**\n\n{table}"
    rows = [
        f"| {markdown(count.model)} "
        f"| {number_text(count.tokens, count.method)} "
        f"| {'' if count.percent is None else percent_text(count.percent)} "
        f"| {'' if count.input_cost_usd is None else f'${count.input_cost_usd:.6f}'} "
        f"| {count.method} |"
        for count in counts
    ]
    return "\n".join([head, *rows])


def _method_text(count: Count) -> str:
    text = _METHODS[count.method]
    if count.method in ("exact", "endpoint"):
        return text
    return f"{text}, error not measured" if count.error_percent is None else text


_RANKS: tuple[Severity, ...] = ("ok", "warning", "error")


def worse(one: Severity, other: Severity) -> Severity:
    """The more severe of two."""
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
    state = workspace.context
    context = context_status(state.usage, state.severity, status.show, state.revision)
    cost = cost_status(workspace.costs, state.usage)
    parts = [part.text for part in (document, context, cost) if part is not None]
    if uri is not None and document is None:
        parts.insert(0, UNKNOWN)
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
    usage: ContextUsage | None, severity: Severity, show: Show, sessions: int = 0
) -> ContextStatus | None:
    """The conversation's part; None while there is no conversation with anything in it."""
    if usage is None or (usage.tokens is None and usage.note is None):
        return None
    tokens, text = UNKNOWN, UNKNOWN
    if usage.tokens is not None and usage.method is not None:
        text = tokens_text(usage.tokens, usage.method)
        tokens = banded_text(usage.tokens, usage.method, usage.error_percent)
        if usage.percent is not None and show != "tokens":
            mark = "" if usage.method in ("exact", "endpoint") else "~"
            text = f"{mark}{percent_text(usage.percent)}"
    return ContextStatus(
        tokens=usage.tokens,
        percent=usage.percent,
        text=f"ctx {text}",
        tooltip=_context_tooltip(usage, tokens),
        severity=severity,
        sessions=sessions,
    )


def cost_status(costs: Costs, usage: ContextUsage | None = None) -> CostStatus | None:
    """The cost's part; None until something was recorded. Of an agent's session: its own cost.

    While that is not known, and for every other session, it is today's, and says so.
    """
    session = usage.session if usage else None
    agents = session if session is not None and session.source != "protocol" else None
    live = costs.sessions.get(agents.id) if agents else None
    if costs.today is None and live is None:
        return None
    today, rows = costs.today or 0, []
    if live is not None:
        rows.append(("This session", f"${live:,.4f} {API_PRICES}"))
    elif agents is not None:
        rows.append(("This session", session_cost(costs, agents) or "nothing recorded"))
    rows.append(("Today", f"${today:,.4f}"))
    rows.append(("This workspace", f"${costs.workspace:,.4f}"))
    return CostStatus(
        cost_usd=float(today if live is None else live),
        text=f"${today:,.2f} today" if live is None else f"${live:,.2f}",
        tooltip=_table(rows),
        severity=costs.severity,
    )


def _context_tooltip(usage: ContextUsage, tokens: str) -> str:
    share = ""
    if usage.percent is not None:
        share = f", {percent_text(usage.percent)} of {usage.usable or 0:,} usable"
    rows = [("Context", usage.note if usage.tokens is None and usage.note else tokens + share)]
    if usage.limit is not None:
        rows.append(("Window", f"{counted(usage.limit, 'token')} (from: {usage.limit_source})"))
    if usage.model is not None:
        rows.append(("Model", markdown(usage.model)))
    if usage.session is not None and usage.session.source != "protocol":
        rows.append(("Session", markdown(usage.session.source)))
    if usage.turns is not None:
        rows.append(("Turns", f"{usage.turns}"))
    if usage.cost_usd is not None:
        rows.append(("Cost of it", f"${usage.cost_usd:,.4f}"))
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
