"""Contexts that follow what they rest on: open buffers, settings, models, endpoints, the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer
    from sidecar.text.document import TextDocument
    from sidecar.text.positions import Range
    from sidecar.workspace.events import Event

DEBOUNCE_SECONDS = 0.075


class Following:
    """Works a workspace's context out again a little after something under it has changed."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        server.services.listeners.append(self.on_event)

    def about_to_edit(self, document: TextDocument, span: Range | None, text: str) -> None:
        """Let ranges that a context follows move with their text."""
        texts = self._server.services.roots.of_document(document.uri).followed()
        mine = {one.followed for one in texts if one.followed.uri == document.uri}
        if mine:
            place = (0, document.characters) if span is None else document.offsets(span)
            for followed in mine:
                followed.edited(*place, len(text))

    def on_event(self, event: Event) -> None:
        """Have the contexts that an event concerns worked out again."""
        if event.what not in ("document", "settings", "endpoint", "ledger"):
            return
        services = self._server.services
        for workspace in services.roots:
            sessions = services.known_sessions(workspace)
            if sessions is None or not event.concerns(workspace):
                continue
            texts = workspace.followed()
            if event.uri is None or any(one.followed.uri == event.uri for one in texts):
                key = "following", workspace
                fed = any(
                    sessions.store
                )  # else agents' sessions alone, of which nothing is counted
                work = services.conversations(workspace).refresh if fed else sessions.publish
                self._server.scheduler.soon(key, DEBOUNCE_SECONDS, work)
