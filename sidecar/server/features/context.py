"""`context/*`: the conversations of a workspace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from sidecar.context.occupancy import calibration_info
from sidecar.context.preflight import merged, preflight
from sidecar.context.response import Handled, handle
from sidecar.context.results import (
    AssembleResult,
    FitResult,
    PreflightResult,
    Reason,
    ResponseResult,
)
from sidecar.context.setting import apply_set
from sidecar.context.usage import ContextUsage, SessionRow
from sidecar.errors import RequestError
from sidecar.messages.bounds import MOST_TOKENS
from sidecar.messages.replies import read_reply
from sidecar.messages.usage import Usage, normalise_usage
from sidecar.server.commitment import commitment
from sidecar.server.features.billing import record
from sidecar.workspace.counted_session import CountedSession
from sidecar.workspace.events import Event
from sidecar.workspace.followed import Followed, FollowedText
from sidecar.workspace.models import is_others
from sidecar.workspace.views import session_rows, usage_report
from sidecar.workspace.wording import fit_text, reset_text, undo_text

if TYPE_CHECKING:
    from sidecar.context import params as p
    from sidecar.context.model_counts import Anchored, Sample
    from sidecar.context.session import Session
    from sidecar.cost.caps import CostVerdict
    from sidecar.messages.reply import Reply
    from sidecar.server.server import SidecarServer
    from sidecar.text.positions import Range
    from sidecar.workspace.changes import Changes
    from sidecar.workspace.chat_asking import Draft
    from sidecar.workspace.documents import Documents
    from sidecar.workspace.spending import Spent

T = TypeVar("T")


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    handlers: dict[str, Callable[[Changes, Any], Awaitable[Any]]] = {
        "context/set": _set,
        "context/append": _append,
        "context/usage": partial(_usage, server),
        "context/sessions": partial(_sessions, server),
        "context/select": partial(_select, server),
        "context/reset": _reset,
        "context/fit": partial(_fit, server),
        "context/undo": partial(_undo, server),
        "context/assemble": _assemble,
        "context/response": _response,
        "context/preflight": partial(_preflight, server),
    }
    for method, handler in handlers.items():
        server.protocol.custom[method] = partial(_serve, server, handler)


async def _serve(
    server: SidecarServer,
    handler: Callable[[Changes, Any], Awaitable[T]],
    params: p.SessionParams | p.SessionsParams,
) -> T:
    session = getattr(params, "session", None)
    if session is not None and not session.isprintable():
        raise RequestError("badParams", "a session's id is printable text")
    services = server.services
    await services.configured.wait()
    return await handler(services.changes(services.workspace(params.workspace)), params)


async def _set(changes: Changes, params: p.SetParams) -> ContextUsage:
    documents = changes.services.documents
    # Made here, on the event loop: documents belong to it.
    sources = {
        id(spec): _followed(documents, spec.text_document.uri, spec.range)
        for spec in params.sections or ()
        if spec.text_document is not None
    }

    def work(draft: Draft) -> None:
        apply_set(draft.session, params, lambda spec: _source(sources.get(id(spec))))

    unnoticed = params.is_choice and not changes.sessions.choose(params.model or "")
    conversation, _ = await changes.change(
        params.session, work, model=params.model, ask=True, unnoticed=unnoticed
    )
    return changes.sessions.latest(conversation)


def _followed(documents: Documents, uri: str, span: Range | None) -> FollowedText:
    return Followed(documents.named(uri).uri, span, documents).text()


def _source(source: FollowedText | None) -> FollowedText:
    if source is None:
        raise RequestError("badParams", "the section names no document")
    return source


async def _append(changes: Changes, params: p.AppendParams) -> ContextUsage:
    total = _bare_total(params.usage)
    usage = None if total is not None else _vendor_usage(params.usage)
    sessions = changes.sessions

    def settle(session: Session, anchored: Anchored) -> None:
        if anchored.sample is not None:
            sessions.learn(session, anchored.sample)
        if anchored.compacted:
            message = "The conversation was compacted by its client."
            sessions.warn("compacted", message, None, session.id)

    def work(draft: Draft) -> Anchored:
        return draft.session.append(params.turns, usage, total=total)

    conversation, _ = await changes.change(
        params.session, work, settle=settle, ask=True, usage=usage
    )
    return sessions.latest(conversation)


def _bare_total(usage: dict[str, Any] | None) -> int | None:
    """Prompt and reply together, where a usage says nothing else."""
    if not usage or set(usage) != {"totalTokens"}:
        return None
    total = usage["totalTokens"]
    if isinstance(total, bool) or not isinstance(total, int) or not 0 <= total <= MOST_TOKENS:
        raise RequestError("badParams", "`totalTokens` is no number of tokens")
    return total


def _vendor_usage(usage: dict[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    found = normalise_usage(usage)
    if found is None:
        raise RequestError("badParams", "usage has no known vendor's form")
    return found


async def _find_older(server: SidecarServer, changes: Changes, session: str | None) -> None:
    """Look through all of the agents' sessions for one that is not known yet."""
    await changes.restore()
    sessions, workspace = changes.sessions, changes.workspace
    if session is None or sessions.reading(session) or changes.is_being_made(session):
        return
    await server.services.agents.look_for_all(workspace)
    found = sessions.reading(session)
    if isinstance(found, CountedSession) and found.model is not None:
        await changes.services.look_up(found.model, workspace.settings)


