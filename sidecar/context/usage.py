"""How full a context is, in numbers: the results that clients and commands get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.context.window import LimitSource, Severity, Window, severity
from sidecar.counting.count import Method

if TYPE_CHECKING:
    from datetime import datetime


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of results. Fields are only added; null means unknown."""


class Breakdown(Result, frozen=True, kw_only=True):
    """Tokens by part; the parts add up to the total.

    `overhead` is the format's markup, and whatever a reported number contains beyond the counted
    parts.
    """

    system: int
    tools: int
    sections: int
    turns: int
    overhead: int
    logs: int = 0
    """Sections of this name, like the next two; `sections` contains the others."""
    config: int = 0
    time: int = 0


class ContextPart(Result, frozen=True, kw_only=True):
    """A part of the context, by its label."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """The conversation that the numbers describe."""

    id: str
    source: str
    """`protocol`, or the agent whose files were read."""
    updated_at: str

    @classmethod
    def of(cls, session_id: str, source: str, updated_at: datetime) -> SessionInfo:
        """Create it, with the time as in the contract."""
        at = updated_at.isoformat().replace("+00:00", "Z")
        return cls(id=session_id, source=source, updated_at=at)


class CalibrationInfo(Result, frozen=True, kw_only=True):
    """What reported usage has shown: real tokens = estimated tokens * factor."""

    factor: float
    samples: int
    error_percent: float | None


class ViewRow(Result, frozen=True, kw_only=True):
    """A row of a view. A group has children and no value."""

    label: str
    value: str
    share: float | None = None
    """Length of the row's bar, from 0 to 1: of the usable window or of the context's tokens."""
    severity: Severity = "ok"
    children: list[ViewRow] = []


class Forecast(Result, frozen=True, kw_only=True):
    """What comes next in a session, from its recorded calls of the last day."""

    calls_left: int | None = None
    """Calls until the usable window is full, at the average growth since the last compaction."""
    next_input_usd: float | None = None
    """Price of the next call's input while the cache lasts."""
    next_input_uncached_usd: float | None = None
    """Price of the next call's input without a cache, or once it has expired."""
    cached_until: str | None = None
    """When the cache expires; null if the vendor does not say how long it keeps the cache."""
    cache_hit_percent: float | None = None
    """Share of the prompts' tokens that was read from the cache."""
    usd_per_hour: float | None = None
    """Cost of the last hour; of a shorter session, extrapolated."""


class ContextUsage(Result, frozen=True, kw_only=True):
    """How full a conversation's context is: the size of the next request."""

    tokens: int | None = None
    limit: int | None = None
    limit_source: LimitSource | None = None
    reserve: int | None = None
    usable: int | None = None
    available: int | None = None
    percent: int | None = None
    over: bool | None = None
    method: Method | None = None
    error_percent: float | None = None
    model: str | None = None
    session: SessionInfo | None = None
    breakdown: Breakdown | None = None
    largest: list[ContextPart] = []
    contents: list[ContextPart] = []
    """What fills an agent's context, estimated from the sizes of its parts; empty unless requested
    by `context/usage`."""
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    forecast: Forecast | None = None
    """Only in answers to `context/usage`."""
    note: str | None = None
    """Why a number is missing or uncertain."""
    severity: Severity = "ok"
    """`warning` from the first threshold of `context.warn-at` on, `error` from the last."""
    text: str = ""
    """`rows` as plain text in answers to `context/usage`; the outcome in answers to `context/undo`
    and `context/reset`; otherwise empty."""
    rows: list[ViewRow] = []
    """The context view in answers to `context/usage`; otherwise empty."""


class SessionRow(Result, frozen=True, kw_only=True):
    """A session of a workspace, from a client or an agent."""

    id: str
    source: str
    """`protocol`, or the agent whose files were read."""
    title: str | None
    """The title that the agent stored, never text of a message."""
    model: str | None
    tokens: int | None
    limit: int | None
    percent: int | None
    method: Method | None
    note: str | None
    state: Literal["running", "idle", "ended"]
    parent: str | None
    """The session that this one was forked from."""
    cost_usd: float | None
    updated_at: str
    shown: bool = False
    """Whether the status shows this session."""
    pinned: bool = False
    """Whether `context/select` chose it."""
    label: str = ""
    """Title or agent. This and the fields below are only in answers to `context/sessions`."""
    detail: str = ""
    """Bar, cost, age, state, model and agent: `43 % ██▏░░ · $1.92 · 3 min · …`."""
    text: str = ""
    """Label and detail on one line, aligned with the other rows."""


class ContextWarning(Result, frozen=True, kw_only=True):
    """Params of `context/warning`, sent once per crossing."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted"]
    message: str
    usage: ContextUsage | None


def in_window(found: ContextUsage, window: Window, warn_at: tuple[float, ...]) -> ContextUsage:
    """Return a usage with its relation to a window; only the window if the tokens are unknown."""
    tokens = found.tokens
    return msgspec.structs.replace(
        found,
        limit=window.limit.tokens,
        limit_source=window.limit.source,
        reserve=window.reserve,
        usable=window.usable,
        available=None if tokens is None else window.available(tokens),
        percent=None if tokens is None else window.percent(tokens),
        over=None if tokens is None else window.over(tokens),
        should_prune=None if tokens is None else should_prune(tokens, window, warn_at),
        severity=severity(tokens, window.usable, warn_at),
    )


def should_prune(tokens: int, window: Window, warn_at: tuple[float, ...]) -> bool:
    """Return whether the last threshold is crossed; without thresholds, the whole window."""
    return tokens > window.usable * max(warn_at, default=1.0)
