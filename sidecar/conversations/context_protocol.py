"""Params and results of the `context/*` requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sidecar.config.settings import Truncation
from sidecar.cost.cache_losses import CacheEnd
from sidecar.cost.context_costs import BranchCost, UsageBlock
from sidecar.counting.count_result import Method
from sidecar.messages.messages import Turn
from sidecar.messages.replies import ReplyFormat
from sidecar.messages.vendor_usage import MOST_TOKENS, Usage
from sidecar.models.window import LimitSource, Severity
from sidecar.text.document import Range

NaturalTokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
PositiveTokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
TextOrList = str | list[str]
Strategy = Literal["drop", "summarize"]


class SessionParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Identifies a conversation. The default is the workspace's most recently updated one."""

    workspace: str | None = None
    """The URI of a root folder, of a path inside it, or of an open document."""
    session: str | None = None


class SectionDocument(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The open document that provides a section's text."""

    uri: str


class SectionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A named section: either a `text`, or a `textDocument` with an optional `range`."""

    name: str
    text: str | None = None
    text_document: SectionDocument | None = None
    range: Range | None = None
    cap: NaturalTokens | None = None
    """The section's token limit."""
    priority: int | None = None
    """Sections with a lower priority are shortened first (default: 0)."""
    truncation: Truncation | None = None
    """Which part of the text to keep when it is shortened; `middle` keeps both ends."""


class SetParams(SessionParams, frozen=True, kw_only=True):
    """Sets parts of a conversation other than its turns. Null removes a part."""

    model: str | UnsetType | None = UNSET
    """The conversation's model. Without other members but `workspace`, also that of documents."""
    system_prompt: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    """Tool schemas in OpenAI, Anthropic or Gemini format."""
    sections: list[SectionSpec] | UnsetType | None = UNSET
    """The new sections, which replace all existing sections."""
    limit: PositiveTokens | UnsetType | None = UNSET
    """The context window in tokens. It overrides the value from the model catalogue."""
    reserve: NaturalTokens | UnsetType | None = UNSET
    """The part of the window that is reserved for the reply, in tokens."""
    persist: bool | None = None
    """Whether counts and ids are kept when the server restarts. Text is never saved."""

    @property
    def is_choice(self) -> bool:
        """Whether the params contain only a model and, optionally, a workspace.

        Such a request chooses the model for counting documents. Null undoes the choice.
        """
        choice = SetParams(workspace=self.workspace, model=self.model)
        return self.model is not UNSET and self == choice


class AppendParams(SessionParams, frozen=True, kw_only=True):
    """Appends turns to a conversation, with the reported usage of the last reply."""

    turns: list[Turn]
    usage: dict[str, Any] | None = None
    """The vendor's usage object. It corrects the context's size but is not recorded as a cost."""


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """Requests the size and the parts of a context."""

    contents: bool = False
    """Whether to read an agent's session file and return the parts of its context."""


SessionOrder = Literal["updated", "cost", "context"]


class SessionsParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Requests the sessions from the last 24 hours, or all sessions."""

    workspace: str | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1)] | None = None
    """The maximum number of rows. The last row's `others` is the number of sessions left out.

    Listing thousands of sessions takes much longer than listing the first hundred.
    """
    order: SessionOrder = "updated"
    """The sort order: most recently updated, highest cost or fullest window first."""
    ended: bool = True
    """Whether to include ended sessions. The session that the status shows is always included."""


class SelectParams(SessionParams, frozen=True, kw_only=True):
    """Selects the session to show until it ends. Null restores automatic selection."""


class ResetParams(SessionParams, frozen=True, kw_only=True):
    """Removes everything from a conversation except its model."""


class UndoParams(SessionParams, frozen=True, kw_only=True):
    """Reverts the last applied pruning plan."""


class FitParams(SessionParams, frozen=True, kw_only=True):
    """Requests a pruning plan, or applies an existing plan."""

    max_tokens: NaturalTokens | None = None
    """The target size in tokens; defaults to the usable window."""
    keep_turns: NaturalTokens | None = None
    """How many of the last user turns to keep, with their replies. Defaults to the setting."""
    strategy: Strategy = "drop"
    apply: bool = False
    plan_id: str | None = None
    """The id of the plan to apply."""


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """Assembles a request from its parts.

    The rendered context is reused until `focus`, `scope`, `memoryVersion`, `preset`, the model or
    a linked document changes.
    """

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
    """The maximum size of the request in tokens; defaults to the usable window."""
    focus: str | None = None
    scope: str | None = None
    memory_version: str | int | float | None = None


class ResponseParams(SessionParams, frozen=True, kw_only=True):
    """Reports a model's reply, exactly as the vendor sent it.

    A streamed reply is a list of its events, or a string that contains them.
    """

    response: dict[str, Any] | list[Any] | str
    model: str | None = None
    provider: str | None = None
    """The provider that bills the call. The default is the same as in `cost/record`."""
    category: str | None = None
    request_id: str | None = None
    format: ReplyFormat | None = None
    """The vendor format of the reply; detected by default."""
    tools: list[dict[str, Any]] | None = None
    """Tool schemas with their required parameters. The default is the session's tools."""


class PendingToolCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool call that is about to run."""

    name: str
    expected_tokens: NaturalTokens | None = None


class PreflightParams(SessionParams, frozen=True, kw_only=True):
    """Checks a request before it is sent."""

    turns: list[Turn] | None = None
    text: str | None = None
    model: str | None = None
    max_output_tokens: NaturalTokens | None = None
    pending_tool_call: PendingToolCall | None = None


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The base class for results. Null means unknown."""


class Breakdown(Result, frozen=True, kw_only=True):
    """The size of a context by category, in tokens. The values add up to the context's size.

    `overhead` includes the request's markup, and reported tokens that fit no other category.
    """

    system: int
    tools: int
    sections: int
    turns: int
    overhead: int
    logs: int = 0
    """Tokens in the `logs` section. The `sections` field excludes `logs`, `config` and `time`."""
    config: int = 0
    time: int = 0


class ContextPart(Result, frozen=True, kw_only=True):
    """A labeled part of the context, and its size in tokens."""

    label: str
    tokens: int


class SessionInfo(Result, frozen=True, kw_only=True):
    """The session that a result describes."""

    id: str
    source: str
    """`protocol`, or the name of the agent whose files were read."""
    updated_at: str
    label: str = ""
    """The display name if this is an agent's session; otherwise empty."""

    @classmethod
    def of(
        cls, session_id: str, source: str, updated_at: datetime, *, label: str = ""
    ) -> SessionInfo:
        """Create an instance, formatting the time as ISO 8601."""
        at = updated_at.isoformat().replace("+00:00", "Z")
        return cls(id=session_id, source=source, updated_at=at, label=label)


class CalibrationInfo(Result, frozen=True, kw_only=True):
    """The calibration of estimates: real tokens = estimated tokens × factor."""

    factor: float
    samples: int
    error_percent: float | None


class ViewRow(Result, frozen=True, kw_only=True):
    """A row of the context view. A group of rows has `children` and an empty value."""

    label: str
    value: str
    share: float | None = None
    """The length of the row's bar, from 0 to 1."""
    severity: Severity = "ok"
    children: list[ViewRow] = []


class PlanLimit(Result, frozen=True, kw_only=True):
    """A usage limit of an agent's subscription, as reported by the agent."""

    minutes: int
    """The limit's period in minutes, such as 300 for five hours."""
    used_percent: float
    resets_at: str | None = None
    full_at: str | None = None
    """When the limit is reached at this pace: the average since the period began or, in a five-hour
    block, since its first call. Null if the limit resets before, is already reached, or if less
    than five minutes have passed.
    """


class PriceUntil(Result, frozen=True, kw_only=True):
    """The price of a session's next input, and until when it is valid."""

    usd: float | None
    """The price in USD; null if it is unknown."""
    until: str | None = None
    """Null if the price does not change any more."""


class Forecast(Result, frozen=True, kw_only=True):
    """A session's forecast, based on the calls recorded in the last 24 hours."""

    calls_left: int | None = None
    """Estimated number of calls until the agent compacts the context or the usable window is full.

    The estimate is based on the growth since the last compaction.
    """
    next_input_usd: float | None = None
    """Price of the next call's input in USD if the vendor reads it from its cache."""
    next_input_uncached_usd: float | None = None
    """Price of the next call's input in USD if nothing is read from a cache."""
    cached_until: str | None = None
    """When the first part of the vendor's cache expires; null if unknown."""
    cache_end: CacheEnd | None = None
    """What is known about `cachedUntil`: the vendor deletes the cache exactly then (`exact`), keeps
    it at least until then (`earliest`), or usually deletes it before then (`typical`).
    """
    next_input_prices: list[PriceUntil] = []
    """The price of the next call's input over time, if no call is made before. It rises whenever a
    part of the cache expires. Empty if `cachedUntil` is null.
    """
    cache_hit_percent: float | None = None
    """Percentage of all prompt tokens that the vendor read from its cache."""
    running: bool = False
    """Whether the agent is working on a turn."""
    usd_per_hour: float | None = None
    """Cost of the last hour in USD. It is extrapolated if the session is less than an hour old."""
    limits: list[PlanLimit] = []
    """The subscription's limits, shortest period first; empty if the agent reports none."""
    block: UsageBlock | None = None
    """Present if the subscription has a five-hour limit."""


class Subagent(Result, frozen=True, kw_only=True):
    """A sub-agent of an agent's session, with a context of its own."""

    id: str
    model: str | None
    tokens: int | None
    """The size of its context in tokens; null if unknown."""
    method: Method | None
    state: Literal["running", "idle", "ended"]
    updated_at: str


class CacheLosses(Result, frozen=True, kw_only=True):
    """How often a session's cache was lost for one reason, and what that cost."""

    cause: str
    """The cause, as in reports by `cache-loss`."""
    calls: int
    tokens: int
    """The tokens that were sent again although they had been cached."""
    cost_usd: float | None
    """What these tokens cost more than a cache read, in USD; null if no price is known."""
    partial: bool = False
    """Whether calls without a known price are excluded from `cost_usd`."""


class ContextUsage(Result, frozen=True, kw_only=True):
    """How full a context is. `tokens` is the size of the next request."""

    tokens: int | None = None
    limit: int | None = None
    limit_source: LimitSource | None = None
    reserve: int | None = None
    usable: int | None = None
    available: int | None = None
    percent: int | None = None
    agent_usable: int | None = None
    """The size, in tokens, that the agent itself shows as 100 %, if it is less than `usable`.
    Thresholds then refer to this size.
    """
    agent_percent: int | None = None
    """The percentage of `agentUsable`, as the agent shows it."""
    over: bool | None = None
    method: Method | None = None
    error_percent: float | None = None
    model: str | None = None
    session: SessionInfo | None = None
    breakdown: Breakdown | None = None
    largest: list[ContextPart] = []
    contents: list[ContextPart] = []
    """The parts of an agent's context, with estimated token counts. Empty unless `context/usage`
    is sent with `contents`.
    """
    subagents: list[Subagent] = []
    """The session's sub-agents, newest first, if the agent's files contain their contexts."""
    turns: int | None = None
    should_prune: bool | None = None
    compacted: bool | None = None
    calibration: CalibrationInfo | None = None
    cost_usd: float | None = None
    branch: BranchCost | None = None
    """The cost of the git branch that is checked out in the workspace. Present only in answers to
    `context/usage`.
    """
    forecast: Forecast | None = None
    """Present only in answers to `context/usage`."""
    cache_losses: list[CacheLosses] = []
    """Why the session's cache was lost, most frequent cause first. Only in answers to
    `context/usage`.
    """
    note: str | None = None
    """Why a value is missing or uncertain."""
    severity: Severity = "ok"
    """`warning` if the first threshold of `context.warn-at` is reached, `error` if the
    last one is.
    """
    text: str = ""
    """The `rows` as plain text in answers to `context/usage`; the outcome in answers to
    `context/undo` and `context/reset`; otherwise empty.
    """
    rows: list[ViewRow] = []
    """The rows of the context view in answers to `context/usage`; otherwise empty."""


class SessionRow(Result, frozen=True, kw_only=True, gc=False):
    """A session in the list of a workspace's sessions."""

    id: str
    source: str
    """`protocol`, or the name of the agent whose files were read."""
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
    """The id of the session from which this session was forked."""
    cost_usd: float | None
    updated_at: str
    shown: bool = False
    """Whether the status shows this session."""
    pinned: bool = False
    """Whether this session was selected with `context/select`."""
    severity: Severity = "ok"
    """`warning` if the first threshold of `context.warn-at` is reached, `error` if the
    last one is.
    """
    label: str = ""
    """The display name: the title or, for an untitled session, the branch and the start time.

    If the branch is unknown, the agent's name replaces it. With `agents.labels = "first-prompt"`,
    the label of an untitled session is the beginning of its first prompt.
    """
    figures: str = ""
    """Percentage and cost: `43 % · $1.92`. A narrow list shows them before the label."""
    detail: str = ""
    """The figures, age, short model name and state: `43 % · $1.92 · 3 min ago · opus-5`."""
    text: str = ""
    """The label and the detail on one line, aligned with the other rows."""
    others: int = 0
    """In the last row, the number of sessions that are left out because of `limit`."""


class ContextWarning(Result, frozen=True, kw_only=True):
    """The params of `context/warning`, which is sent once each time a threshold is crossed."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted", "cold"]
    message: str
    usage: ContextUsage | None


RemovalReason = Literal["toolOutput", "dialogue", "orphan", "empty"]


class Removed(Result, frozen=True, kw_only=True):
    """A turn that a pruning plan removes. If the reason is `orphan`, a part of it may remain."""

    index: int
    """The zero-based index of the turn in the conversation."""
    role: str
    tokens: int
    reason: RemovalReason


class FitResult(Result, frozen=True, kw_only=True):
    """A pruning plan. If the conversation still does not fit, `reason` explains why."""

    messages: list[Turn]
    """The remaining messages, including the system prompt."""
    removed: list[Removed]
    summary: str | None
    tokens_before: int
    tokens_after: int
    cached_tokens_lost: int
    """Cached prompt tokens that the vendor can no longer read from its cache after pruning."""
    fits: bool
    plan_id: str
    reason: str | None = None
    """Why the conversation does not fit; null if it does."""
    text: str = ""
    """The plan as text, with a line for each removed turn."""


class AssembledSection(Result, frozen=True, kw_only=True):
    """A part of an assembled request."""

    name: str
    text: str
    tokens: int
    trimmed: bool


class PackPart(Result, frozen=True, kw_only=True):
    """A section of the assembled context."""

    name: str
    tokens: int
    trimmed: bool
    """Whether the section was shortened to meet a token limit."""


class AssembleResult(Result, frozen=True, kw_only=True):
    """An assembled request. Join the texts of `sections` in order to get its text."""

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
    """The `focus` of the request."""
    budget_applied: int = 0
    """The maximum size that was applied, in tokens."""
    pack: list[PackPart] = msgspec.field(default_factory=list)
    """The sections of the rendered context; empty if the params contained the context."""


class CleanCall(Result, frozen=True, kw_only=True):
    """A complete tool call, which the client can run."""

    id: str
    name: str
    arguments: dict[str, Any]


class Dropped(Result, frozen=True, kw_only=True):
    """A tool call that cannot be run because its name or arguments are incomplete or invalid."""

    name: str
    reason: str


class ResponseResult(Result, frozen=True, kw_only=True):
    """The usable parts of a reply."""

    content: str
    tool_calls: list[CleanCall]
    dropped: list[Dropped]
    unchecked: list[str] = msgspec.field(default_factory=list)
    """If the reply was cut off, the names of tool calls that were kept without a schema check."""
    model: str | None = None
    """The model named in the reply."""
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
    """A reason for a `context/preflight` verdict. `kind` is, for example, `window`, `output` or
    `budget`.
    """

    kind: str
    message: str


class Alternative(Result, frozen=True, kw_only=True):
    """Another model whose window has room for the request."""

    model: str
    context_window: int


Verdict = Literal["ok", "warn", "refuse"]


class PreflightResult(Result, frozen=True, kw_only=True):
    """The verdict on a request, and the reasons for it."""

    verdict: Verdict
    prompt_tokens: int
    available: int
    fits: bool
    defer_tool: bool
    estimated_cost_usd: float | None
    reasons: list[Reason]
    alternatives: list[Alternative]
