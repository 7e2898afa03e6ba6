"""Changes to conversations, such as client requests or token counts from an endpoint.

A worker thread applies each change to a draft, which is a copy of the conversation.
`Conversations.apply` then commits the draft. `check_prompt_and_cost` answers
`context/preflight` from a draft that is never committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from sidecar.config.settings import Settings
from sidecar.conversations import context_protocol as p
from sidecar.conversations.context_protocol import (
    Alternative,
    AssembleResult,
    CleanCall,
    ContextUsage,
    Dropped,
    FitResult,
    PreflightParams,
    PreflightResult,
    Reason,
    ResponseResult,
    Verdict,
)
from sidecar.conversations.conversation import Conversation, apply_set, apply_text_counts
from sidecar.conversations.occupancy import (
    budget_message,
    calibration_info,
    estimated_prompt,
    fallback_texts,
    should_prune,
)
from sidecar.conversations.pruning import fit, make_plan
from sidecar.conversations.sections import RestoredPart, ToolSet, largest_tools
from sidecar.conversations.turn_counts import (
    MARKS,
    Counter,
    Sums,
    UsageUpdate,
    measure_of,
    sums_of,
    with_hidden_tokens,
)
from sidecar.cost.context_costs import CostVerdict, SpendingSums
from sidecar.cost.cost_protocol import CostRecorded, CostRecordParams
from sidecar.counting.calibration import ConversationCalibration, Sample
from sidecar.counting.count_result import Measure
from sidecar.counting.open_documents import FollowedText
from sidecar.endpoints.outcome import Capability
from sidecar.errors import BadParamsError, SidecarError
from sidecar.messages.messages import ToolSchema, Turn, parts, read_tools
from sidecar.messages.replies import Reply, ToolCall, read_reply
from sidecar.messages.vendor_usage import Usage
from sidecar.models import catalogue
from sidecar.models.catalogue import prompt_limit_of
from sidecar.models.names import LOCAL_PROVIDERS, is_for_chat, is_retired, maker_of, matches, parse
from sidecar.models.window import Window, usable
from sidecar.tasks import Workers
from sidecar.text.printable import printable

T = TypeVar("T")
WarningKind = Literal["exhausted", "droppedToolCalls", "compacted"]


class Draft(NamedTuple):
    """A copy of a conversation, with its window and calibration. A worker thread changes it."""

    conversation: Conversation
    window: Window
    calibration: ConversationCalibration
    """A copy of the conversation's calibration. The original is updated on commit."""
    used_at: datetime
    """When the conversation was last used before this change."""

    def keep_time(self) -> None:
        """Leave the conversation's place among the recently used ones as it was."""
        self.conversation.updated_at = self.used_at


class CallLedger(Protocol):
    """Records a workspace's calls and checks them against its caps. Both methods block."""

    def record(
        self, params: CostRecordParams, reply: Reply | None = None, raw: object = None
    ) -> tuple[CostRecorded, SpendingSums | None]:
        """Record a call and return the workspace's new sums."""

    def preflight(
        self, model: str, prompt_tokens: int, output_tokens: int, session: str
    ) -> CostVerdict:
        """Return a call's expected cost and whether the caps allow the call."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The result of a change, and the data needed to commit the change."""

    result: T
    asks_endpoint: bool = False
    """Whether an endpoint should count the changed conversation."""
    usage: Usage | None = None
    sample: Sample | None = None
    reply_sample: tuple[int, int] | None = None
    """The estimated and reported token counts of the reply's text."""
    refused_limit: int | None = None
    """The context window in tokens, from a server's error message about an overlong prompt."""
    spent: SpendingSums | None = None
    """The workspace's spending, if any call was recorded."""
    warnings: Sequence[tuple[WarningKind, str]] = ()


