"""`status/update`: once for each opened document, then whenever what it shows has changed.

Updates come at most every 75 ms while somebody types; the timer is not put off by further keys,
so the number follows the typing instead of waiting for a pause.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.incremental import Stopped
from sidecar.server.errors import log_defect
from sidecar.workspace.counting import INLINE_CHARACTERS
from sidecar.workspace.services import DOCUMENT_SECONDS, TEXT_SECONDS, Counted
from sidecar.workspace.status import (
    StatusUpdate,
    document_severity,
    document_status,
    graver,
    status_update,
)
from sidecar.workspace.verdicts import budget_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.counting.count import Count
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.workspace import Workspace

DEBOUNCE_SECONDS = 0.075


@dataclass(eq=False)
class _Entry:
    """One open document: what was sent last, and what is under way."""

    sent: StatusUpdate | None = None
    timer: asyncio.TimerHandle | None = None
    counting: asyncio.Task[None] | None = None


class StatusBoard:
    """Decides when each document's status is worked out and whether it is sent."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._entries: dict[str, _Entry] = {}
        self._bare: StatusUpdate | None = None

    def opened(self, uri: str) -> None:
        """A document was opened (again): its status is due at once."""
        self._forget(uri)
        self._bare = None  # the document's own updates stand for it
        self._entries[uri] = _Entry()
        if self._services.configured.is_set():
            self._refresh(uri)

    def changed(self, uri: str) -> None:
        """Something that the document's status shows may have changed."""
        entry = self._entries.get(uri)
        if entry is None or entry.timer is not None:
            return
        loop = asyncio.get_running_loop()
        entry.timer = loop.call_later(DEBOUNCE_SECONDS, self._refresh, uri)

    def closed(self, uri: str) -> None:
        """Forget a document; after the last one there may still be a context to show."""
        self._forget(uri)
        if not self._entries:
            self._send_bare(self._services.roots.of_document(uri))

    def _forget(self, uri: str) -> None:
        """Give up its counting."""
        entry = self._entries.pop(uri, None)
        if entry is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.counting is not None:
            entry.counting.cancel()

    def all_changed(self) -> None:
        """Settings or the model changed: every document's status is due."""
        for uri, entry in self._entries.items():
            if entry.sent is None and entry.timer is None:
                self._refresh(uri)
            else:
                self.changed(uri)

    def context_changed(self, workspace: Workspace) -> None:
        """A conversation or its cost changed: every open document of the workspace shows it."""
        if not self._entries:
            self._send_bare(workspace)
        for uri in self._entries:
            if self._services.roots.of_document(uri) is workspace:
                self.changed(uri)

    def _refresh(self, uri: str) -> None:
        entry = self._entries[uri]
        entry.timer = None
        services = self._services
        workspace, document = services.roots.of_document(uri), services.document(uri)
        tokenizer = services.tokenizers(workspace).for_model(workspace.model)
        ask = document.characters and services.asks_endpoint(workspace.model, tokenizer, workspace)
        count = None if ask else services.count_document_now(document, workspace)
        if count is not None:
            self._send(uri, count)
            return
        if entry.sent is None and document.characters > INLINE_CHARACTERS:
            self._send(uri, services.guess_document(document, workspace))
        if entry.counting is None:
            work = self._ask if ask else self._count
            entry.counting = asyncio.ensure_future(self._guarded(uri, entry, work))

    async def _guarded(
        self, uri: str, entry: _Entry, work: Callable[[str], Awaitable[Counted]]
    ) -> None:
        """Send what `work` counts, unless the document was closed; look again if it changed."""
        try:
            counted = await work(uri)
        except Stopped:
            return
        except Exception as exc:  # nobody awaits this task
            log_defect(exc)
            return
        finally:
            entry.counting = None
        if self._entries.get(uri) is not entry:
            return
        if counted.version == self._services.document(uri).version:
            self._send(uri, counted.count)
        else:
            self.changed(uri)

    async def _count(self, uri: str) -> Counted:
        """Count here, off the loop; the count is of the version that is current when it ends."""
        services = self._services
        workspace, document = services.roots.of_document(uri), services.document(uri)
        return await services.count_here(document, workspace)

    async def _ask(self, uri: str) -> Counted:
        """The endpoint's count; where it takes its time, the estimate is shown meanwhile."""
        services = self._services
        workspace, document = services.roots.of_document(uri), services.document(uri)
        asking = asyncio.ensure_future(
            services.ask_for_document(document, workspace.model, workspace, TEXT_SECONDS)
        )
        await asyncio.wait({asking}, timeout=DOCUMENT_SECONDS)
        if not asking.done():
            local = await services.count_here(document, workspace)
            if uri in self._entries and local.version == document.version:
                self._send(uri, local.count)
        found = await asking
        return (
            found if isinstance(found, Counted) else await services.count_here(document, workspace)
        )

    def _send(self, uri: str, count: Count) -> None:
        entry = self._entries[uri]
        workspace = self._services.roots.of_document(uri)
        document = self._services.document(uri)
        budget = budget_of(document, workspace, count.model)
        shown = document_status(count, budget, workspace.settings.status.show)
        version = document.version
        severity = graver(document_severity(shown), self._server.diagnostics.severity_of(uri))
        update = status_update(workspace, uri, version, shown, severity)
        if entry.sent is not None and _same(entry.sent, update):
            return
        entry.sent = update
        self._server.protocol.push("status/update", update)

    def _send_bare(self, workspace: Workspace) -> None:
        """While no document is open there is still a context to show."""
        update = status_update(workspace, None, None, None, "ok")
        if self._bare is None and not (update.context or update.cost):
            return
        if self._bare is not None and _same(self._bare, update):
            return
        self._bare = update
        self._server.protocol.push("status/update", update)


def _same(before: StatusUpdate, after: StatusUpdate) -> bool:
    return msgspec.structs.replace(before, version=after.version) == after
