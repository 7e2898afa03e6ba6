"""`context/*`: the conversation of a workspace, one request at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sidecar.context.occupancy import calibration_info, estimated_prompt
from sidecar.context.persist import restore, save
from sidecar.context.preflight import merged, preflight
from sidecar.context.response import Handled, handle
from sidecar.context.results import (
    AssembleResult,
    ContextUsage,
    FitResult,
    PreflightResult,
    Reason,
    ResponseResult,
)
from sidecar.context.setting import apply_set
from sidecar.endpoints.errors import VendorFormatError
from sidecar.endpoints.replies import Reply, read_reply
from sidecar.endpoints.usage import Usage, normalise_usage
from sidecar.server.errors import log_defect
from sidecar.workspace.conversations import ConversationRoom
from sidecar.workspace.errors import RequestError
from sidecar.workspace.followed import FollowedDocument

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.context import params as p
    from sidecar.context.store import Conversation
    from sidecar.server.server import SidecarServer

T = TypeVar("T")


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    handlers: dict[str, Callable[[ConversationRoom, Any], Awaitable[Any]]] = {
        "context/set": _set,
        "context/append": _append,
        "context/usage": _usage,
        "context/reset": _reset,
        "context/fit": _fit,
        "context/undo": _undo,
        "context/assemble": _assemble,
        "context/response": _response,
        "context/preflight": _preflight,
    }
    for method, handler in handlers.items():
        server.protocol.custom[method] = partial(_serve, server, handler)


async def _serve(
    server: SidecarServer,
    handler: Callable[[ConversationRoom, Any], Awaitable[T]],
    params: p.SessionParams,
) -> T:
    """Answer one request while no other of this workspace runs; then tell what it changed."""
    services = server.services
    await services.configured.wait()
    workspace = services.roots.find(params.workspace)
    room = ConversationRoom(services, workspace)
    async with workspace.talk.lock:
        await _restore(room)
        result = await handler(room, params)
        await room.run(room.show)
    server.following.told(workspace, room)
    await _keep(room)
    return result


async def _restore(room: ConversationRoom) -> None:
    """Once: the sessions that a client asked to keep, by their counts."""
    talk, uri = room.talk, room.workspace.uri
    if talk.restored or uri is None:
        return
    talk.restored = True

    def work() -> None:
        for saved in room.services.state.sessions(uri):
            talk.conversations.add(restore(saved, room.counter(saved.model)))
            talk.models[saved.id] = saved.model

    await room.run(work)


async def _keep(room: ConversationRoom) -> None:
    """Write what is to outlive the server; a full disk is no reason to fail a request."""
    uri = room.workspace.uri
    kept = [one.session for one in room.talk.conversations if one.session.persist]

    def work() -> None:
        room.services.state.save()
        if kept and uri is not None:
            room.services.state.save_sessions(uri, [save(session) for session in kept])

    try:
        await room.services.counting.run(work)
    except OSError as exc:
        log_defect(exc)


async def _set(room: ConversationRoom, params: p.SetParams) -> ContextUsage:
    documents = room.services.documents
    # Made here, on the event loop: documents belong to it.
    sources = {
        index: FollowedDocument(_known(room, spec.text_document.uri), spec.range, documents)
        for index, spec in enumerate(params.sections or ())
        if spec.text_document is not None
    }
    by_spec = {id(spec): sources.get(index) for index, spec in enumerate(params.sections or ())}

    def work() -> Conversation:
        conversation = room.open(params.session, params.model)
        apply_set(conversation.session, params, lambda spec: _source(by_spec[id(spec)]))
        return conversation

    conversation = await room.run(work)
    await room.ask_limit(conversation.session.model)
    await room.count_chat(conversation, len(conversation.session.turns))
    return await room.run(partial(room.usage, conversation))


def _known(room: ConversationRoom, uri: str) -> str:
    return room.services.document(uri).uri


def _source(source: FollowedDocument | None) -> FollowedDocument:
    if source is None:
        raise RequestError("badParams", "the section names no document")
    return source


async def _append(room: ConversationRoom, params: p.AppendParams) -> ContextUsage:
    usage = _vendor_usage(params.usage)

    def work() -> tuple[Conversation, int]:
        conversation = room.open(params.session)
        session = conversation.session
        first = len(session.turns)
        anchored = session.append(params.turns, usage)
        room.learn(session, anchored)
        if anchored.compacted:
            room.warn("compacted", "The conversation was compacted by its client.", None)
        return conversation, first

    conversation, first = await room.run(work)
    await room.ask_limit(conversation.session.model)
    await room.count_chat(conversation, first)
    return await room.run(partial(room.usage, conversation))


def _vendor_usage(usage: dict[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    found = normalise_usage(usage)
    if found is None:
        raise RequestError("badParams", "usage has no known vendor's form")
    return found


async def _usage(room: ConversationRoom, params: p.UsageParams) -> ContextUsage:
    conversation = room.talk.conversations.get(params.session)
    if conversation is None:
        return ContextUsage()
    return await room.run(lambda: room.usage(_current(room, conversation)))


def _current(room: ConversationRoom, conversation: Conversation) -> Conversation:
    """The conversation, counting for the model that it has now."""
    room.use_model(conversation.session, room.model_of(conversation.session.id))
    return conversation


async def _reset(room: ConversationRoom, params: p.ResetParams) -> ContextUsage:
    conversation = room.talk.conversations.get(params.session)
    if conversation is None:
        return ContextUsage()
    room.talk.calibrations.pop(conversation.session.id, None)

    def work() -> ContextUsage:
        conversation.reset()
        return room.usage(conversation)

    return await room.run(work)


async def _fit(room: ConversationRoom, params: p.FitParams) -> FitResult:
    conversation = _existing(room, params.session)
    settings = room.workspace.settings.context

    def work() -> FitResult:
        plans, session = conversation.plans, conversation.session
        if params.plan_id is not None and params.apply:
            return plans.apply(params.plan_id)
        limit = params.max_tokens
        plan = plans.make(
            room.window(session).usable if limit is None else limit,
            keep_turns=settings.keep_turns if params.keep_turns is None else params.keep_turns,
            summarize=params.strategy == "summarize",
            calibration=room.calibration(session),
        )
        return plans.apply(plan.plan_id) if params.apply else plan

    return await room.run(work)


def _existing(room: ConversationRoom, session: str | None) -> Conversation:
    conversation = room.talk.conversations.get(session)
    if conversation is None:
        raise RequestError("badParams", "there is no such session in this workspace")
    return _current(room, conversation)


async def _undo(room: ConversationRoom, params: p.UndoParams) -> ContextUsage:
    conversation = _existing(room, params.session)

    def work() -> ContextUsage:
        conversation.plans.undo()
        return room.usage(conversation)

    return await room.run(work)


async def _assemble(room: ConversationRoom, params: p.AssembleParams) -> AssembleResult:
    def work() -> AssembleResult:
        conversation = room.open(params.session)
        session = conversation.session
        return conversation.assembler.assemble(
            params, session.counter, session.sections, room.window(session).usable
        )

    return await room.run(work)


async def _response(room: ConversationRoom, params: p.ResponseParams) -> ResponseResult:
    def work() -> ResponseResult:
        try:
            reply = read_reply(params.response, params.format)
        except VendorFormatError as exc:
            raise RequestError("badParams", str(exc)) from None
        conversation = room.open(params.session, params.model)
        estimate = _estimate(room, conversation)
        handled = _handled(room, conversation, reply, params.tools)
        room.record_reply(conversation.session, reply, params, estimate)
        return _answer(room, conversation, handled)

    return await room.run(work)


def _estimate(room: ConversationRoom, conversation: Conversation) -> int | None:
    """What was thought to be sent, before the reply says what it was."""
    session = conversation.session
    if session.is_empty or not session.turns:
        return None
    return estimated_prompt(session, room.calibration(session)).tokens


def _handled(
    room: ConversationRoom,
    conversation: Conversation,
    reply: Reply,
    tools: list[dict[str, Any]] | None,
) -> Handled:
    session = conversation.session
    own = getattr(session.tools, "tools", [])
    handled = handle(
        session,
        conversation.plans,
        reply,
        room.window(session),
        tools=own if tools is None else tools,
        keep_turns=room.workspace.settings.context.keep_turns,
        calibration=room.calibration(session),
    )
    room.learn(session, handled.anchored)
    room.learn_reply(session, reply)
    return handled


def _answer(room: ConversationRoom, conversation: Conversation, handled: Handled) -> ResponseResult:
    usage = room.usage(conversation)
    for kind, message in handled.warnings:
        room.warn(kind, message, usage)
    learned = calibration_info(room.calibration(conversation.session))
    return msgspec.structs.replace(handled.result, calibration=learned)


async def _preflight(room: ConversationRoom, params: p.PreflightParams) -> PreflightResult:
    await room.ask_limit(params.model or room.model_of(params.session))

    def work() -> PreflightResult:
        conversation = room.open(params.session)
        session = conversation.session
        own = session.model
        room.use_model(session, params.model or own)
        try:
            found = _room_for(room, conversation, params)
        finally:
            room.use_model(session, own)
        return _with_cost(room, session.id, params.model or own, params, found)

    return await room.run(work)


def _room_for(
    room: ConversationRoom, conversation: Conversation, params: p.PreflightParams
) -> PreflightResult:
    session = conversation.session
    return preflight(
        session,
        room.window(session),
        params,
        models=(one for one in room.alternatives(session)),
        warn_at=room.workspace.settings.context.warn_at,
        calibration=room.calibration(session),
    )


def _with_cost(
    room: ConversationRoom,
    session: str,
    model: str,
    params: p.PreflightParams,
    found: PreflightResult,
) -> PreflightResult:
    """The verdict with what it costs, and what the caps say to that."""
    said = room.judge_cost(model, found.prompt_tokens, params.max_output_tokens or 0, session)
    reasons = [Reason(kind=reason.kind, message=reason.message) for reason in said.reasons]
    cost = None if said.estimate is None else float(said.estimate)
    result = merged(found, said.verdict, reasons)
    return msgspec.structs.replace(result, estimated_cost_usd=cost)