async def _usage(server: SidecarServer, changes: Changes, params: p.UsageParams) -> ContextUsage:
    await _find_older(server, changes, params.session)
    found = await changes.look(params.session)
    usage = None if found is None else changes.sessions.usage(found)
    return usage_report(usage, changes.workspace.costs)


async def _sessions(
    server: SidecarServer, changes: Changes, params: p.SessionsParams
) -> list[SessionRow]:
    workspace = changes.workspace
    await changes.bring_up()
    if params.all:
        await server.services.agents.look_for_all(workspace)
        if changes.sessions.is_stale:
            server.live.look()
    rows = changes.sessions.rows(every=params.all)
    for model in {row.model for row in rows if row.model and row.limit is None}:
        await changes.services.look_up(model, changes.workspace.settings)
        rows = changes.sessions.rows(every=params.all)
    if any(row.source != "protocol" for row in rows):
        server.history.read_soon(workspace)
    return session_rows(rows, workspace.costs)


async def _select(server: SidecarServer, changes: Changes, params: p.SelectParams) -> ContextUsage:
    await _find_older(server, changes, params.session)
    changes.sessions.select(params.session)
    await changes.refresh()
    return changes.sessions.state.usage or ContextUsage()


async def _reset(changes: Changes, params: p.ResetParams) -> ContextUsage:
    await changes.restore()
    shown = changes.sessions.reading(params.session)
    agents = shown.source if isinstance(shown, CountedSession) else None
    known = changes.sessions.store.get(changes.sessions.writing(params.session))
    if known is None and not changes.is_being_made(params.session):
        return ContextUsage(text=reset_text(agents, forgotten=False))

    conversation, _ = await changes.change(
        params.session,
        lambda draft: draft.conversation.reset(),
        settle=lambda session, _: changes.sessions.forget_calibration(session),
        unnoticed=agents is not None,
    )
    text = reset_text(agents, forgotten=known is None or not known.session.is_empty)
    return msgspec.structs.replace(changes.sessions.latest(conversation), text=text)


async def _fit(server: SidecarServer, changes: Changes, params: p.FitParams) -> FitResult:
    await _find_older(server, changes, params.session)
    name = changes.existing(params.session)
    keep = changes.workspace.settings.context.keep_turns

    def work(draft: Draft) -> FitResult:
        plans, learned = draft.conversation.plans, draft.calibration
        return plans.answer(params, draft.window, keep_turns=keep, calibration=learned)

    _, found = await changes.change(name, work, window=True)
    return msgspec.structs.replace(found, text=fit_text(found))


async def _undo(server: SidecarServer, changes: Changes, params: p.UndoParams) -> ContextUsage:
    await _find_older(server, changes, params.session)
    name = changes.existing(params.session)
    conversation, undone = await changes.change(name, lambda draft: draft.conversation.plans.undo())
    usage = changes.sessions.latest(conversation)
    return msgspec.structs.replace(usage, text=undo_text(usage, undone))


async def _assemble(changes: Changes, params: p.AssembleParams) -> AssembleResult:
    def work(draft: Draft) -> AssembleResult:
        session, assembler = draft.session, draft.conversation.assembler
        usable = draft.window.usable
        made = assembler.assemble(params, session.counter, session.sections, usable)
        session.note_assembled({part.name: part.tokens for part in made.sections})
        return made

    _, found = await changes.change(params.session, work, unnoticed=True, window=True)
    return found


class _Answered(NamedTuple):
    """What a worker has made of a reply."""

    handled: Handled
    samples: list[Sample]
    counted: int | None
    """Tokens of the reply's own text, where all of it is sent back."""
    spent: Spent | None
    problem: str | None
    """Why the usage was not recorded."""


