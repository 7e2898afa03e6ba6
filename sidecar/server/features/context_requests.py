"""Handles `context/*` requests for a workspace's conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from sidecar.agents.session_events import StoredSession
from sidecar.conversations import context_protocol as p
from sidecar.conversations.changes import (
    AppendTurns,
    ApplyReply,
    Assemble,
    Fit,
    Reset,
    SetParts,
    Undo,
    check_prompt_and_cost,
)
from sidecar.conversations.context_protocol import (
    AssembleResult,
    ContextUsage,
    FitResult,
    PreflightResult,
    ResponseResult,
    SessionRow,
)
from sidecar.conversations.occupancy import calibration_info
from sidecar.errors import BadParamsError, SidecarError
from sidecar.messages.vendor_usage import MOST_TOKENS, Usage, normalize_usage
from sidecar.server.protocol import Encoded, Feature
from sidecar.text.pages import Page
from sidecar.workspace.conversations import Conversations
from sidecar.workspace.services import Services
from sidecar.workspace.sessions import SessionsSnapshot
from sidecar.workspace.spending import Spending
from sidecar.workspace.usage_details import add_details
from sidecar.workspace.views import (
    add_view_to_usage,
    format_fit_result,
    format_reset_result,
    format_undo_result,
    session_rows,
    usage_page,
)
from sidecar.workspace.workspace import Workspace

if TYPE_CHECKING:
    from sidecar.workspace.footprint_report import FootprintParams, FootprintReport


class ContextRequests(Feature):
    """Finds the conversation that a request means, and turns the request into a change of it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        serve: dict[str, Callable[[Conversations, Any], Awaitable[Any]]] = {
            "context/set": _set,
            "context/append": _append,
            "context/usage": self._usage,
            "context/page": self._page,
            "context/footprint": self._footprint,
            "context/footprintPage": self._footprint_page,
            "context/sessions": self._sessions,
            "context/select": self._select,
            "context/reset": _reset,
            "context/fit": self._fit,
            "context/undo": self._undo,
            "context/assemble": _assemble,
            "context/response": _response,
            "context/preflight": self._preflight,
        }
        self.handlers = {method: partial(self._serve, work) for method, work in serve.items()}

    async def _serve(
        self,
        work: Callable[[Conversations, Any], Awaitable[Any]],
        params: p.SessionParams | p.SessionsParams | FootprintParams,
    ) -> Any:
        session = getattr(params, "session", None)
        if session is not None and not session.isprintable():
            raise BadParamsError("a session id must be printable text")
        services = self._services
        await services.configured.wait()
        conversations = services.conversations(services.workspace(params.workspace))
        await conversations.restore_in_order()
        return await work(conversations, params)

    async def _find_session(self, conversations: Conversations, session: str | None) -> None:
        sessions, workspace = conversations.sessions, conversations.workspace
        if session is None or sessions.find(session) or conversations.is_changing(session):
            return
        await self._services.agents.find_all_sessions(workspace)
        stored = sessions.find(session)
        if isinstance(stored, StoredSession) and stored.model is not None:
            await conversations.services.counts.load_window_and_price(
                stored.model, workspace.settings
            )

    async def _usage(self, conversations: Conversations, params: p.UsageParams) -> ContextUsage:
        await self._find_session(conversations, params.session)
        await _read_cost(conversations, params.session)
        session = await conversations.find_counted(params.session)
        workspace = conversations.workspace
        if session is None:
            return add_view_to_usage(None, workspace.costs)
        usage = conversations.sessions.usage(session)
        usage = await add_details(
            self._services, workspace, session, usage, contents=params.contents
        )
        return add_view_to_usage(usage, workspace.costs)

    async def _page(self, conversations: Conversations, params: p.UsageParams) -> Page:
        from sidecar.conversations.context_page import is_empty

        usage = await self._usage(conversations, msgspec.structs.replace(params, contents=True))
        page = usage_page(usage, conversations.workspace.costs)
        if is_empty(usage):
            return await self._add_footprint(page, conversations.workspace)
        return page

    async def _add_footprint(self, page: Page, workspace: Workspace) -> Page:
        """Add what agents send before the first word, unless agents are disabled."""
        from sidecar.workspace.footprint_report import FootprintParams, add_footprint
        from sidecar.workspace.footprints import footprints_of

        work = footprints_of(self._services, workspace, FootprintParams(), finds_uses=False)
        try:
            return add_footprint(page, await work)
        except BadParamsError:
            return page

    async def _footprint(
        self, conversations: Conversations, params: FootprintParams
    ) -> FootprintReport:
        from sidecar.workspace.footprints import MOST_READ, footprints_of

        await self._services.agents.find_all_sessions(conversations.workspace, MOST_READ)
        return await footprints_of(self._services, conversations.workspace, params)

    async def _footprint_page(self, conversations: Conversations, params: FootprintParams) -> Page:
        from sidecar.workspace.footprint_report import footprint_page

        return footprint_page(await self._footprint(conversations, params))

    async def _sessions(self, conversations: Conversations, params: p.SessionsParams) -> Encoded:
        workspace = conversations.workspace
        await conversations.recount()
        if params.all:
            await self._services.agents.find_all_sessions(workspace)
        services, snapshot = (
            conversations.services,
            conversations.sessions.snapshot(every=params.all),
        )
        if models := snapshot.models_without_limit:
            for model in models:
                await services.counts.load_window_and_price(model, workspace.settings)
            snapshot = conversations.sessions.snapshot(every=params.all)
        work = partial(_list_sessions, snapshot, services.spending(workspace), params)
        return await services.workers.run(lambda: Encoded.of(work()))

    async def _select(self, conversations: Conversations, params: p.SelectParams) -> ContextUsage:
        await self._find_session(conversations, params.session)
        if params.session is not None:
            await _read_cost(conversations, params.session)
            await conversations.find_counted(params.session)  # reads the name
        conversations.sessions.select(params.session)
        await conversations.refresh()
        return conversations.sessions.context.usage or ContextUsage()

    async def _fit(self, conversations: Conversations, params: p.FitParams) -> FitResult:
        await self._find_session(conversations, params.session)
        name = conversations.id_with_text(params.session)
        await conversations.look_up_window(conversations.model_of(name))
        keep_turns = conversations.workspace.settings.context.keep_turns
        _, result = await conversations.apply(
            Fit(session=name, params=params, keep_turns=keep_turns)
        )
        return msgspec.structs.replace(result, text=format_fit_result(result))

    async def _undo(self, conversations: Conversations, params: p.UndoParams) -> ContextUsage:
        await self._find_session(conversations, params.session)
        name = conversations.id_with_text(params.session)
        conversation, undone = await conversations.apply(Undo(session=name))
        usage = conversations.sessions.shown_usage(conversation)
        return msgspec.structs.replace(usage, text=format_undo_result(usage, undone))

    async def _preflight(
        self, conversations: Conversations, params: p.PreflightParams
    ) -> PreflightResult:
        await self._find_session(conversations, params.session)
        draft = await conversations.draft_for_preflight(params.session, params.model)
        services, workspace = conversations.services, conversations.workspace
        judge = partial(
            check_prompt_and_cost,
            draft,
            params,
            conversations.alternatives(draft.conversation),
            services.spending(workspace),
            workspace.settings.context.warn_at,
        )
        result, cost_verdict = await services.workers.run(judge)
        session = draft.conversation.id
        if message := services.report_new_caps(workspace, cost_verdict.reasons, session):
            conversations.sessions.warn("cap", message, conversations.sessions.context.usage)
        return result


