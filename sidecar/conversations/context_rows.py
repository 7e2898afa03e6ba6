"""The context view: rows with a label, a value and a bar that all user interfaces render.

`context_rows` builds the rows. `rows_text` and `rows_markdown` render them. The status line
shows `short_text`. Rows contain unescaped names, so every renderer must escape them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec

from sidecar.config.settings import Show
from sidecar.conversations.context_protocol import (
    CacheLosses,
    ContextUsage,
    Forecast,
    PlanLimit,
    PriceUntil,
    ViewRow,
)
from sidecar.cost.cache_losses import CacheEnd
from sidecar.cost.context_costs import UsageBlock
from sidecar.counting.count_result import (
    Method,
    banded_text,
    estimated_percent_text,
    input_cost_text,
    number_text,
    tokens_text,
)
from sidecar.text.printable import (
    cost_text,
    counted,
    duration_text,
    local_time_text,
    markdown,
    percent_text,
    printable,
    usd_text,
)
from sidecar.text.tables import align_columns, draw_bar, markdown_table

UNKNOWN = "?"

_BAR = 18
_MOST_SUBAGENTS = 8
_HALF = 50
_FEW_CALLS = 20

PARTS = {
    "system": "System prompt",
    "tools": "Tools",
    "sections": "Sections",
    "turns": "Messages",
    "overhead": "Overhead",
    "logs": "Logs",
    "config": "Configuration",
    "time": "Time",
}
"""The label of each `Breakdown` field."""

_LIMIT_SOURCES: dict[str, str] = {
    "request": "from the request",
    "transcript": "from the agent",
    "endpoint": "from the endpoint",
    "catalogue": "from the model catalogue",
    "settings": "from settings",
    "default": "assumed",
}


def short_text(usage: ContextUsage, show: Show) -> str:
    """Format a context's size for the status line, for example `45 %`, `~54,148 tokens` or `?`."""
    if usage.tokens is None or usage.method is None:
        return UNKNOWN
    if usage.percent is None or show == "tokens":
        return tokens_text(usage.tokens, usage.method)
    return share_text(usage)


def share_text(usage: ContextUsage) -> str:
    """Format how much of the usable window is used, in percent. Estimates start with `~`."""
    if usage.percent is None:
        return ""
    return estimated_percent_text(usage.percent, usage.method or "estimate")


def own_share_text(usage: ContextUsage) -> str:
    """Return text such as ` (84 % by claude-code's count)` if the agent's percentage differs."""
    if usage.agent_percent in (None, usage.percent) or usage.session is None:
        return ""
    share = estimated_percent_text(usage.agent_percent, usage.method or "estimate")
    return f" ({share} by {usage.session.source}'s count)"


def window_text(limit: int, source: str) -> str:
    """Format a window's size and its source, for example `128,000 tokens (from settings)`."""
    return f"{counted(limit, 'token')} ({_LIMIT_SOURCES[source]})"


def prompt_limit_text(usage: ContextUsage) -> str:
    """Return text such as `, prompts up to 272,000` if there is a separate limit for prompts.

    Returns an empty string if the reserve alone limits the prompt's size.
    """
    if usage.limit is None or usage.usable is None:
        return ""
    is_limited = usage.limit - usage.usable > (usage.reserve or 0)
    return f", prompts up to {usage.usable:,}" if is_limited else ""


def tooltip_rows(usage: ContextUsage) -> list[ViewRow]:
    """Return tooltip rows: the context's size and window, and the session."""
    size = usage.note or UNKNOWN
    if usage.tokens is not None and usage.method is not None:
        size = banded_text(usage.tokens, usage.method, usage.error_percent)
        if usage.limit is not None and usage.limit_source is not None:
            size += f" of {window_text(usage.limit, usage.limit_source)}"
        if usage.percent is not None:
            size += f", {share_text(usage)} of the usable window{own_share_text(usage)}"
    session = ", ".join(filter(None, (_session_cell(usage), usage.model)))
    note = "" if usage.tokens is None else usage.note or ""
    rows = [("Context", size), ("Session", session), ("Note", note)]
    return [ViewRow(label=label, value=value) for label, value in rows if value]


def _summary_rows(usage: ContextUsage) -> list[ViewRow]:
    if usage.tokens is None and usage.note is None:
        return []
    share = None if usage.percent is None else usage.percent / 100
    context = ViewRow(
        label="Context", value=_size_cell(usage), share=share, severity=usage.severity
    )
    others = [
        ("Model", usage.model),
        ("Window", _window_cell(usage)),
        ("Session", _session_cell(usage)),
    ]
    return [context, *(ViewRow(label=label, value=value) for label, value in others if value)]