@dataclass(frozen=True)
class Change(Generic[T]):
    """A change to one conversation."""

    session: str | None = None
    """The conversation's ID, or None if the client did not provide one."""
    model: str | None = None
    """The model in the client's request."""
    answered_model: str | None = None
    """The model named in the reply, if the conversation should switch to it."""
    version: Conversation | None = None
    """The version that the change is about, or None for the current one.

    The change is not committed if the conversation's turns or model have changed since.
    """

    async def read(
        self,
        workers: Workers,  # noqa: ARG002
        model: str,  # noqa: ARG002
        named: str | None,  # noqa: ARG002
        settings: Settings,  # noqa: ARG002
    ) -> Change[T]:
        """Return the change with everything that decides which model the conversation is for.

        Args:
            workers: Threads for blocking work.
            model: The conversation's model.
            named: The model that a client has set for the conversation.
            settings: The workspace's settings.
        """
        return self

    def apply(self, draft: Draft) -> Outcome[T]:
        """Apply the change to a draft. This function blocks."""
        raise NotImplementedError


def apply_to_draft(draft: Draft, change: Change[T]) -> Outcome[T]:
    """Apply a change to a draft. Count the draft unless a section must be counted first."""
    outcome = change.apply(draft)
    if not draft.conversation.lacks_document_counts:
        draft.conversation.total()
    return outcome


@dataclass(frozen=True)
class Recount(Change[None]):
    """Recounts a conversation after settings, documents or endpoints have changed."""

    asks_endpoint: bool = False

    def apply(self, draft: Draft) -> Outcome[None]:
        draft.keep_time()  # every draft is counted
        return Outcome(None, asks_endpoint=self.asks_endpoint)


@dataclass(frozen=True)
class ApplyCounts(Change[None]):
    """Applies an endpoint's token counts to the version of a conversation that it counted."""

    total: int | None = None
    """The whole chat's token count."""
    texts: Mapping[int, int] = field(default_factory=dict)
    """Per-turn token counts, from an endpoint that cannot count whole chats."""
    server: str = ""
    """The server that provided the counts of texts."""

    def apply(self, draft: Draft) -> Outcome[None]:
        conversation = draft.conversation
        if self.server:
            conversation.counter = conversation.counter.served_by(self.server)
        if self.total is not None:
            conversation.apply_chat_count(self.total, _first_estimated_turn(conversation))
        elif self.texts:
            apply_text_counts(conversation, self.texts)
        return Outcome(None)


def _first_estimated_turn(conversation: Conversation) -> int:
    counts = conversation.model_counts()
    for index in range(counts.anchor.covers if counts.anchor else 0, len(conversation.turns)):
        if counts.turns[index].method in ("calibrated", "estimate"):
            return index
    return len(conversation.turns)


@dataclass(frozen=True)
class SetParts(Change[None]):
    """Applies `context/set`."""

    params: p.SetParams = field(kw_only=True)
    documents: Mapping[int, FollowedText] = field(kw_only=True)
    """The current text of each section's document, keyed by the `id()` of the section's params."""
    makes_current: bool = True
    """Whether the conversation becomes the current one."""

    def apply(self, draft: Draft) -> Outcome[None]:
        apply_set(draft.conversation, self.params, lambda spec: self._make_source(id(spec)))
        if not self.makes_current:
            draft.keep_time()
        return Outcome(None, asks_endpoint=True)

    def _make_source(self, spec: int) -> FollowedText:
        source = self.documents.get(spec)
        if source is None:
            raise BadParamsError("the section does not name a document")
        return source


@dataclass(frozen=True)
class AppendTurns(Change[None]):
    """Applies `context/append`, including the usage or total if the client reported one."""

    params: p.AppendParams = field(kw_only=True)
    usage: Usage | None = None
    total: int | None = None

    def apply(self, draft: Draft) -> Outcome[None]:
        update = draft.conversation.append(self.params.turns, self.usage, total=self.total)
        message = "The conversation was compacted by its client."
        return Outcome(
            None,
            asks_endpoint=True,
            usage=self.usage,
            sample=update.sample,
            warnings=[("compacted", message)] if update.compacted else [],
        )


@dataclass(frozen=True)
class Reset(Change[None]):
    """Applies `context/reset`."""

    makes_current: bool = True
    """Whether the conversation becomes the current one."""

    def apply(self, draft: Draft) -> Outcome[None]:
        draft.conversation.reset()
        if not self.makes_current:
            draft.keep_time()
        return Outcome(None)


