"""`status/update`: once for each opened document, then whenever what it shows has changed.

Updates come at most every 75 ms while somebody types; the timer is not put off by further keys,
so the number follows the typing instead of waiting for a pause.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sidecar.counting.tokenizer import INLINE_CHARACTERS
from sidecar.waiting import PATIENCE_SECONDS, wait_or_fall_back
from sidecar.workspace.budgets import budget_of, model_of
from sidecar.workspace.counts import quiet_seconds
from sidecar.workspace.status import (
    StatusUpdate,
    document_severity,
    document_status,
    status_update,
    worse,
)

if TYPE_CHECKING:
    from sidecar.counting.count import Count
    from sidecar.server.server import SidecarServer
    from sidecar.workspace.documents import Snapshot
    from sidecar.workspace.workspace import Event, Workspace

DEBOUNCE_SECONDS = 0.075


@dataclass(eq=False)
class _Entry:
    """One open document: what was sent last."""

    sent: StatusUpdate | None = None


class StatusBoard:
    """Decides when each document's status is worked out and whether it is sent."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        self._services = server.services
        self._entries: dict[str, _Entry] = {}
        self._bare: StatusUpdate | None = None
        self._bare_of: Workspace | None = None
        """What was sent last while no document is open, and of which workspace."""

    def opened(self, uri: str) -> None:
        """A document was opened (again): its status is due at once."""
        self._forget(uri)
        self._bare = None  # the document's own updates stand for it
        self._entries[uri] = _Entry()
        if self._services.configured.is_set():
            self._due_now(uri)

    def changed(self, uri: str) -> None:
        """Something that the document's status shows may have changed."""
        if uri in self._entries:
            work = partial(self._refresh, uri)
            self._server.scheduler.soon(("status", uri), DEBOUNCE_SECONDS, work)

    def _due_now(self, uri: str) -> None:
        self._server.scheduler.now(("status", uri), partial(self._refresh, uri))

    def closed(self, uri: str) -> None:
        """Forget a document; after the last one there may still be a context to show."""
        self._forget(uri)
        if not self._entries:
            self._bare_changed(self._services.roots.of_document(uri))

    def _forget(self, uri: str) -> None:
        """Give up its counting."""
        self._entries.pop(uri, None)
        self._server.scheduler.cancel(("status", uri))

    def on_event(self, event: Event) -> None:
        """Work out again what an event may have changed."""
        if event.uri is not None:
            self.changed(event.uri)
            return
        if not self._entries and self._services.configured.is_set():
            self._bare_changed(event.workspace)
        for uri, entry in self._entries.items():
            if not event.concerns(self._services.roots.of_document(uri)):
                continue
            if entry.sent is None and not self._server.scheduler.is_due(("status", uri)):
                self._due_now(uri)
            else:
                self.changed(uri)

    def _refresh(self, uri: str) -> Awaitable[None] | None:
        entry = self._entries[uri]
        services = self._services
        if not services.configured.is_set():  # an event of the settings comes when they are read
            return None
        workspace, document = services.roots.of_document(uri), services.documents[uri]
        if not document.is_synced:
            self._send(uri, None)
            return None
        taken, model = services.documents.snapshot(uri), model_of(uri, workspace)
        count = services.counts.now(taken, model, workspace)
        if count is not None:
            self._send(uri, count)
            return None
        if entry.sent is None and document.characters > INLINE_CHARACTERS:
            self._send(uri, services.counts.guess(document, model, workspace))
        return self._count(uri)

    async def _count(self, uri: str) -> None:
        """Send what takes its time to count; an estimate meanwhile, where an endpoint is slow or
        is not sent the document until typing pauses."""
        services = self._services
        workspace, taken = services.roots.of_document(uri), services.documents.snapshot(uri)
        model = model_of(uri, workspace)

        async def send_estimate() -> None:
            if services.counts.asks(model, workspace.settings):
                self._send_if(uri, taken, await services.counts.count_here(taken, model, workspace))

        counting = services.counts.count(taken, model, workspace)
        patience = 0.0 if quiet_seconds(taken) else PATIENCE_SECONDS
        self._send_if(uri, taken, await wait_or_fall_back(counting, send_estimate, patience))

    def _send_if(self, uri: str, taken: Snapshot, count: Count) -> None:
        """Send a count if it is of the document as it is; else it is due again."""
        documents = self._services.documents
        if documents[uri].is_synced and documents.snapshot(uri) is taken:
            self._send(uri, count)
        else:
            self.changed(uri)

    def _send(self, uri: str, count: Count | None) -> None:
        """Without a count: the document is out of step, and no number would be right."""
        entry = self._entries[uri]
        workspace = self._services.roots.of_document(uri)
        version = self._services.documents[uri].version
        document_part, severity = None, self._server.diagnostics.severity_of(uri)
        if count is not None:
            budget = budget_of(self._services.documents.snapshot(uri), workspace)
            document_part = document_status(count, budget, workspace.loaded)
            severity = worse(document_severity(document_part), severity)
        update = status_update(workspace, uri, version, document_part, severity)
        if entry.sent is not None and _same(entry.sent, update):
            return
        entry.sent = update
        self._server.protocol.push("status/update", update)

    def _bare_changed(self, changed: Workspace | None) -> None:
        """While no document is open there is still a context to show: that of the workspace that
        changed last, of those that have one. Clients have one place for it."""
        roots = list(self._services.roots)
        first = [one for one in (changed, self._bare_of) if one in roots]
        order = list(dict.fromkeys([*first, *roots]))
        updates = ((one, status_update(one, None, None, None, "ok")) for one in order)
        found = next(((one, update) for one, update in updates if update.text), None)
        workspace, update = found or (order[0], status_update(order[0], None, None, None, "ok"))
        if self._bare is None and not (update.context or update.cost):
            return
        if self._bare is not None and _same(self._bare, update):
            return
        self._bare, self._bare_of = update, workspace
        self._server.protocol.push("status/update", update)


def _same(before: StatusUpdate, after: StatusUpdate) -> bool:
    return msgspec.structs.replace(before, version=after.version) == after