def context_rows(
    usage: ContextUsage,
    *,
    cost: str = "",
    subagents: str = "",
    branch: str = "",
    cap: str = "",
    updated: str = "",
    now: datetime | None = None,
) -> list[ViewRow]:
    """Return all rows for a context, or an empty list if there is no session.

    Args:
        usage: The context.
        cost: The session's cost as text.
        subagents: The costs of the main conversation and of its sub-agents, as text.
        branch: The name and the cost of the branch that is checked out, as text.
        cap: The exceeded spending caps as text.
        updated: How long ago the session was last used, as text.
        now: The current time.
    """
    summary = _summary_rows(usage)
    if not summary or usage.session is None:
        return []
    samples = usage.calibration.samples if usage.calibration else 0
    free = usage.available
    details = [
        ("Cost", cost),
        ("Sub-agents", subagents),
        ("This branch", branch),
        ("Cap", cap),
        (
            "Over by" if free is not None and free < 0 else "Free",
            "" if free is None else tokens_text(abs(free), usage.method or "exact"),
        ),
        *forecast_cells(usage, now or datetime.now(UTC)),
        ("Cache losses", cache_losses_text(usage.cache_losses)),
        ("Calibrated by", counted(samples, "report") if samples else ""),
        ("Updated", updated),
        ("Session id", usage.session.id),
        ("Note", "" if usage.tokens is None else usage.note or ""),
    ]
    rows = [ViewRow(label=label, value=value) for label, value in details if value]
    return [*summary, *rows, *subagent_rows(usage), *part_rows(usage)]


def subagent_rows(usage: ContextUsage) -> list[ViewRow]:
    """Return a group with the contexts of sub-agents, running ones first."""
    listed = sorted(usage.subagents, key=lambda one: one.state != "running")
    shown = [
        ViewRow(
            label=one.model or one.id,
            value=", ".join(
                (
                    UNKNOWN
                    if one.tokens is None
                    else tokens_text(one.tokens, one.method or "exact"),
                    one.state,
                )
            ),
        )
        for one in listed[:_MOST_SUBAGENTS]
    ]
    if left := len(listed) - len(shown):
        shown.append(ViewRow(label=f"{left:,} more", value=""))
    return [ViewRow(label="Contexts of sub-agents", value="", children=shown)] if shown else []


def forecast_cells(usage: ContextUsage, now: datetime) -> list[tuple[str, str]]:
    """Return the labels and values of a context's forecast. Unknown values are empty."""
    forecast = usage.forecast
    if forecast is None:
        return []
    left, hits, rate = forecast.calls_left, forecast.cache_hit_percent, forecast.usd_per_hour
    return [
        ("Calls left", "" if left is None else f"about {left:,}" if left else "none"),
        ("Next input", next_input_text(forecast, now, usage.method or "exact")),
        ("Cache", cache_text(forecast, now, usage.method or "exact").removeprefix("cache ")),
        ("Compacting", compacting_text(usage, now)),
        ("Cache hits", "" if hits is None else percent_text(hits)),
        ("Cost per hour", "" if rate is None else usd_text(rate)),
        ("5-hour block", block_text(forecast.block, now) if forecast.block else ""),
        *((limit_name(limit), limit_text(limit, now)) for limit in forecast.limits),
    ]


def cache_losses_text(losses: Sequence[CacheLosses]) -> str:
    """Format how often a cache was lost, such as `3, $2.10: 2 expired, 1 model switch`."""
    if not losses:
        return ""
    known = [one.cost_usd for one in losses if one.cost_usd is not None]
    is_partial = any(one.partial or one.cost_usd is None for one in losses)
    cost = cost_text(sum(known) if known else None, is_partial=is_partial)
    causes = ", ".join(f"{one.calls:,} {one.cause}" for one in losses)
    return f"{sum(one.calls for one in losses):,}, {cost}: {causes}"


def block_text(block: UsageBlock, now: datetime, *, is_behind: bool = False) -> str:
    """Format a five-hour block, for example `$3.10, 9,120 tokens/min, 2 h 14 min left`.

    Args:
        block: The block.
        now: The current time.
        is_behind: Whether the ledger lacks calls, so that the cost is a lower bound.
    """
    cost = cost_text(block.cost_usd, is_partial=is_behind or block.unpriced)
    rate = block.tokens_per_minute
    pace = "" if rate is None else f"{rate:,} tokens/min"
    left = duration_text(block.ends_at - now)
    return ", ".join(filter(None, (cost, pace, f"{left} left")))