@dataclass(frozen=True)
class Fit(Change[FitResult]):
    """Applies `context/fit`."""

    params: p.FitParams = field(kw_only=True)
    keep_turns: int = field(kw_only=True)

    def apply(self, draft: Draft) -> Outcome[FitResult]:
        result = fit(
            draft.conversation,
            self.params,
            draft.window,
            keep_turns=self.keep_turns,
            calibration=draft.calibration,
        )
        return Outcome(result)


@dataclass(frozen=True)
class Undo(Change[bool]):
    """Applies `context/undo`. The result is false if there was nothing to undo."""

    def apply(self, draft: Draft) -> Outcome[bool]:
        return Outcome(draft.conversation.undo())


@dataclass(frozen=True)
class Assemble(Change[AssembleResult]):
    """Applies `context/assemble`."""

    params: p.AssembleParams = field(kw_only=True)

    def apply(self, draft: Draft) -> Outcome[AssembleResult]:
        conversation = draft.conversation
        result = conversation.assembler.assemble(
            self.params, conversation.counter, conversation.sections, draft.window.usable
        )
        draft.keep_time()
        conversation.record_assembled({part.name: part.tokens for part in result.sections})
        return Outcome(result)


# Replies


def is_other_model(replied: str | None, asked: str, settings: Settings) -> bool:
    """Return whether the reply came from a different model than the client asked for.

    Always false for local servers and custom endpoints because they use their own model names.
    """
    if not replied or parse(asked).provider in LOCAL_PROVIDERS:
        return False
    served = any(matches(asked, endpoint.models) for endpoint in settings.endpoints)
    return not served and catalogue.is_different_model(replied, asked)


@dataclass(frozen=True)
class ApplyReply(Change[ResponseResult]):
    """Applies `context/response`, and records the call's cost."""

    params: p.ResponseParams = field(kw_only=True)
    keep_turns: int = field(kw_only=True)
    spending: CallLedger = field(kw_only=True)
    reply: Reply | None = None
    asked_model: str | None = None
    """The model that the client set in the request or for the conversation."""
    is_other_model: bool = False
    """Whether the reply came from a different model than the client asked for."""

    async def read(
        self, workers: Workers, model: str, named: str | None, settings: Settings
    ) -> ApplyReply:
        return await workers.run(partial(self._read, model, named, settings))

    def _read(self, model: str, named: str | None, settings: Settings) -> ApplyReply:
        reply = read_reply(self.params.response, self.params.format)
        asked = self.params.model or named
        return replace(
            self,
            reply=reply,
            asked_model=asked,
            answered_model=reply.model if is_other_model(reply.model, model, settings) else None,
            is_other_model=asked is not None and is_other_model(reply.model, asked, settings),
        )

    def apply(self, draft: Draft) -> Outcome[ResponseResult]:
        if self.reply is None:
            raise ValueError("the reply was not read")
        spent, problem = self._record(draft, self.reply)
        outcome = apply_reply(
            draft.conversation,
            self.reply,
            draft.window,
            tools=self.params.tools or (),
            keep_turns=self.keep_turns,
            calibration=draft.calibration,
        )
        result = msgspec.structs.replace(
            outcome.result, usage_recorded=problem is None, usage_problem=problem
        )
        outcome = replace(outcome, result=result, spent=spent)
        if self.is_other_model:  # its counts differ, so the reply is no sample
            return replace(outcome, sample=None)
        return replace(outcome, reply_sample=_reply_sample(draft.conversation, self.reply))

    def _record(self, draft: Draft, reply: Reply) -> tuple[SpendingSums | None, str | None]:
        """Record the call, unless its request ID is already recorded.

        Returns the workspace's spending or an error message.
        """
        from sidecar.cost.cost_protocol import CostRecordParams

        named = reply.model if self.is_other_model else self.asked_model
        conversation, params = draft.conversation, self.params
        estimate = None
        if conversation.turns and not conversation.is_empty:
            estimate = estimated_prompt(conversation, draft.calibration).tokens
        call = CostRecordParams(
            model=named or reply.model or conversation.model,
            provider=params.provider,
            category=params.category or "main",
            usage={},
            session=conversation.id,
            request_id=reply.request_id or params.request_id,
            estimated_tokens=estimate,
        )
        try:
            _, spent = self.spending.record(call, reply, params.response)
        except SidecarError as exc:
            return None, str(exc)
        return spent, None


