"""Results of the `context/*` requests, and the warning that goes with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sidecar.context.window import LimitSource
from sidecar.counting.count import Method
from sidecar.messages.turns import Turn
from sidecar.messages.usage import Usage

if TYPE_CHECKING:
    from datetime import datetime


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
    logs: int = 0
    """Of the sections of that name, as the next two; `sections` has the others."""
    config: int = 0
    time: int = 0


class ContextPart(Result, frozen=True, kw_only=True):
    """A part of the context by its label."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """Which conversation the numbers are of."""

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
    """What reported usage has taught: real = estimated * factor."""

    factor: float
    samples: int
    error_percent: float | None


class ViewRow(Result, frozen=True, kw_only=True):
    """A line of a view: what it is, its value, and lines below it."""

    label: str
    value: str
    children: list[ViewRow] = []


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
    largest: list[ContextPart] = []
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    note: str | None = None
    """Why a number is missing or weak."""
    text: str = ""
    """The same in words, a line a part: in the answer to `context/usage`, else empty."""
    rows: list[ViewRow] = []
    """The same for a tree: in the answer to `context/usage`, else empty."""


class SessionRow(Result, frozen=True, kw_only=True):
    """One session of a workspace, whoever feeds it."""

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
    """A section as it stands in the assembled context."""

    name: str
    tokens: int
    trimmed: bool
    """Whether its cap, or the pack's, cut it."""


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
    schema_version: int = 1
    intent: str | None = None
    """The focus that it was assembled for."""
    budget_applied: int = 0
    """Tokens that it had to fit into."""
    pack: list[PackPart] = []
    """What the context was rendered from; empty where it was supplied."""


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
    unchecked: list[str] = []
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