def limit_name(limit: PlanLimit, *, is_short: bool = False) -> str:
    """Format a limit's name, for example `30-minute limit`, `5-hour limit` or `7-day limit`.

    The short names are `30min`, `5h` and `7d`.
    """
    hours, minutes = divmod(limit.minutes, 60)
    if minutes:
        number, unit, short = limit.minutes, "minute", "min"
    elif hours and hours % 24 == 0:
        number, unit, short = hours // 24, "day", "d"
    else:
        number, unit, short = hours, "hour", "h"
    return f"{number}{short}" if is_short else f"{number}-{unit} limit"


def limit_text(limit: PlanLimit, now: datetime) -> str:
    """Format how much of a limit is used, and when it is full and reset.

    An example is `62 %, full at 16:40 at this pace, resets 17:10`.
    """
    full, reset = limit.full_at, limit.resets_at
    parts = (
        percent_text(limit.used_percent),
        full and f"full at {_time_text(full, now)} at this pace",
        reset and f"resets {_time_text(reset, now)}",
    )
    return ", ".join(filter(None, parts))


def next_input_text(forecast: Forecast, now: datetime, method: Method = "exact") -> str:
    """Format the next input's price, for example `$0.04 from the cache, $0.31 after 14:07`.

    Args:
        forecast: The forecast.
        now: The current time.
        method: How the context was counted. The price of an estimated context has a `~`.
    """
    if forecast.next_input_uncached_usd is None:
        return ""
    uncached = input_cost_text(forecast.next_input_uncached_usd, method)
    if forecast.next_input_usd is None:
        return uncached
    cached = input_cost_text(forecast.next_input_usd, method)
    step = current_step(forecast, now)
    if step is None or (step.until is not None and forecast.cache_end != "exact"):
        return f"{cached} from the cache, {uncached} without it"
    if step.until is None:
        return f"{uncached} (the cache has {_PROBABLY[forecast.cache_end]}expired)"
    if step is not forecast.next_input_prices[0] and step.usd is not None:
        cached = f"{input_cost_text(step.usd, method)} partly"
    later = forecast.next_input_prices[forecast.next_input_prices.index(step) + 1].usd
    uncached = uncached if later is None else input_cost_text(later, method)
    return f"{cached} from the cache, {uncached} after {_time_text(step.until, now)}"


_PROBABLY: dict[CacheEnd | None, str] = {
    "exact": "",
    "earliest": "probably ",
    "typical": "probably ",
    None: "",
}
_ABOUT: dict[CacheEnd | None, str] = {"exact": "", "earliest": "", "typical": "about ", None: ""}
_WARM: dict[CacheEnd | None, str] = {
    "exact": "cache until",
    "earliest": "cache warm until at least",
    "typical": "cache probably cold after",
}


def current_step(forecast: Forecast, now: datetime) -> PriceUntil | None:
    """Return the price of the next input at this time, or None if no cache is known to expire."""
    return next(
        (
            step
            for step in forecast.next_input_prices
            if step.until is None or datetime.fromisoformat(step.until) > now
        ),
        None,
    )


def is_cold(forecast: Forecast, now: datetime) -> bool:
    """Return whether a part of the cache has expired, as far as known."""
    return current_step(forecast, now) not in (None, *forecast.next_input_prices[:1])


def extra_usd(forecast: Forecast, now: datetime) -> float | None:
    """Return how much more the next input costs in USD than from the cache.

    While nothing has expired, this is how much more it will cost. Returns None if the lifetime or
    a price is unknown.
    """
    step = current_step(forecast, now)
    if step is None:
        return None
    first, *_, last = forecast.next_input_prices
    usd = step.usd if is_cold(forecast, now) else last.usd
    return None if usd is None or first.usd is None else usd - first.usd


def cache_text(forecast: Forecast, now: datetime, method: Method = "exact") -> str:
    """Say until when the vendor's cache lasts, or what its expiry adds to the next input's price.

    Examples are `cache until 14:32` and `cold: next input $4.10 instead of $0.41`. The text is
    empty if the lifetime is unknown. See `next_input_text` for the arguments.
    """
    step, end = current_step(forecast, now), forecast.cache_end
    if step is None or forecast.cached_until is None:
        return ""
    first = forecast.next_input_prices[0]
    if step is first:
        return f"{_WARM[end]} {_time_text(forecast.cached_until, now)}"
    cold = f"{_PROBABLY[end] if step.until is None else 'partly '}cold"
    if step.usd is None or first.usd is None:
        return f"cache {cold} since {_time_text(forecast.cached_until, now)}"
    usd, cached = input_cost_text(step.usd, method), input_cost_text(first.usd, method)
    return f"{cold}: next input {usd} instead of {cached}"


