"""Results of the `context/*` requests that make room or build requests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sidecar.context.usage import CalibrationInfo, Result
from sidecar.messages.turns import Turn
from sidecar.messages.usage import Usage

RemovalReason = Literal["toolOutput", "dialogue", "orphan", "empty"]


class Removed(Result, frozen=True, kw_only=True):
    """A turn that the plan removes, completely or in part (`orphan`)."""

    index: int
    """Index of the appended turn, from 0."""
    role: str
    tokens: int
    reason: RemovalReason


class FitResult(Result, frozen=True, kw_only=True):
    """A plan that makes the conversation fit, or why there is none."""

    messages: list[Turn]
    """The remaining messages, starting with the system prompt if there is one."""
    removed: list[Removed]
    summary: str | None
    tokens_before: int
    tokens_after: int
    cached_tokens_lost: int
    """Tokens that the last reply read from the prompt cache and that must be sent again."""
    fits: bool
    plan_id: str
    reason: str | None = None
    """Why it does not fit, if it does not."""
    text: str = ""
    """The plan in words, one line per turn."""


class AssembledSection(Result, frozen=True, kw_only=True):
    """One part of an assembled request."""

    name: str
    text: str
    tokens: int
    trimmed: bool


class PackPart(Result, frozen=True, kw_only=True):
    """A section of the assembled context."""

    name: str
    tokens: int
    trimmed: bool
    """Whether a limit shortened it."""


class AssembleResult(Result, frozen=True, kw_only=True):
    """An assembled request: the parts' texts in order."""

    sections: list[AssembledSection]
    tokens: int
    prefix_hash: str
    prefix_cached: bool
    context_cached: bool
    skipped: bool
    trim_level: int
    fits: bool
    schema_version: int = 1
    intent: str | None = None
    """The focus of the request."""
    budget_applied: int = 0
    """The size to fit, in tokens."""
    pack: list[PackPart] = msgspec.field(default_factory=list)
    """The sections of the rendered context; empty if the context was given."""


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
    """A reply without the parts that were cut off."""

    content: str
    tool_calls: list[CleanCall]
    dropped: list[Dropped]
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Names of calls in a cut-off reply that were kept, although no schema is known."""
    model: str | None = None
    """The model's name in the reply."""
    request_id: str | None = None
    stop_reason: str | None
    exhausted: Literal["output", "window"] | None
    plan: FitResult | None
    usage: Usage | None
    calibration: CalibrationInfo | None
    usage_recorded: bool = False
    usage_problem: str | None = None
    """Why the usage was not recorded."""


class Reason(Result, frozen=True, kw_only=True):
    """A reason against sending; `kind` is `window`, `output`, `budget`, …"""

    kind: str
    message: str


class Alternative(Result, frozen=True, kw_only=True):
    """A model whose window is large enough."""

    model: str
    context_window: int


Verdict = Literal["ok", "warn", "refuse"]


class PreflightResult(Result, frozen=True, kw_only=True):
    """Whether to send a request, and reasons against it."""

    verdict: Verdict
    prompt_tokens: int
    available: int
    fits: bool
    defer_tool: bool
    estimated_cost_usd: float | None
    reasons: list[Reason]
    alternatives: list[Alternative]
