"""Changes of a conversation, as values: what each request does to it, on a worker.

A change edits a draft, a copy of the conversation, and returns an outcome. `Conversations.apply`
commits the draft and acts on the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from sidecar.context.occupancy import estimated_prompt
from sidecar.context.preflight import merged, preflight
from sidecar.context.response import ReplyOutcome, WarningKind, handle
from sidecar.context.results import (
    AssembleResult,
    FitResult,
    PreflightResult,
    Reason,
    ResponseResult,
)
from sidecar.context.session import apply_set
from sidecar.errors import BadParamsError, SidecarError
from sidecar.messages.replies import read_reply
from sidecar.workspace.models import Alternatives, is_others

if TYPE_CHECKING:
    from sidecar.config.settings import Settings
    from sidecar.context import params as p
    from sidecar.context.conversation import Conversation
    from sidecar.context.model_counts import Sample, UsageUpdate
    from sidecar.context.session import Session
    from sidecar.context.window import Window
    from sidecar.cost.caps import CostVerdict
    from sidecar.counting.calibration import ConversationCalibration
    from sidecar.messages.reply import Reply
    from sidecar.messages.usage import Usage
    from sidecar.workspace.documents import FollowedText
    from sidecar.workspace.spending import Spending, Spent

T = TypeVar("T")


class Draft(NamedTuple):
    """A copy of a conversation for a worker, with its window and calibration."""

    conversation: Conversation
    window: Window
    calibration: ConversationCalibration
    """A copy, too: the conversation's own is updated when the draft is committed."""

    @property
    def session(self) -> Session:
        """The conversation's."""
        return self.conversation.session


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """A change's result, and what follows once it is committed."""

    result: T
    usage: Usage | None = None
    """Usage reported with the change."""
    samples: Sequence[Sample] = ()
    """Samples for the conversation's calibration."""
    reply_sample: tuple[int, int] | None = None
    """Tokens of a reply's text, estimated and reported."""
    refused_limit: int | None = None
    """The window in tokens that a server named when it refused the prompt."""
    spent: Spent | None = None
    """The workspace's spending, if a call was recorded."""
    warnings: Sequence[tuple[WarningKind, str]] = ()


@dataclass(frozen=True)
class Change(Generic[T]):
    """A request's effect on one conversation."""

    session: str | None = None
    """The conversation's id; None if the client named none."""
    model: str | None = None
    """The model that the client named with the request."""
    answered_model: str | None = None
    """The model that a reply named, if it is the conversation's own."""
    asks_endpoint: bool = False
    """Whether to ask the endpoint for a count of the whole chat afterwards."""
    makes_current: bool = True
    """Whether the change makes the conversation the newest one."""
    reads_first: bool = False
    """Whether `prepare` must be called."""
    needs_window: bool = False
    """Whether the result depends on the window, which is then looked up first."""
    forgets_calibration: bool = False
    """Whether the conversation's calibration starts afresh."""

    def prepare(self, model: str, named: str | None, settings: Settings) -> Change[T]:  # noqa: ARG002
        """Return the change with what must be read before there is a draft. Blocking.

        Args:
            model: of the conversation.
            named: the model that a client named for it.
            settings: of the workspace.
        """
        return self

    def apply(self, draft: Draft) -> Outcome[T]:
        """Change the draft. Blocking."""
        raise NotImplementedError


@dataclass(frozen=True)
class SetParts(Change[None]):
    """`context/set`."""

    params: p.SetParams = field(kw_only=True)
    documents: Mapping[int, FollowedText] = field(kw_only=True)
    """Followed documents by the `id()` of their section's params."""

    def apply(self, draft: Draft) -> Outcome[None]:
        apply_set(draft.session, self.params, lambda spec: self._source(id(spec)))
        return Outcome(None)

    def _source(self, spec: int) -> FollowedText:
        source = self.documents.get(spec)
        if source is None:
            raise BadParamsError("the section names no document")
        return source


@dataclass(frozen=True)
class AppendTurns(Change[None]):
    """`context/append`; `usage` or `total` is what was reported with the turns."""

    params: p.AppendParams = field(kw_only=True)
    usage: Usage | None = None
    total: int | None = None

    def apply(self, draft: Draft) -> Outcome[None]:
        anchored = draft.session.append(self.params.turns, self.usage, total=self.total)
        message = "The conversation was compacted by its client."
        return Outcome(
            None,
            usage=self.usage,
            samples=_samples(anchored),
            warnings=[("compacted", message)] if anchored.compacted else [],
        )


@dataclass(frozen=True)
class Reset(Change[None]):
    """`context/reset`."""

    forgets_calibration: bool = True

    def apply(self, draft: Draft) -> Outcome[None]:
        draft.conversation.reset()
        return Outcome(None)


@dataclass(frozen=True)
class Fit(Change[FitResult]):
    """`context/fit`."""

    params: p.FitParams = field(kw_only=True)
    keep_turns: int = field(kw_only=True)
    needs_window: bool = True

    def apply(self, draft: Draft) -> Outcome[FitResult]:
        plans, learned = draft.conversation.plans, draft.calibration
        return Outcome(
            plans.answer(self.params, draft.window, keep_turns=self.keep_turns, calibration=learned)
        )