def apply_reply(
    conversation: Conversation,
    reply: Reply,
    window: Window,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    keep_turns: int = 4,
    calibration: ConversationCalibration | None = None,
) -> Outcome[ResponseResult]:
    """Apply a reply's usage to its conversation, and return the reply without cut-off tool calls.

    Args:
        conversation: The conversation to update. The reply is not appended to it.
        reply: The reply.
        window: The context window.
        tools: Tool schemas with required parameters; defaults to the conversation's tools.
        keep_turns: The number of user turns that the pruning plan keeps if the window is full.
        calibration: The conversation's calibration. The reply's usage updates it.
    """
    known = conversation.tools.tools if isinstance(conversation.tools, ToolSet) else ()
    schemas = read_tools(tools or known)
    kept, faulty = split_calls(reply, schemas)
    exhausted = exhausted_limit(reply, window)
    update = _anchor(conversation, reply, [call for call, _ in faulty])
    if update.sample is not None and calibration is not None:
        calibration.update(update.sample)
    plan = None
    limit = reply.overflow.limit if reply.overflow else None
    if exhausted == "window" and not conversation.has_turns_without_text and conversation.turns:
        room = min(window.usable, usable(limit or window.limit.tokens, window.reserve))
        plan = make_plan(conversation, room, keep_turns=keep_turns, calibration=calibration)
    result = ResponseResult(
        content=reply.content,
        tool_calls=[
            CleanCall(id=call.id, name=call.name, arguments=call.arguments or {}) for call in kept
        ],
        dropped=[Dropped(name=call.name, reason=fault) for call, fault in faulty],
        unchecked=_calls_without_schema(reply, kept, schemas),
        model=reply.model,
        request_id=reply.request_id,
        stop_reason=reply.stop_reason,
        exhausted=exhausted,
        plan=plan,
        usage=reply.usage,
        calibration=calibration_info(calibration),
    )
    return Outcome(
        result,
        usage=reply.usage,
        sample=update.sample,
        refused_limit=limit,
        warnings=list(_make_warnings(result, update)),
    )


def split_calls(
    reply: Reply, schemas: Sequence[ToolSchema]
) -> tuple[list[ToolCall], list[tuple[ToolCall, str]]]:
    """Return the usable tool calls, and the other tool calls with their faults.

    In a complete reply, calls are not checked against their schemas.
    """
    required = {tool.name: tool.required for tool in schemas}
    kept: list[ToolCall] = []
    faulty: list[tuple[ToolCall, str]] = []
    for call in reply.tool_calls:
        fault = _find_fault(call, required.get(call.name, ()), reply.cut_off)
        if fault is None:
            kept.append(call)
        else:
            faulty.append((call, fault))
    return kept, faulty


def _calls_without_schema(
    reply: Reply, calls: Sequence[ToolCall], schemas: Sequence[ToolSchema]
) -> list[str]:
    known = {tool.name for tool in schemas}
    return [call.name for call in calls if call.name not in known] if reply.cut_off else []


def exhausted_limit(reply: Reply, window: Window) -> Literal["output", "window"] | None:
    """Return which limit ended the reply: the output limit or the window.

    Many vendors report both limits in the same way, so the number of tokens decides. A window
    size from the settings may be smaller than the real window. Such a size is therefore treated
    as the limit only if the number of tokens matches it.
    """
    usage = reply.usage
    if reply.exhausted != "output" or usage is None or window.limit.source == "default":
        return reply.exhausted
    over = usage.prompt_tokens + usage.output_tokens - window.limit.tokens
    full = abs(over) <= 1 if window.limit.source == "settings" else over >= -1
    return "window" if full else "output"


def _find_fault(call: ToolCall, required: Sequence[str], cut_off: bool) -> str | None:
    if call.arguments is None:
        return f"its arguments {'were cut off and ' if cut_off else ''}are not valid JSON"
    if not cut_off:
        return None
    if not call.name:
        return "its name was cut off"
    missing = [name for name in required if name not in call.arguments]
    return f"missing required parameters: {', '.join(missing)}" if missing else None


