"""Results of the `context/*` requests, and the warning that goes with them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sidecar.context.turns import Turn
from sidecar.context.window import LimitSource
from sidecar.counting.count import Method
from sidecar.endpoints.usage import Usage


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Members are only added. A null means "not known"."""


class Breakdown(Result, frozen=True, kw_only=True):
    """What takes the tokens; the parts add up to the whole.

    `overhead` is what the format adds, and what a reported number holds beyond the parts counted.
    """

    system: int
    tools: int
    sections: int
    turns: int
    overhead: int


class Part(Result, frozen=True, kw_only=True):
    """A part of the context by its label."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """Which conversation the numbers are of."""

    id: str
    source: str
    """`protocol`, or the agent whose transcript was read."""
    updated_at: str


class CalibrationInfo(Result, frozen=True, kw_only=True):
    """What reported usage has taught: real = estimated * factor."""

    factor: float
    samples: int
    error_percent: float | None


class ContextUsage(Result, frozen=True, kw_only=True):
    """How full a conversation's context is: what the next request would carry."""

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
    largest: list[Part] = []
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    text: str = ""
    """The same in words, a line a part: in the answer to `context/usage`, else empty."""


RemovalReason = Literal["toolOutput", "dialogue", "orphan", "empty"]


class Removed(Result, frozen=True, kw_only=True):
    """A turn that the plan takes out, or takes a part of (`orphan`)."""

    index: int
    """0-based into the appended turns."""
    role: str
    tokens: int
    reason: RemovalReason


class FitResult(Result, frozen=True, kw_only=True):
    """A plan that makes the conversation fit, or why none does."""

    messages: list[Turn]
    """What is left, the system prompt first if there is one."""
    removed: list[Removed]
    summary: str | None
    tokens_before: int
    tokens_after: int
    cached_tokens_lost: int
    """Of what the last reply said was in the vendor's prompt cache: what would be sent afresh."""
    fits: bool
    plan_id: str
    reason: str | None = None
    """Why it does not fit, where it does not."""


class AssembledSection(Result, frozen=True, kw_only=True):
    """One part of an assembled request."""

    name: str
    text: str
    tokens: int
    trimmed: bool


class AssembleResult(Result, frozen=True, kw_only=True):
    """An assembled request: the sections' texts, one after the other."""

    sections: list[AssembledSection]
    tokens: int
    prefix_hash: str
    prefix_cached: bool
    context_cached: bool
    skipped: bool
    trim_level: int
    fits: bool


class CleanCall(Result, frozen=True, kw_only=True):
    """A tool call that can be run."""

    id: str
    name: str
    arguments: dict[str, Any]


class Dropped(Result, frozen=True, kw_only=True):
    """A tool call that was cut off, and what it lacks."""

    name: str
    reason: str


class ResponseResult(Result, frozen=True, kw_only=True):
    """A reply without what was cut off."""

    content: str
    tool_calls: list[CleanCall]
    dropped: list[Dropped]
    stop_reason: str | None
    exhausted: Literal["output", "window"] | None
    plan: FitResult | None
    usage: Usage | None
    calibration: CalibrationInfo | None


class Reason(Result, frozen=True, kw_only=True):
    """One thing that stands against sending; `kind` is `window`, `output`, `budget`, …"""

    kind: str
    message: str


class Alternative(Result, frozen=True, kw_only=True):
    """A model whose window would hold it."""

    model: str
    context_window: int


Verdict = Literal["ok", "warn", "refuse"]


class PreflightResult(Result, frozen=True, kw_only=True):
    """Whether to send, and what stands against it."""

    verdict: Verdict
    prompt_tokens: int
    available: int
    fits: bool
    defer_tool: bool
    estimated_cost_usd: float | None
    reasons: list[Reason]
    alternatives: list[Alternative]


class ContextWarning(Result, frozen=True, kw_only=True):
    """Params of `context/warning`: sent once per crossing."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted"]
    message: str
    usage: ContextUsage | None