async def _set(conversations: Conversations, params: p.SetParams) -> ContextUsage:
    documents = conversations.services.documents
    change = SetParts(
        session=params.session,
        model=None if params.model is UNSET else params.model or "",
        makes_current=not params.is_choice
        or conversations.sessions.choose_model(params.model or None),
        params=params,
        # Documents may only be read on the event loop, not on the worker thread.
        documents={
            id(spec): documents.follow(spec.text_document.uri, spec.range)
            for spec in params.sections or ()
            if spec.text_document is not None
        },
    )
    conversation, _ = await conversations.apply(change)
    return conversations.sessions.shown_usage(conversation)


async def _append(conversations: Conversations, params: p.AppendParams) -> ContextUsage:
    total = _bare_total(params.usage)
    change = AppendTurns(
        session=params.session,
        params=params,
        usage=None if total is not None else _vendor_usage(params.usage),
        total=total,
    )
    conversation, _ = await conversations.apply(change)
    return conversations.sessions.shown_usage(conversation)


def _bare_total(usage: dict[str, Any] | None) -> int | None:
    if not usage or set(usage) != {"totalTokens"}:
        return None
    total = usage["totalTokens"]
    if isinstance(total, bool) or not isinstance(total, int) or not 0 <= total <= MOST_TOKENS:
        raise BadParamsError("`totalTokens` must be a number of tokens")
    return total