async def _response(changes: Changes, params: p.ResponseParams) -> ResponseResult:
    billing = commitment()
    sessions, workspace = changes.sessions, changes.workspace
    spending = changes.services.spending(workspace)
    keep = workspace.settings.context.keep_turns
    named: dict[str, str] = {}
    reply: Reply
    own: str | None = None

    async def read() -> Usage | None:
        nonlocal reply, own
        named.update(sessions.models)
        found = partial(read_reply, params.response, params.format)
        reply = await changes.services.workers.run(found)
        mine = sessions.model_of(sessions.writing(params.session))
        judged = partial(is_others, reply.model, mine, workspace.settings)
        own = reply.model if await changes.services.workers.run(judged) else None
        return reply.usage

    def work(draft: Draft) -> _Answered:
        asked = params.model or named.get(draft.session.id)
        other = asked is not None and is_others(reply.model, asked, workspace.settings)
        model = reply.model if other else asked
        billing.make()
        spent, problem = record(spending, draft, reply, params, model)
        handled, samples = _handled(draft, reply, params.tools, keep)
        if other:  # it says nothing of how the session's own model counts
            return _Answered(handled, [], None, spent, problem)
        return _Answered(handled, samples, _counted_reply(draft.session, reply), spent, problem)

    def settle(session: Session, made: _Answered) -> None:
        for sample in made.samples:
            sessions.learn(session, sample)
        if made.counted is not None and reply.usage is not None:
            sessions.replied(session, made.counted, reply.usage.output_tokens)
        sessions.answered_by(session, own, made.handled.limit)
        workspace.costs.take(made.spent)

    conversation, made = await changes.change(
        params.session,
        work,
        model=params.model,
        settle=settle,
        read=read,
        answered=lambda: own,
    )
    usage = sessions.latest(conversation)
    for kind, message in made.handled.warnings:
        sessions.warn(kind, message, usage)
    changes.services.publish(Event("ledger", workspace))
    info = calibration_info(sessions.calibration(conversation.session))
    return msgspec.structs.replace(
        made.handled.result,
        calibration=info,
        usage_recorded=made.problem is None,
        usage_problem=made.problem,
    )


def _handled(
    draft: Draft, reply: Reply, tools: list[dict[str, Any]] | None, keep_turns: int
) -> tuple[Handled, list[Sample]]:
    """The reply as it is answered, and what it taught."""
    samples: list[Sample] = []

    def learn(sample: Sample) -> None:
        sample.teach(draft.calibration)
        samples.append(sample)

    known = getattr(draft.session.tools, "tools", [])
    handled = handle(
        draft.session,
        draft.conversation.plans,
        reply,
        draft.window,
        tools=known if tools is None else tools,
        keep_turns=keep_turns,
        calibration=draft.calibration,
        learn=learn,
    )
    return handled, samples


def _counted_reply(session: Session, reply: Reply) -> int | None:
    usage = reply.usage
    if usage is None or usage.reasoning_tokens or reply.tool_calls or not reply.content:
        return None
    return session.counter.text(reply.content).tokens


async def _preflight(
    server: SidecarServer, changes: Changes, params: p.PreflightParams
) -> PreflightResult:
    await _find_older(server, changes, params.session)
    draft = await changes.throwaway(params.session, params.model)
    session, workspace = draft.session, changes.workspace
    alternatives, spending = changes.alternatives(session), changes.services.spending(workspace)
    warn_at = workspace.settings.context.warn_at

    def work() -> tuple[PreflightResult, CostVerdict]:
        found = preflight(
            session,
            draft.window,
            params,
            models=(one for one in alternatives.all()),
            warn_at=warn_at,
            calibration=draft.calibration,
        )
        output = params.max_output_tokens or 0
        return found, spending.preflight(session.model, found.prompt_tokens, output, session.id)

    found, cost_verdict = await changes.services.workers.run(work)
    _warn_of_caps(changes, cost_verdict)
    reasons = [Reason(kind=reason.kind, message=reason.message) for reason in cost_verdict.reasons]
    cost = None if cost_verdict.estimate is None else float(cost_verdict.estimate)
    return msgspec.structs.replace(
        merged(found, cost_verdict.verdict, reasons), estimated_cost_usd=cost
    )


def _warn_of_caps(changes: Changes, cost_verdict: CostVerdict) -> None:
    """A new crossing of a cap is a warning."""
    costs, sessions = changes.workspace.costs, changes.sessions
    capped = [reason.message for reason in cost_verdict.reasons if reason.kind.endswith("Cap")]
    if capped and not costs.warned:
        sessions.warn("cap", " ".join(capped), sessions.state.usage)
    costs.warned = bool(capped)
