"""Server commands with quick results, for every client that can run `workspace/executeCommand`.

Their ids begin `tokenSidecar.server.`; the answer is for shims, the message for people whose editor
has none. Nothing pops up but after such an action of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from sidecar.server.features.parts import parts_of
from sidecar.workspace.errors import RequestError
from sidecar.workspace.status import comparison, tokens_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.context.params import FitParams
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

PREFIX = "tokenSidecar.server."
HEAVIEST_SHOWN = 8
CHOICES = {"Prune": "drop", "Summarise": "summarize"}
SWITCH, GO_ON, REMEMBER = "Switch model", "Go on", "Go on, and do not ask again"


def register(server: SidecarServer) -> None:
    """Register the commands."""

    @server.command(f"{PREFIX}heaviestSections")
    async def heaviest(*arguments: Any) -> list[dict[str, Any]]:
        uri = _uri(arguments)
        parts = sorted(await parts_of(server, uri), key=lambda one: -one.tokens)
        found: list[dict[str, Any]] = [
            {"title": one.part.title, "line": one.part.start_line, "tokens": one.tokens}
            for one in parts[:HEAVIEST_SHOWN]
        ]
        lines = [f"{row['tokens']:>8,}  {row['title']} (line {row['line'] + 1})" for row in found]
        _tell(server, "Heaviest sections:\n" + "\n".join(lines) if lines else "No sections here.")
        return found

    @server.command(f"{PREFIX}compareModels")
    async def compare(*arguments: Any) -> str:
        services, uri = server.services, _uri(arguments)
        await services.configured.wait()
        document, workspace = services.document(uri), services.roots.of_document(uri)
        models = dict.fromkeys((workspace.model, *map(str, arguments[1:])))
        counts = [
            (await services.count_document(document, model, workspace)).count for model in models
        ]
        shown = ", ".join(f"{one.model} {tokens_text(one.tokens, one.method)}" for one in counts)
        _tell(server, shown)
        return comparison("This document", counts)

    @server.command(f"{PREFIX}resolveFullContext")
    async def resolve(*arguments: Any) -> str | None:
        session, root = (*arguments, None, None)[:2]
        await server.services.configured.wait()
        workspace = server.services.workspace(_text(root))
        return await _resolve(server, workspace, _text(session))


def _text(argument: object) -> str | None:
    return None if argument is None else str(argument)


def _uri(arguments: tuple[Any, ...]) -> str:
    if not arguments or not isinstance(arguments[0], str):
        raise RequestError("badParams", "the first argument is the document's URI")
    return arguments[0]


def _tell(server: SidecarServer, text: str) -> None:
    server.window_show_message(types.ShowMessageParams(types.MessageType.Info, text))


async def _resolve(server: SidecarServer, workspace: Workspace, session: str | None) -> str | None:
    """Ask what to do about a full context; the person has just asked for it."""
    if workspace.talk.remembered is not None:
        return workspace.talk.remembered
    usage = workspace.talk.shown
    if usage is None or usage.tokens is None:
        raise RequestError("badParams", "there is no conversation")
    actions = [types.MessageActionItem(name) for name in (*CHOICES, SWITCH, GO_ON, REMEMBER)]
    text = f"The context is at {usage.percent}%. What to do?"
    answer = await server.window_show_message_request_async(
        types.ShowMessageRequestParams(types.MessageType.Info, text, actions)
    )
    chosen = answer.title if answer is not None else None
    if chosen == REMEMBER:
        workspace.talk.remembered = GO_ON
        return GO_ON
    if chosen in CHOICES:
        await _call(server, "context/fit", _plan(workspace, session, CHOICES[chosen]))
    if chosen == SWITCH:
        await _switch(server, workspace, session)
    return chosen


def _plan(workspace: Workspace, session: str | None, strategy: Any) -> FitParams:
    from sidecar.context.params import FitParams

    return FitParams(workspace=workspace.uri, session=session, strategy=strategy, apply=True)


async def _switch(server: SidecarServer, workspace: Workspace, session: str | None) -> None:
    """Offer the models whose window would hold the conversation."""
    from sidecar.context.params import SetParams
    from sidecar.workspace.conversations import ConversationRoom

    room = ConversationRoom(server.services, workspace)
    conversation = workspace.talk.conversations.get(session)
    usage = workspace.talk.shown
    if conversation is None or usage is None or usage.tokens is None:
        return
    async with workspace.talk.lock:
        offered = await room.run(lambda: room.offers(conversation.session, usage))
    actions = [types.MessageActionItem(one.model) for one in offered]
    answer = await server.window_show_message_request_async(
        types.ShowMessageRequestParams(types.MessageType.Info, "Switch to which model?", actions)
    )
    if answer is not None:
        await _call(
            server,
            "context/set",
            SetParams(workspace=workspace.uri, session=session, model=answer.title),
        )


async def _call(server: SidecarServer, method: str, params: Any) -> None:
    handler: Callable[[Any], Awaitable[Any]] = server.protocol.custom[method]
    await handler(params)