def _anchor(conversation: Conversation, reply: Reply, dropped: Sequence[ToolCall]) -> UsageUpdate:
    if reply.overflow is not None and reply.overflow.prompt_tokens:
        return conversation.apply_overflow(reply.overflow.prompt_tokens)
    usage = reply.usage
    if usage is None or not usage.prompt_tokens:
        return UsageUpdate()
    if not dropped:
        return conversation.apply_reply_usage(usage)
    written = max(0, usage.output_tokens - usage.reasoning_tokens)
    reported, estimated = _kept_output(conversation.counter, reply, dropped, written)
    output = usage.reasoning_tokens + reported
    return conversation.apply_reply_usage(
        msgspec.structs.replace(usage, output_tokens=output), estimated
    )


def _kept_output(
    counter: Counter, reply: Reply, dropped: Sequence[ToolCall], written: int
) -> tuple[int, Sums]:
    """Return the size of the kept output, as a number of reported tokens plus an estimate.

    Vendors do not report token counts for individual calls. The result is either the reported
    output minus the estimated size of the dropped calls, or an estimate of the kept output,
    whichever is more reliable. If the vendor sent less text than it reports, the kept output is
    estimated.

    Args:
        counter: The conversation's counter.
        reply: The whole reply.
        dropped: The calls that were dropped.
        written: The reported output tokens, excluding reasoning.
    """
    calls = [call for call in reply.tool_calls if not any(call is one for one in dropped)]
    kept = _estimate(counter, [reply.content, *map(_call_text, calls)], len(calls))
    gone = _estimate(counter, [_call_text(call) for call in dropped], len(dropped))
    unseen = written - (kept.estimate + kept.error) - (gone.estimate + gone.error)
    if unseen > 0 or (kept.unmeasured, kept.error) <= (gone.unmeasured, gone.error):
        return 0, kept
    gone = gone._replace(estimate=min(gone.estimate, written))
    return written, Sums().minus(gone)._replace(error=gone.error)


def _estimate(counter: Counter, texts: Sequence[str], calls: int) -> Sums:
    measure = counter.text("\n".join(texts))
    margin = measure.tokens * (measure.error_percent or 0.0) / 100 + MARKS * calls
    return Sums(
        estimate=measure.tokens,
        calibrated=measure.tokens if measure.method == "calibrated" else 0,
        error=margin,
        unmeasured=measure.tokens if measure.error_percent is None else 0,
    )


def _call_text(call: ToolCall) -> str:
    return f"{call.name} {call.arguments_text}"


def _make_warnings(
    result: ResponseResult, update: UsageUpdate
) -> Iterator[tuple[WarningKind, str]]:
    if result.exhausted == "output":
        yield "exhausted", "The reply reached its output limit and is incomplete."
    if result.exhausted == "window":
        yield "exhausted", "The context window is full. Remove or summarize turns, then try again."
    if result.unchecked:
        names = ", ".join(sorted(set(result.unchecked)))
        yield (
            "exhausted",
            f"The reply was cut off, and these tool calls could not be checked: {names}.",
        )
    if result.dropped:
        names = ", ".join(sorted({call.name or "(unnamed)" for call in result.dropped}))
        yield "droppedToolCalls", f"Incomplete or invalid tool calls were dropped: {names}."
    if update.compacted:
        yield "compacted", "The conversation was compacted: its prompt is much smaller than before."


def _reply_sample(conversation: Conversation, reply: Reply) -> tuple[int, int] | None:
    usage = reply.usage
    if usage is None or usage.reasoning_tokens or reply.tool_calls or not reply.content:
        return None
    return conversation.counter.text(reply.content).tokens, usage.output_tokens


# Before a request

ALTERNATIVES_SHOWN = 5
_RANKS: tuple[Verdict, ...] = ("ok", "warn", "refuse")
_NO_NAME = re.compile(r"ft:|regional\.|.*(-|\.ft-?)$", re.IGNORECASE)
"""Matches incomplete names in the price list, such as fine-tunes without an ID."""
_VARIANT = re.compile(r":(free|extended|thinking|beta|online|nitro|floor|exacto)$")
"""Matches the suffixes of OpenRouter's model variants. Other APIs reject them."""
_REGION = re.compile(r"(global|us|us-gov|eu|apac|au|ca|jp|sa|me|uk)\.(?=\w+\.)")
"""Matches Bedrock's region prefix. An account can call models only in certain regions."""