def compacting_text(usage: ContextUsage, now: datetime) -> str:
    """Say when compacting costs least: `costs least before 14:32: $0.41 of input, then $4.10`.

    Compacting reads the whole context, so its input costs as much as the next input. While the
    cache holds the context, that is best done before it expires, but not during a turn. Afterwards,
    it is best done instead of a prompt, which would read the whole context as well.

    The text is empty if a price or the lifetime is unknown, or if compacting can wait: less than
    half of the window is used, and more than 20 calls are left.
    """
    forecast, method = usage.forecast, usage.method or "exact"
    step = None if forecast is None else current_step(forecast, now)
    if forecast is None or step is None or step.usd is None:
        return ""
    left = forecast.calls_left
    is_half_full = usage.percent is not None and usage.percent >= _HALF
    if not is_half_full and (left is None or left > _FEW_CALLS):
        return ""
    usd = input_cost_text(step.usd, method)
    if step.until is None:
        text = f"costs least before the next prompt: {usd} of input, which that prompt costs anyway"
    else:
        later = forecast.next_input_prices[forecast.next_input_prices.index(step) + 1].usd
        if later is None:
            return ""
        after_turn = "after this turn and " if forecast.running else ""
        time = f"{_ABOUT[forecast.cache_end]}{_time_text(step.until, now)}"
        then = f"{_PROBABLY[forecast.cache_end]}{input_cost_text(later, method)}"
        text = f"costs least {after_turn}before {time}: {usd} of input, then {then}"
    return text if left is None else f"{text}; {_calls_left_text(left)} left"


def _calls_left_text(left: int) -> str:
    return f"about {counted(left, 'call')}" if left else "no calls"


def _time_text(at: str, now: datetime) -> str:
    return local_time_text(datetime.fromisoformat(at), now)


def part_rows(usage: ContextUsage) -> list[ViewRow]:
    """Return the rows for a context's parts, grouped by category."""
    kinds = msgspec.structs.asdict(usage.breakdown) if usage.breakdown else {}
    whole = max(1, usage.tokens or 0, sum(kinds.values()))
    counted_as = partial(number_text, method=usage.method or "exact")
    estimated = partial(number_text, method="estimate")
    groups = (
        (
            "Breakdown",
            counted_as,
            [(PARTS[name], tokens) for name, tokens in kinds.items() if tokens],
        ),
        ("Contents (estimated)", estimated, [(part.label, part.tokens) for part in usage.contents]),
        (
            "Largest",
            counted_as,
            [(" ".join(part.label.split()), part.tokens) for part in usage.largest],
        ),
    )
    return [
        ViewRow(
            label=title,
            value="",
            children=[
                ViewRow(label=label, value=value_of(tokens), share=tokens / whole)
                for label, tokens in parts
            ],
        )
        for title, value_of, parts in groups
        if parts
    ]


def rows_text(rows: Sequence[ViewRow]) -> str:
    """Render rows as plain text with aligned columns. Shares become bars, and groups become
    blocks.
    """
    single = [row for row in rows if not row.children]
    lines = align_columns(
        [(label, f"{value}  {bar}") for label, value, bar in map(_row_cells, single)]
    )
    for group in rows:
        if group.children:
            parts = align_columns([_row_cells(row) for row in group.children])
            lines += ["", printable(group.label), *(f"  {line}" for line in parts)]
    return "\n".join(lines)


def rows_markdown(rows: Sequence[ViewRow]) -> str:
    """Render rows as a two-column Markdown table."""
    cells = [(markdown(row.label), markdown(row.value)) for row in _flatten(rows)]
    return markdown_table([("", ""), *cells])


def _flatten(rows: Sequence[ViewRow]) -> Iterator[ViewRow]:
    for row in rows:
        yield from row.children or (row,)


def _row_cells(row: ViewRow) -> tuple[str, str, str]:
    drawn = "" if row.share is None else draw_bar(min(1.0, row.share), _BAR)
    return printable(row.label), printable(row.value), drawn


def _size_cell(usage: ContextUsage) -> str:
    if usage.tokens is None or usage.method is None:
        return usage.note or UNKNOWN
    text = banded_text(usage.tokens, usage.method, usage.error_percent)
    if usage.percent is None:
        return text
    return f"{text}, {share_text(usage)} of {usage.usable or 0:,} usable{own_share_text(usage)}"


def _window_cell(usage: ContextUsage) -> str:
    if usage.limit is None or usage.limit_source is None:
        return "" if usage.tokens is None else UNKNOWN
    reserve = f", {usage.reserve:,} reserved" if usage.reserve else ""
    return window_text(usage.limit, usage.limit_source) + (prompt_limit_text(usage) or reserve)


def _session_cell(usage: ContextUsage) -> str:
    source = "" if usage.session is None else usage.session.source
    agent = "" if source == "protocol" else source
    label = "" if usage.session is None else usage.session.label
    turns = "" if usage.turns is None else counted(usage.turns, "turn")
    return ", ".join(filter(None, (label, agent, turns)))