def _vendor_usage(usage: dict[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    normalized = normalize_usage(usage)
    if normalized is None:
        raise BadParamsError("`usage` is not in a known vendor's format")
    return normalized


async def _read_cost(conversations: Conversations, session: str | None) -> None:
    """Update a session's cost, which may be outdated if the session is not displayed."""
    if session is None:
        return
    services, workspace = conversations.services, conversations.workspace
    spending = services.spending(workspace)
    with suppress(SidecarError):  # the error is reported when a client requests costs
        workspace.costs.update_sessions(
            *await services.workers.run(partial(spending.session_costs, session))
        )


def _list_sessions(
    snapshot: SessionsSnapshot, spending: Spending, params: p.SessionsParams
) -> list[SessionRow]:
    costs, costliest = snapshot.costs, list[str]()
    with suppress(SidecarError):  # the error is reported when a client requests costs
        costliest = spending.sessions_by_cost() if params.order == "cost" else []
    first = snapshot.first(params.limit, params.order, ended=params.ended, costliest=costliest)
    has_all = params.all and params.limit is None
    with suppress(SidecarError):
        costs.sessions.update(spending.cost_by_session(None if has_all else first.sessions))
    return session_rows(first.rows(), costs)


async def _reset(conversations: Conversations, params: p.ResetParams) -> ContextUsage:
    sessions = conversations.sessions
    shown = sessions.find(params.session)
    agent = shown.source if isinstance(shown, StoredSession) else None
    stored = sessions.conversations.get(sessions.id_to_change(params.session))
    if stored is None and not conversations.is_changing(params.session):
        return ContextUsage(text=format_reset_result(agent, is_reset=False))

    change = Reset(session=params.session, makes_current=agent is None)
    conversation, _ = await conversations.apply(change)
    text = format_reset_result(agent, is_reset=stored is None or not stored.is_empty)
    return msgspec.structs.replace(sessions.shown_usage(conversation), text=text)


async def _assemble(conversations: Conversations, params: p.AssembleParams) -> AssembleResult:
    name = conversations.sessions.id_to_change(params.session)
    await conversations.look_up_window(conversations.model_of(name))
    _, result = await conversations.apply(Assemble(session=name, params=params))
    return result


async def _response(conversations: Conversations, params: p.ResponseParams) -> ResponseResult:
    workspace, services = conversations.workspace, conversations.services
    change = ApplyReply(
        session=params.session,
        model=params.model,
        params=params,
        keep_turns=workspace.settings.context.keep_turns,
        spending=services.spending(workspace),
    )
    conversation, result = await conversations.apply(change)
    calibration = conversations.sessions.calibration_of(conversation)
    return msgspec.structs.replace(result, calibration=calibration_info(calibration))
