"""Params and results of the `context/*` requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sidecar.config.settings import Truncation
from sidecar.context.usable_window import LimitSource, Severity
from sidecar.counting.count import Method
from sidecar.messages.replies import ReplyFormat
from sidecar.messages.turns import Turn
from sidecar.messages.usage import MOST_TOKENS, Usage
from sidecar.text.positions import Range

if TYPE_CHECKING:
    from datetime import datetime


NaturalTokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
PositiveTokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
TextOrList = str | list[str]
Strategy = Literal["drop", "summarize"]


class SessionParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Identify a conversation; without `session`, the last updated one of the workspace."""

    workspace: str | None = None
    """URI of the root folder, a path inside the root, or the URI of an open document."""
    session: str | None = None


class SectionDocument(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The open document that provides a section's text."""

    uri: str


class SectionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A named section of the context: a `text`, or a `textDocument` with an optional `range`."""

    name: str
    text: str | None = None
    text_document: SectionDocument | None = None
    range: Range | None = None
    cap: NaturalTokens | None = None
    """Maximum tokens of the section."""
    priority: int | None = None
    """Sections with a lower priority are shortened first (default 0)."""
    truncation: Truncation | None = None
    """Which part of a text to keep when it is shortened; `middle` keeps both ends."""


class SetParams(SessionParams, frozen=True, kw_only=True):
    """Set parts of a conversation other than its turns. Omitted parts stay; null removes a part."""

    model: str | None = None
    system_prompt: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    """Tool schemas in OpenAI, Anthropic or Gemini form."""
    sections: list[SectionSpec] | UnsetType | None = UNSET
    """The new sections, which replace all old ones."""
    limit: PositiveTokens | UnsetType | None = UNSET
    """Context window in tokens, which takes precedence over the catalogue."""
    reserve: NaturalTokens | UnsetType | None = UNSET
    """Tokens of the window that are reserved for the reply."""
    persist: bool | None = None
    """Whether counts and ids, but no text, are saved across restarts of the server."""

    @property
    def is_choice(self) -> bool:
        """Whether the params only choose the model for which documents are counted."""
        return bool(self.model) and self == SetParams(workspace=self.workspace, model=self.model)


class AppendParams(SessionParams, frozen=True, kw_only=True):
    """Append turns to a conversation, with the reported usage of the last reply."""

    turns: list[Turn]
    usage: dict[str, Any] | None = None
    """The vendor's usage object. It corrects the context's size and is not recorded as a cost."""


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """Request the size and the parts of a context."""

    contents: bool = False
    """Whether to read an agent's session file and return the parts of its context."""


class SessionsParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Request the sessions of the last 24 hours, or all of them."""

    workspace: str | None = None
    all: bool = False


class SelectParams(SessionParams, frozen=True, kw_only=True):
    """Select the session to show until it ends; null returns to automatic selection."""


class ResetParams(SessionParams, frozen=True, kw_only=True):
    """Remove everything from a conversation except its model."""


class UndoParams(SessionParams, frozen=True, kw_only=True):
    """Revert the last applied pruning plan."""


class FitParams(SessionParams, frozen=True, kw_only=True):
    """Request a pruning plan, or apply one."""

    max_tokens: NaturalTokens | None = None
    """The target size in tokens; by default, the usable window."""
    keep_turns: NaturalTokens | None = None
    """How many of the last user turns to keep with their replies (default: as in the settings)."""
    strategy: Strategy = "drop"
    apply: bool = False
    plan_id: str | None = None
    """The id of the plan to apply."""


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """Assemble a request from its parts. The context is reused while its keys stay the same."""

    preset: Literal["mind"] | None = None
    """A named set of token limits for the context's sections."""
    sensor: str | None = None
    assistant: str | None = None
    identity: str | None = None
    feedback: str | None = None
    tools: str | list[str | dict[str, Any]] | None = None
    context: str | None = None
    logs: str | None = None
    user: str | None = None
    mandates: TextOrList | None = None
    max_tokens: NaturalTokens | None = None
    """The maximum size of the request in tokens; by default, the usable window."""
    focus: str | None = None
    scope: str | None = None
    memory_version: str | int | float | None = None


class ResponseParams(SessionParams, frozen=True, kw_only=True):
    """Pass on a model's reply as the vendor sent it: an object, or its stream as array or text."""

    response: dict[str, Any] | list[Any] | str
    model: str | None = None
    provider: str | None = None
    """The provider that bills the call; by default, as in `cost/record`."""
    category: str | None = None
    request_id: str | None = None
    format: ReplyFormat | None = None
    """The vendor format of the reply. It is detected by default."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas that list required parameters; by default, those of the session."""


class PendingToolCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool call that is about to run."""

    name: str
    expected_tokens: NaturalTokens | None = None


class PreflightParams(SessionParams, frozen=True, kw_only=True):
    """Check a request before it is sent."""

    turns: list[Turn] | None = None
    text: str | None = None
    model: str | None = None
    max_output_tokens: NaturalTokens | None = None
    pending_tool_call: PendingToolCall | None = None


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The base of all results. A field that is null is unknown."""


class Breakdown(Result, frozen=True, kw_only=True):
    """The tokens of a context by kind. They add up to the context's size.

    `overhead` is the markup of the request's format, and everything in a reported number that
    is not in the other parts.
    """

    system: int
    tools: int
    sections: int
    turns: int
    overhead: int
    logs: int = 0
    """Tokens of the section `logs`. `logs`, `config` and `time` are not part of `sections`."""
    config: int = 0
    time: int = 0


class ContextPart(Result, frozen=True, kw_only=True):
    """A labelled part of the context, with its tokens."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """The session that a result describes."""

    id: str
    source: str
    """`protocol`, or the agent whose files were read."""
    updated_at: str
    label: str = ""
    """The name of an agent's session; otherwise empty."""

    @classmethod
    def of(
        cls, session_id: str, source: str, updated_at: datetime, *, label: str = ""
    ) -> SessionInfo:
        """Create the info, with the time in ISO 8601."""
        at = updated_at.isoformat().replace("+00:00", "Z")
        return cls(id=session_id, source=source, updated_at=at, label=label)


class CalibrationInfo(Result, frozen=True, kw_only=True):
    """The calibration of estimates: real tokens = estimated tokens * factor."""

    factor: float
    samples: int
    error_percent: float | None


class ViewRow(Result, frozen=True, kw_only=True):
    """A row of the context view. A group has children and no value."""

    label: str
    value: str
    share: float | None = None
    """The length of the row's bar, from 0 to 1."""
    severity: Severity = "ok"
    children: list[ViewRow] = []


class PlanLimit(Result, frozen=True, kw_only=True):
    """A limit of the subscription to an agent, as the agent reports it."""

    minutes: int
    """The length of the period to which the limit applies: 300 for five hours."""
    used_percent: float
    resets_at: str | None = None


class UsageBlock(Result, frozen=True, kw_only=True):
    """The five hours in which a subscription currently limits usage."""

    began_at: str
    ends_at: str
    cost_usd: float | None
    """Cost of the agent's calls in the block, in USD; null if no call has a price."""


class Forecast(Result, frozen=True, kw_only=True):
    """The forecast of a session, based on its recorded calls of the last day."""

    calls_left: int | None = None
    """Calls until the usable window is full, by the average growth since the last compaction."""
    next_input_usd: float | None = None
    """Price of the next call's input in USD, if the vendor reads it from its cache."""
    next_input_uncached_usd: float | None = None
    """Price of the next call's input in USD, if nothing is read from a cache."""
    cached_until: str | None = None
    """When the vendor's cache expires; null if unknown."""
    cache_hit_percent: float | None = None
    """Percentage of all prompt tokens that the vendor read from its cache."""
    usd_per_hour: float | None = None
    """Cost of the last hour in USD. It is extrapolated if the session is shorter."""
    limits: list[PlanLimit] = []
    """The limits of the subscription, shortest period first; empty if the agent reports none."""
    block: UsageBlock | None = None
    """Set if the subscription has a five-hour limit."""


class ContextUsage(Result, frozen=True, kw_only=True):
    """How full a context is. `tokens` is the size of the next request."""

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
    """The parts of an agent's context, estimated from their sizes; empty unless `context/usage`
    requests them."""
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    forecast: Forecast | None = None
    """Only in answers to `context/usage`."""
    note: str | None = None
    """The reason why a number is missing or uncertain."""
    severity: Severity = "ok"
    """`warning` from the first threshold of `context.warn-at`, `error` from the last."""
    text: str = ""
    """`rows` as plain text in answers to `context/usage`; the outcome in answers to `context/undo`
    and `context/reset`; otherwise empty."""
    rows: list[ViewRow] = []
    """The rows of the context view in answers to `context/usage`; otherwise empty."""


class SessionRow(Result, frozen=True, kw_only=True):
    """An entry of the list of a workspace's sessions."""

    id: str
    source: str
    """`protocol`, or the agent whose files were read."""
    title: str | None
    """The title that the agent stored. It is never derived from messages."""
    model: str | None
    tokens: int | None
    limit: int | None
    percent: int | None
    method: Method | None
    note: str | None
    state: Literal["running", "idle", "ended"]
    parent: str | None
    """The id of the session that this one was forked from."""
    cost_usd: float | None
    updated_at: str
    shown: bool = False
    """Whether this session is shown in the status."""
    pinned: bool = False
    """Whether `context/select` selected this session."""
    severity: Severity = "ok"
    """`warning` from the first threshold of `context.warn-at` on, `error` from the last."""
    label: str = ""
    """The name to show: the title, else the branch or agent with the start time, or with
    `agents.labels = "first-prompt"` the first words of the first prompt."""
    detail: str = ""
    """Percent, cost, age, short model name and state: `43 % · $1.92 · 3 min ago · opus-5`."""
    text: str = ""
    """The label and the detail in one line, aligned with the other rows."""


class ContextWarning(Result, frozen=True, kw_only=True):
    """The params of `context/warning`, which is sent once when a threshold is crossed."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted"]
    message: str
    usage: ContextUsage | None


RemovalReason = Literal["toolOutput", "dialogue", "orphan", "empty"]


class Removed(Result, frozen=True, kw_only=True):
    """A turn that a pruning plan removes. With the reason `orphan`, a part of it may stay."""

    index: int
    """The index of the turn in the conversation, from 0."""
    role: str
    tokens: int
    reason: RemovalReason


class FitResult(Result, frozen=True, kw_only=True):
    """A pruning plan. If it does not make the conversation fit, `reason` says why."""

    messages: list[Turn]
    """The messages that stay, including the system prompt."""
    removed: list[Removed]
    summary: str | None
    tokens_before: int
    tokens_after: int
    cached_tokens_lost: int
    """Cached prompt tokens that the vendor can no longer read from its cache after pruning."""
    fits: bool
    plan_id: str
    reason: str | None = None
    """Why the conversation does not fit; null if it fits."""
    text: str = ""
    """The plan as text, with one line per removed turn."""


class AssembledSection(Result, frozen=True, kw_only=True):
    """A part of an assembled request, with its text."""

    name: str
    text: str
    tokens: int
    trimmed: bool


class PackPart(Result, frozen=True, kw_only=True):
    """A section of the assembled context."""

    name: str
    tokens: int
    trimmed: bool
    """Whether a token limit shortened the section."""


class AssembleResult(Result, frozen=True, kw_only=True):
    """An assembled request. Its text is that of all sections in order."""

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
    """The maximum size that was applied, in tokens."""
    pack: list[PackPart] = msgspec.field(default_factory=list)
    """The sections of the rendered context; empty if the params contain the context."""


class CleanCall(Result, frozen=True, kw_only=True):
    """A complete tool call, which the client can run."""

    id: str
    name: str
    arguments: dict[str, Any]


class Dropped(Result, frozen=True, kw_only=True):
    """A tool call that was cut off. `reason` says what is missing."""

    name: str
    reason: str


class ResponseResult(Result, frozen=True, kw_only=True):
    """The usable parts of a reply."""

    content: str
    tool_calls: list[CleanCall]
    dropped: list[Dropped]
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Names of tool calls in a cut-off reply that no known schema can check. They are kept."""
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
    """A reason for a verdict of `context/preflight`. `kind` is `window`, `output`, `budget`, …"""

    kind: str
    message: str


class Alternative(Result, frozen=True, kw_only=True):
    """Another model, whose window is large enough for the request."""

    model: str
    context_window: int


Verdict = Literal["ok", "warn", "refuse"]


class PreflightResult(Result, frozen=True, kw_only=True):
    """The verdict on a request, with its reasons."""

    verdict: Verdict
    prompt_tokens: int
    available: int
    fits: bool
    defer_tool: bool
    estimated_cost_usd: float | None
    reasons: list[Reason]
    alternatives: list[Alternative]