@dataclass(frozen=True)
class Undo(Change[bool]):
    """`context/undo`; whether there was anything to undo."""

    def apply(self, draft: Draft) -> Outcome[bool]:
        return Outcome(draft.conversation.plans.undo())


@dataclass(frozen=True)
class Assemble(Change[AssembleResult]):
    """`context/assemble`."""

    params: p.AssembleParams = field(kw_only=True)
    makes_current: bool = False
    needs_window: bool = True

    def apply(self, draft: Draft) -> Outcome[AssembleResult]:
        session, assembler = draft.session, draft.conversation.assembler
        made = assembler.assemble(
            self.params, session.counter, session.sections, draft.window.usable
        )
        session.note_assembled({part.name: part.tokens for part in made.sections})
        return Outcome(made)


@dataclass(frozen=True)
class TakeReply(Change[ResponseResult]):
    """`context/response`: records the call, anchors the conversation."""

    params: p.ResponseParams = field(kw_only=True)
    reads_first: bool = True
    keep_turns: int = field(kw_only=True)
    spending: Spending = field(kw_only=True)
    commit: Callable[[], None] = field(kw_only=True)
    """Called before the call is recorded, which cannot be undone; raises if the request was
    cancelled."""
    reply: Reply | None = None
    asked_model: str | None = None
    """The model that a client named for the request or the conversation."""
    is_others: bool = False
    """Whether another model has replied than was asked."""

    def prepare(self, model: str, named: str | None, settings: Settings) -> TakeReply:
        reply = read_reply(self.params.response, self.params.format)
        asked = self.params.model or named
        return replace(
            self,
            reply=reply,
            asked_model=asked,
            answered_model=reply.model if is_others(reply.model, model, settings) else None,
            is_others=asked is not None and is_others(reply.model, asked, settings),
        )

    def apply(self, draft: Draft) -> Outcome[ResponseResult]:
        if self.reply is None:
            raise ValueError("the reply was not read")
        self.commit()
        spent, problem = self._record(draft, self.reply)
        handled, samples = self._handle(draft, self.reply)
        result = msgspec.structs.replace(
            handled.result, usage_recorded=problem is None, usage_problem=problem
        )
        return Outcome(
            result,
            usage=self.reply.usage,
            # Another model's reply says nothing of how the conversation's own model counts.
            samples=[] if self.is_others else samples,
            reply_sample=None if self.is_others else _reply_sample(draft.session, self.reply),
            refused_limit=handled.limit,
            spent=spent,
            warnings=handled.warnings,
        )

    def _record(self, draft: Draft, reply: Reply) -> tuple[Spent | None, str | None]:
        """Record the call, once per vendor's request id. Returns the sums, or why it failed."""
        from sidecar.cost.protocol import CostRecordParams

        named = reply.model if self.is_others else self.asked_model
        session, params = draft.session, self.params
        estimate = None
        if session.turns and not session.is_empty:
            estimate = estimated_prompt(session, draft.calibration).tokens
        call = CostRecordParams(
            model=named or reply.model or session.model,
            provider=params.provider,
            category=params.category or "main",
            usage={},
            session=session.id,
            request_id=reply.request_id or params.request_id,
            estimated_tokens=estimate,
        )
        try:
            _, spent = self.spending.record(call, reply, params.response)
        except SidecarError as exc:
            return None, str(exc)
        return spent, None

    def _handle(self, draft: Draft, reply: Reply) -> tuple[ReplyOutcome, list[Sample]]:
        samples: list[Sample] = []

        def learn(sample: Sample) -> None:
            sample.teach(draft.calibration)
            samples.append(sample)

        tools = self.params.tools
        handled = handle(
            draft.session,
            draft.conversation.plans,
            reply,
            draft.window,
            tools=getattr(draft.session.tools, "tools", []) if tools is None else tools,
            keep_turns=self.keep_turns,
            calibration=draft.calibration,
            learn=learn,
        )
        return handled, samples


def judge_prompt(
    draft: Draft,
    params: p.PreflightParams,
    alternatives: Alternatives,
    spending: Spending,
    warn_at: tuple[float, ...],
) -> tuple[PreflightResult, CostVerdict]:
    """Answer `context/preflight` for a draft, which is never committed. Blocking."""
    session = draft.session
    found = preflight(
        session,
        draft.window,
        params,
        models=(one for one in alternatives.all()),
        warn_at=warn_at,
        calibration=draft.calibration,
    )
    output = params.max_output_tokens or 0
    verdict = spending.preflight(session.model, found.prompt_tokens, output, session.id)
    reasons = [Reason(kind=reason.kind, message=reason.message) for reason in verdict.reasons]
    cost = None if verdict.estimate is None else float(verdict.estimate)
    result = msgspec.structs.replace(
        merged(found, verdict.verdict, reasons), estimated_cost_usd=cost
    )
    return result, verdict


def _samples(anchored: UsageUpdate) -> list[Sample]:
    return [] if anchored.sample is None else [anchored.sample]


def _reply_sample(session: Session, reply: Reply) -> tuple[int, int] | None:
    """Return a reply's tokens, estimated and reported, if all of it is sent back."""
    usage = reply.usage
    if usage is None or usage.reasoning_tokens or reply.tool_calls or not reply.content:
        return None
    return session.counter.text(reply.content).tokens, usage.output_tokens