def can_call_model(name: str, provider: str, model: str) -> bool:
    """Return whether a client can switch from a provider's model `model` to its model `name`."""
    if _NO_NAME.match(name) or (provider != "openrouter" and _VARIANT.search(name)):
        return False
    if provider == maker_of(model) != maker_of(name):
        return False  # models by other makers use a different API
    region, own = _REGION.match(name), _REGION.search(model)
    return region is None or (own is not None and own[0] == region[0])


class AlternativeModels(NamedTuple):
    """Finds other models for a conversation. Immutable, so worker threads can use it."""

    model: str
    counter: Counter
    tools: ToolSet | RestoredPart | None
    capabilities: tuple[Capability, ...]

    def all(self) -> list[Alternative]:
        """Return models from the same vendor, and models on endpoints that serve the current
        model.
        """
        from sidecar.counting.model_list import search

        provider = catalogue.provider_of(self.model)
        models = [
            Alternative(model=info.id, context_window=info.context_window)
            for info in (search() if provider else ())
            if provider
            and info.provider == provider
            and info.context_window
            and is_for_chat(info.id)
            and not is_retired(info.id)
            and can_call_model(info.id, provider, self.model)
        ]
        serving = {row.endpoint for row in self.capabilities if row.model == self.model}
        return models + [
            Alternative(model=row.model, context_window=row.limit)
            for row in self.capabilities
            if row.endpoint in serving and row.limit
        ]

    def fitting(self, usage: ContextUsage) -> list[Alternative]:
        """Return the models whose window is large enough, smallest first."""
        return models_that_fit(
            self.all(), usage.tokens or 0, self.model, usage.reserve or 0, usage.limit or 0
        )

    def message(self, usage: ContextUsage) -> str:
        heaviest = largest_tools(self.tools, self.counter)
        return budget_message(usage, self.fitting(usage), heaviest)


def check_prompt_and_cost(
    draft: Draft,
    params: p.PreflightParams,
    alternatives: AlternativeModels,
    spending: CallLedger,
    warn_at: tuple[float, ...],
) -> tuple[PreflightResult, CostVerdict]:
    """Compute the result of `context/preflight`. The draft is discarded. This function blocks."""
    conversation = draft.conversation
    result = preflight(
        conversation,
        draft.window,
        params,
        models=alternatives.all(),
        warn_at=warn_at,
        calibration=draft.calibration,
    )
    output = params.max_output_tokens or 0
    cost = spending.preflight(conversation.model, result.prompt_tokens, output, conversation.id)
    return with_cost(result, cost), cost


def count_request(
    conversation: Conversation,
    params: PreflightParams,
    calibration: ConversationCalibration | None = None,
) -> Measure:
    """Return the next request's size after adding the turns and the text in the params."""
    counter = conversation.counter
    added = [*(params.turns or ())]
    if params.text:
        added.append(Turn(role="user", content=params.text))
    total = Sums(exact=counter.priming) if conversation.is_empty and added else conversation.total()
    for turn in added:
        total = total.plus(sums_of(counter.message(turn)))
    measure = measure_of(total, counter.tokenizer, calibration)
    return measure if conversation.has_reported_usage else with_hidden_tokens(measure, calibration)


def preflight(
    conversation: Conversation,
    window: Window,
    params: PreflightParams,
    *,
    models: Iterable[Alternative] = (),
    warn_at: tuple[float, ...] = (0.8, 0.95),
    calibration: ConversationCalibration | None = None,
) -> PreflightResult:
    """Return whether a request fits the window.

    Args:
        conversation: The conversation, with a counter for the requested model.
        window: The context window of that model.
        params: The turns and text to add, and the expected output.
        models: The models to suggest if they have enough room.
        warn_at: Thresholds, as fractions of the usable window. The verdict is a warning above the
            highest threshold.
        calibration: The conversation's calibration.
    """
    prompt = count_request(conversation, params, calibration).tokens
    output = params.max_output_tokens or 0
    reasons = _window_reasons(prompt, output, window, warn_at)
    fits = not window.over(prompt) and prompt + output <= window.limit.tokens
    defer = _defer_reason(conversation, params, prompt, window)
    size, needed = window.limit.tokens, prompt + output
    alternatives = (
        [] if fits else models_that_fit(models, needed, conversation.model, window.reserve, size)
    )
    if defer is not None:
        reasons.append(defer)
    if not fits:
        heaviest = largest_tools(conversation.tools, conversation.counter)
        offers = fallback_texts(alternatives, heaviest)
        reasons += [Reason(kind="fallback", message=one) for one in offers]
    return PreflightResult(
        verdict=_judge(prompt, fits, bool(reasons), window),
        prompt_tokens=prompt,
        available=window.available(prompt),
        fits=fits,
        defer_tool=defer is not None,
        estimated_cost_usd=None,
        reasons=reasons,
        alternatives=alternatives,
    )


