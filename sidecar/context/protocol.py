"""Params and results of the `context/*` requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sidecar.config.settings import Truncation
from sidecar.context.window import LimitSource, Severity
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
    """Names a conversation. Without `session`, the workspace's most recently updated one."""

    workspace: str | None = None
    """The root folder's URI, any path inside a root, or the URI of an open document."""
    session: str | None = None


class SectionDocument(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An open document whose text a section follows."""

    uri: str


class SectionSpec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A named section: `text`, or `textDocument` with an optional `range`."""

    name: str
    text: str | None = None
    text_document: SectionDocument | None = None
    range: Range | None = None
    cap: NaturalTokens | None = None
    """Maximum tokens of the section."""
    priority: int | None = None
    """If sections must be shortened together, the lowest goes first (default 0)."""
    truncation: Truncation | None = None
    """The part to keep when shortening; `middle` keeps both ends."""


class SetParams(SessionParams, frozen=True, kw_only=True):
    """The parts of a conversation besides its turns. Omitted parts are kept; null removes one."""

    model: str | None = None
    system_prompt: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    """Schemas in OpenAI, Anthropic or Gemini form."""
    sections: list[SectionSpec] | UnsetType | None = UNSET
    """Replaces all sections."""
    limit: PositiveTokens | UnsetType | None = UNSET
    """Context window in tokens, if the client knows better."""
    reserve: NaturalTokens | UnsetType | None = UNSET
    """Tokens kept free for the reply."""
    persist: bool | None = None
    """Save counts and ids (never text) across restarts of the server."""

    @property
    def is_choice(self) -> bool:
        """Whether only a model is given, to choose what documents are counted for."""
        return bool(self.model) and self == SetParams(workspace=self.workspace, model=self.model)


class AppendParams(SessionParams, frozen=True, kw_only=True):
    """Turns to add, in order, with the usage that the vendor reported for the reply."""

    turns: list[Turn]
    usage: dict[str, Any] | None = None
    """Improves the count; it is not billed."""


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """Asks how full the context is."""

    contents: bool = False
    """Also return what fills an agent's context, which reads its session file."""


class SessionsParams(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Lists the sessions of the last 24 hours, or all."""

    workspace: str | None = None
    all: bool = False


class SelectParams(SessionParams, frozen=True, kw_only=True):
    """Shows a session until it ends; null selects automatically again."""


class ResetParams(SessionParams, frozen=True, kw_only=True):
    """Removes everything but the conversation's model."""


class UndoParams(SessionParams, frozen=True, kw_only=True):
    """Reverts the last applied plan."""


class FitParams(SessionParams, frozen=True, kw_only=True):
    """Asks for a plan that makes the conversation fit, or applies one."""

    max_tokens: NaturalTokens | None = None
    """Target size; the usable window by default."""
    keep_turns: NaturalTokens | None = None
    """How many of the last user turns to keep with their replies (default: the setting)."""
    strategy: Strategy = "drop"
    apply: bool = False
    plan_id: str | None = None
    """Id of a plan to apply."""


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """The parts of a request, and the keys that its context depends on."""

    preset: Literal["mind"] | None = None
    """Token limits for the context's sections."""
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
    """Size to fit; the usable window by default."""
    focus: str | None = None
    scope: str | None = None
    memory_version: str | int | float | None = None


class ResponseParams(SessionParams, frozen=True, kw_only=True):
    """A model's reply as sent by its vendor: an object, or the array or text of its stream."""

    response: dict[str, Any] | list[Any] | str
    model: str | None = None
    provider: str | None = None
    """The provider; default as in `cost/record`."""
    category: str | None = None
    request_id: str | None = None
    format: ReplyFormat | None = None
    """The reply's format; detected by default."""
    tools: list[dict[str, Any]] | None = None
    """Schemas that list required parameters; the session's by default."""


class PendingToolCall(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A tool call that is about to run."""

    name: str
    expected_tokens: NaturalTokens | None = None


class PreflightParams(SessionParams, frozen=True, kw_only=True):
    """A request that is about to be sent."""

    turns: list[Turn] | None = None
    text: str | None = None
    model: str | None = None
    max_output_tokens: NaturalTokens | None = None
    pending_tool_call: PendingToolCall | None = None


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
    label: str = ""
    """The name of an agent's session; otherwise empty."""

    @classmethod
    def of(
        cls, session_id: str, source: str, updated_at: datetime, *, label: str = ""
    ) -> SessionInfo:
        """Create it, with the time as in the contract."""
        at = updated_at.isoformat().replace("+00:00", "Z")
        return cls(id=session_id, source=source, updated_at=at, label=label)


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
    severity: Severity = "ok"
    """`warning` from the first threshold of `context.warn-at` on, `error` from the last."""
    label: str = ""
    """The name to show: the title, else the branch or agent with the start time, or with
    `agents.labels = "first-prompt"` the first words of the first prompt."""
    detail: str = ""
    """Percent, cost, age, short model name and state: `43 % · $1.92 · 3 min ago · opus-5`."""
    text: str = ""
    """Label and detail on one line, aligned with the other rows."""


class ContextWarning(Result, frozen=True, kw_only=True):
    """Params of `context/warning`, sent once per crossing."""

    workspace: str | None
    session: str | None
    kind: Literal["budget", "exhausted", "droppedToolCalls", "cap", "compacted"]
    message: str
    usage: ContextUsage | None


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
