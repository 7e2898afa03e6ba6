"""Results of the `context/*` requests that take a conversation's room."""

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
    """0-based into the appended turns."""
    role: str
    tokens: int
    reason: RemovalReason


class FitResult(Result, frozen=True, kw_only=True):
    """A pruning plan, or the reason why no plan makes the conversation fit."""

    messages: list[Turn]
    """What is left, the system prompt first if there is one."""
    removed: list[Removed]
    summary: str | None
    tokens_before: int
    tokens_after: int
    cached_tokens_lost: int
    """Tokens that the last reply read from the prompt cache and that would be sent anew."""
    fits: bool
    plan_id: str
    reason: str | None = None
    """Why it does not fit, where it does not."""
    text: str = ""
    """The plan in words, a line a turn: what goes, and what of the vendor's cache with it."""


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
    """Whether its cap, or the pack's, cut it."""


class AssembleResult(Result, frozen=True, kw_only=True):
    """An assembled request as a list of section texts."""

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
    """The focus that it was assembled for."""
    budget_applied: int = 0
    """Tokens that it had to fit into."""
    pack: list[PackPart] = msgspec.field(default_factory=list)
    """What the context was rendered from; empty where it was supplied."""


class CleanCall(Result, frozen=True, kw_only=True):
    """A complete tool call."""

    id: str
    name: str
    arguments: dict[str, Any]


class Dropped(Result, frozen=True, kw_only=True):
    """An incomplete tool call that was removed, with the reason."""

    name: str
    reason: str


class ResponseResult(Result, frozen=True, kw_only=True):
    """A reply without its incomplete tool calls."""

    content: str
    tool_calls: list[CleanCall]
    dropped: list[Dropped]
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Names of calls in a reply that was cut off that were kept though no schema is known."""
    model: str | None = None
    """As the reply names it."""
    request_id: str | None = None
    stop_reason: str | None
    exhausted: Literal["output", "window"] | None
    plan: FitResult | None
    usage: Usage | None
    calibration: CalibrationInfo | None
    usage_recorded: bool = False
    usage_problem: str | None = None
    """Why the usage was not recorded: none came, its numbers make no sense, the ledger failed."""


class Reason(Result, frozen=True, kw_only=True):
    """A reason against sending; `kind` is `window`, `output`, `budget`, …"""

    kind: str
    message: str


class Alternative(Result, frozen=True, kw_only=True):
    """A model with a window that is large enough for the request."""

    model: str
    context_window: int


Verdict = Literal["ok", "warn", "refuse"]


class PreflightResult(Result, frozen=True, kw_only=True):
    """The verdict on a request, with the reasons against sending it."""

    verdict: Verdict
    prompt_tokens: int
    available: int
    fits: bool
    defer_tool: bool
    estimated_cost_usd: float | None
    reasons: list[Reason]
    alternatives: list[Alternative]