def with_cost(fit: PreflightResult, cost: CostVerdict) -> PreflightResult:
    """Return a copy of `fit` with the call's cost. The more severe of both verdicts counts."""
    reasons = [Reason(kind=reason.kind, message=reason.message) for reason in cost.reasons]
    return msgspec.structs.replace(
        fit,
        verdict=max(fit.verdict, cost.verdict, key=_RANKS.index),
        estimated_cost_usd=None if cost.estimate is None else float(cost.estimate),
        reasons=[*fit.reasons, *reasons],
    )


def models_that_fit(
    models: Iterable[Alternative], tokens: int, model: str, reserve: int, than: int = 0
) -> list[Alternative]:
    """Return other models that have room for `tokens`, smallest window first.

    Args:
        models: The models to choose from.
        tokens: The size that must fit.
        model: The current model, which is left out.
        reserve: The part of each window reserved for the reply, in tokens.
        than: Windows up to this size are left out.
    """
    fit = {
        one.model: one
        for one in models
        if one.model != model
        and one.context_window > than
        and usable(one.context_window, reserve) >= tokens
        and (prompt_limit_of(one.model) or tokens) >= tokens
    }
    return sorted(fit.values(), key=lambda one: (one.context_window, one.model))[
        :ALTERNATIVES_SHOWN
    ]


def largest_tool_result(conversation: Conversation, name: str) -> int:
    """Return the size of the largest result of this tool in the conversation, in tokens."""
    counts = conversation.model_counts().turns
    sizes = [0]
    names: dict[str, str] = {}
    for index, turn in enumerate(conversation.turns):
        found = parts(turn)
        names.update({part.id: part.name for part in found if part.id and part.name})
        given = [part.name or names.get(part.id or "") for part in found if part.kind == "result"]
        if name in given:
            sizes.append(counts[index].tokens)
    return max(sizes)


def _window_reasons(
    prompt: int, output: int, window: Window, warn_at: tuple[float, ...]
) -> list[Reason]:
    limit, size = window.limit.tokens, f"the prompt of {prompt:,} tokens"
    if window.over(prompt):
        exceeded = "prompt limit" if window.usable == window.limit.prompt else "usable window"
        text = f"{size} exceeds the {exceeded} of {window.usable:,} tokens"
        return [Reason(kind="window", message=text)]
    if prompt + output > limit:
        text = f"{size} and {output:,} tokens of output exceed the window of {limit:,} tokens"
        return [Reason(kind="output", message=text)]
    if should_prune(prompt, window, warn_at):
        text = f"{size} is close to the usable window of {window.usable:,} tokens"
        return [Reason(kind="budget", message=text)]
    return []


def _defer_reason(
    conversation: Conversation, params: PreflightParams, prompt: int, window: Window
) -> Reason | None:
    """Return why a pending tool call should be deferred, or None if its result will fit."""
    call = params.pending_tool_call
    if call is None:
        return None
    expected = call.expected_tokens
    if expected is None:
        expected = largest_tool_result(conversation, call.name)
    if not window.over(prompt + expected):
        return None
    result = f"the result of {printable(call.name)} ({expected:,} tokens)"
    text = f"not enough room for {result}; run the tool later"
    return Reason(kind="tool", message=text)


def _judge(prompt: int, fits: bool, warned: bool, window: Window) -> Verdict:
    if not fits and prompt > (window.limit.prompt or window.limit.tokens):
        return "refuse"
    return "warn" if warned else "ok"
