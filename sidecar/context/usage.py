"""How full a context is, in numbers: the results that clients and commands get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sidecar.context.window import LimitSource, Severity, Window, severity
from sidecar.counting.count import Method

if TYPE_CHECKING:
    from datetime import datetime


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Members are only added. A null means "not known"."""


class Breakdown(Result, frozen=True, kw_only=True):
    """Tokens by part of the context; the parts add up to the total.

    `overhead` is added by the request's format; it includes reported tokens of no known part.
    """

    system: int
    tools: int
    sections: int
    turns: int
    overhead: int
    logs: int = 0
    """Of the sections of that name, as the next two; `sections` has the others."""
    config: int = 0
    time: int = 0


class ContextPart(Result, frozen=True, kw_only=True):
    """A labelled part of the context with its tokens."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """The session that the numbers describe."""

    id: str
    source: str
    """`protocol`, or the agent whose transcript was read."""
    updated_at: str

    @classmethod
    def of(cls, session_id: str, source: str, updated_at: datetime) -> SessionInfo:
        """With the time as the contract writes it."""
        at = updated_at.isoformat().replace("+00:00", "Z")
        return cls(id=session_id, source=source, updated_at=at)


class CalibrationInfo(Result, frozen=True, kw_only=True):
    """The calibration learned from reported usage: actual tokens = estimated tokens * `factor`."""

    factor: float
    samples: int
    error_percent: float | None


class ViewRow(Result, frozen=True, kw_only=True):
    """A row of a view; a group has `children` and no value."""

    label: str
    value: str
    share: float | None = None
    """Length of the row's bar, from 0 to 1: of the usable window, or of the context's tokens."""
    severity: Severity = "ok"
    children: list[ViewRow] = []


class ContextUsage(Result, frozen=True, kw_only=True):
    """How full a conversation's context is, as tokens that the next request would send."""

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
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    note: str | None = None
    """Why a number is missing or weak."""
    severity: Severity = "ok"
    """`warning` from the first threshold of `context.warn-at` on, `error` from the last."""
    text: str = ""
    """`rows` as plain text in the answer to `context/usage`; what was done in the answers to
    `context/undo` and `context/reset`; empty elsewhere."""
    rows: list[ViewRow] = []
    """What to show of the context, in the answer to `context/usage`; empty elsewhere."""


class SessionRow(Result, frozen=True, kw_only=True):
    """A session of a workspace: a plugin's conversation or an agent's session."""

    id: str
    source: str
    """`protocol`, or the agent whose files were read."""
    title: str | None
    """The agent's own title; never made from a turn."""
    model: str | None
    tokens: int | None
    limit: int | None
    percent: int | None
    method: Method | None
    note: str | None
    state: Literal["running", "idle", "ended"]
    parent: str | None
    """The session that it was forked from."""
    cost_usd: float | None
    updated_at: str
    shown: bool = False
    """Whether this is the session that the status shows."""
    pinned: bool = False
    """Whether `context/select` chose it."""
    label: str = ""
    """Its title, else its agent: in the answer to `context/sessions`, as all below."""
    detail: str = ""
    """A bar of its percent, cost, age, state, model, agent: `43 % ██▏░░ · $1.92 · 3 min · …`."""
    text: str = ""
    """Both on one line, in columns with those of the other rows."""


class ContextWarning(Result, frozen=True, kw_only=True):
    """Params of `context/warning`, which is sent once each time a limit is exceeded."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted"]
    message: str
    usage: ContextUsage | None


def in_window(found: ContextUsage, window: Window, warn_at: tuple[float, ...]) -> ContextUsage:
    """A usage with what its tokens are of a window; only the window while they are not known."""
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
    """Whether the last threshold is crossed; without thresholds, the whole window."""
    return tokens > window.usable * max(warn_at, default=1.0)
