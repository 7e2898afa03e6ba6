"""`context/*`: the conversation of a workspace, one request at a time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sidecar.context.occupancy import calibration_info, estimated_prompt
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
from sidecar.workspace.conversations import ConversationRoom
from sidecar.workspace.errors import RequestError
from sidecar.workspace.followed import FollowedDocument
from sidecar.workspace.wording import context_text

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
    """Answer one request. What was begun is finished even where its client gives it up: a
    conversation that was changed halfway would count wrongly for ever."""
    _check_id(params.session)
    work = asyncio.ensure_future(_locked(server, handler, params))
    return await asyncio.shield(work)


async def _locked(
    server: SidecarServer,
    handler: Callable[[ConversationRoom, Any], Awaitable[T]],
    params: p.SessionParams,
) -> T:
    """Run a request while no other of its workspace runs; then tell and keep what it changed."""
    services = server.services
    await services.configured.wait()
    workspace = services.workspace(params.workspace)
    room = ConversationRoom(services, workspace)
    async with workspace.talk.lock:
        before = workspace.model
        try:
            await room.restore()
            result = await handler(room, params)
        finally:
            await room.run(room.show)
            await room.keep()
            server.following.told(workspace, room)
            if workspace.model != before:
                server.model_changed()
    return result


def _check_id(session: str | None) -> None:
    if session is not None and not session.isprintable():
        raise RequestError("badParams", "a session's id is printable text")


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
        if anchored.sample is not None:
            room.learn(session, anchored.sample)
        if anchored.compacted:
            message = "The conversation was compacted by its client."
            room.warn("compacted", message, None, session.id)
        return conversation, first

    conversation, first = await room.run(work)
    await room.ask_limit(conversation.session.model)
    await room.count_chat(conversation, first)
    return await room.run(partial(room.usage, conversation))


def _vendor_usage(usage: dict[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    try:
        found = normalise_usage(usage)
    except VendorFormatError as exc:
        raise RequestError("badParams", str(exc)) from None
    if found is None:
        raise RequestError("badParams", "usage has no known vendor's form")
    return found


async def _usage(room: ConversationRoom, params: p.UsageParams) -> ContextUsage:
    conversation = room.talk.conversations.get(params.session)
    if conversation is None:
        return ContextUsage()
    usage = await room.run(lambda: room.usage(_current(room, conversation)))
    return msgspec.structs.replace(usage, text=context_text(usage))


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
    session, keep = conversation.session, room.workspace.settings.context.keep_turns

    def work() -> FitResult:
        calibration, window = room.calibration(session), room.window(session)
        return conversation.plans.answer(params, window, keep_turns=keep, calibration=calibration)

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
        conversation = room.open_unnoticed(params.session)
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
        # Recorded first: where the ledger cannot be written, the session is as it was.
        room.record_reply(conversation.session, reply, params, estimate)
        return _answer(room, conversation, _handled(room, conversation, reply, params.tools))

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
        learn=partial(room.learn, session),
    )
    room.learn_reply(session, reply)
    if handled.limit is not None:
        room.talk.refused_limits[session.model] = handled.limit
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
        conversation = room.existing_or_new(params.session)
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
