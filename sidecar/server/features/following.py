"""Contexts that follow open buffers: an edit of such a buffer changes how full the context is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sidecar.counting.incremental import Stopped
from sidecar.server.errors import log_defect

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.text.positions import Range
    from sidecar.workspace.conversations import ConversationRoom
    from sidecar.workspace.workspace import Workspace

DEBOUNCE_SECONDS = 0.075


class Following:
    """Looks at a workspace's context again a little after a buffer in it was edited."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._due: dict[int, asyncio.TimerHandle] = {}
        self._running: set[asyncio.Task[None]] = set()

    def about_to_edit(self, document: TextDocument, span: Range | None, text: str) -> None:
        """Let ranges that a context follows move with their text.

        Raises:
            ValueError: the range is none.
        """
        talk = self._server.services.roots.of_document(document.uri).known_talk
        if talk is None:
            return
        mine = [source for source in talk.followed() if source.uri == document.uri]
        if mine:
            place = (0, document.characters) if span is None else document.offsets(span)
            for source in mine:
                source.edited(*place, len(text))

    def edited(self, uri: str) -> None:
        """A document was edited."""
        workspace = self._server.services.roots.of_document(uri)
        talk = workspace.known_talk
        if talk is None or id(workspace) in self._due:
            return
        if any(source.uri == uri for source in talk.followed()):
            loop = asyncio.get_running_loop()
            self._due[id(workspace)] = loop.call_later(DEBOUNCE_SECONDS, self._start, workspace)

    def told(self, workspace: Workspace, room: ConversationRoom) -> None:
        """Send what a look at the context has found."""
        for warning in room.warnings:
            self._server.protocol.push("context/warning", warning)
        self._server.status.context_changed(workspace)
        if workspace.settings.diagnostics.prompt_buffers:
            for source in workspace.talk.followed():
                self._server.diagnostics.changed(source.uri)

    def _start(self, workspace: Workspace) -> None:
        del self._due[id(workspace)]
        task = asyncio.ensure_future(self._look(workspace))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _look(self, workspace: Workspace) -> None:
        from sidecar.workspace.conversations import ConversationRoom

        room = ConversationRoom(self._server.services, workspace)
        try:
            async with workspace.talk.lock:
                await room.run(room.show)
        except Stopped:
            return
        except Exception as exc:  # nobody awaits this task
            log_defect(exc)
            return
        self.told(workspace, room)
