"""Sends the status and the warnings that the editor shows.

While the user types, an update is sent every 75 ms. Keystrokes do not restart the timer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

import msgspec

from sidecar.counting.count_result import Count
from sidecar.counting.counts import seconds_until_pause
from sidecar.counting.open_documents import Snapshot
from sidecar.counting.tokenizer_interface import INLINE_CHARACTERS
from sidecar.server.client import Client
from sidecar.server.feature import Feature
from sidecar.tasks import PATIENCE_SECONDS, Scheduler, wait_or_fall_back
from sidecar.text.document import TextDocument
from sidecar.workspace.document_budgets import find_lowest_budget, model_of
from sidecar.workspace.services import Services
from sidecar.workspace.status import StatusUpdate, document_status, status_update, worse_severity
from sidecar.workspace.workspace import Event, Workspace

DEBOUNCE_SECONDS = 0.075


class StatusUpdates(Feature):
    """Sends each open document's status. If none is open, sends a workspace's status."""

    def __init__(self, services: Services, client: Client, scheduler: Scheduler) -> None:
        self._services, self._client, self._scheduler = services, client, scheduler
        self._sent: dict[str, StatusUpdate | None] = {}
        """The last update sent for each open document."""
        self._documents: dict[str, TextDocument] = {}
        self._last_without_document: StatusUpdate | None = None
        self._last_workspace: Workspace | None = None
        """The last workspace whose status was sent while no document was open."""

    def on_event(self, event: Event) -> None:
        if not event.shows:
            return
        if event.uri is not None:
            self._document_changed(event.uri)
            return
        if not self._sent and self._services.configured.is_set():
            self._update_without_document(event.workspace)
        for uri, sent in self._sent.items():
            if not event.concerns(self._services.roots.of_document(uri)):
                continue
            if sent is None and not self._scheduler.is_due(("status", uri)):
                self._refresh_now(uri)
            else:
                self._refresh_soon(uri)

    def _document_changed(self, uri: str) -> None:
        document = self._services.documents.get(uri)
        if document is None:
            self._closed(uri)
        elif self._documents.get(uri) is document:
            self._refresh_soon(uri)
        else:  # opened, perhaps again
            self._documents[uri] = document
            self._last_without_document = self._sent[uri] = None
            if self._services.configured.is_set():
                self._refresh_now(uri)

    def _closed(self, uri: str) -> None:
        """Forget a closed document. If it was the last one, show a workspace's context."""
        self._sent.pop(uri, None)
        self._documents.pop(uri, None)
        self._scheduler.cancel(("status", uri))
        if not self._sent:
            self._update_without_document(self._services.roots.of_document(uri))

    def _refresh_soon(self, uri: str) -> None:
        work = partial(self._refresh, uri)
        self._scheduler.schedule(("status", uri), DEBOUNCE_SECONDS, work)

    def _refresh_now(self, uri: str) -> None:
        self._scheduler.run_now(("status", uri), partial(self._refresh, uri))

    def _refresh(self, uri: str) -> Awaitable[None] | None:
        services = self._services
        if not services.configured.is_set():  # another update follows when the settings are loaded
            return None
        workspace, document = services.roots.of_document(uri), services.documents[uri]
        if not document.is_synced:
            self._send(uri, None)
            return None
        snapshot, model = services.documents.snapshot(uri), model_of(uri, workspace)
        count = services.counts.count_if_quick(snapshot, model, workspace)
        if count is not None:
            self._send(uri, count)
            return None
        if self._sent[uri] is None and document.characters > INLINE_CHARACTERS:
            self._send(uri, services.counts.extrapolate(document, model, workspace))
        return self._count(uri)

    async def _count(self, uri: str) -> None:
        services = self._services
        workspace, snapshot = services.roots.of_document(uri), services.documents.snapshot(uri)
        model = model_of(uri, workspace)

        async def send_estimate() -> None:
            if services.counts.asks_endpoint(model, workspace.settings):
                estimate = await services.counts.count_locally(snapshot, model, workspace)
                self._send_if_current(uri, snapshot, estimate)

        counting = services.counts.count(snapshot, model, workspace)
        # Large documents are not sent to an endpoint while the user is typing.
        patience = 0.0 if seconds_until_pause(snapshot) else PATIENCE_SECONDS
        count = await wait_or_fall_back(counting, send_estimate, patience)
        self._send_if_current(uri, snapshot, count)

    def _send_if_current(self, uri: str, snapshot: Snapshot, count: Count) -> None:
        """Send a count unless the document has changed."""
        documents = self._services.documents
        if documents[uri].is_synced and documents.snapshot(uri) is snapshot:
            self._send(uri, count)
        else:
            self._refresh_soon(uri)

    def _send(self, uri: str, count: Count | None) -> None:
        workspace = self._services.roots.of_document(uri)
        version = self._services.documents[uri].version
        document_part, severity = None, self._services.severities.get(uri, "ok")
        if count is not None:
            budget = find_lowest_budget(self._services.documents.snapshot(uri), workspace)
            document_part = document_status(count, budget, workspace.loaded)
            severity = worse_severity(document_part.severity, severity)
        update = status_update(workspace, uri, version, document_part, severity)
        if not _is_same(self._sent[uri], update):
            self._sent[uri] = update
            self._client.protocol.push("status/update", update)

    def _update_without_document(self, changed: Workspace | None) -> None:
        """Send a workspace's status while no document is open.

        Prefers the workspace that changed last, unless its status is empty.
        """
        roots = list(self._services.roots)
        preferred = [root for root in (changed, self._last_workspace) if root in roots]
        first, *others = dict.fromkeys((*preferred, *roots))
        for workspace in (first, *others, first):
            update = status_update(workspace, None, None, None, "ok")
            if update.text:
                break
        if self._last_without_document is None and not (update.context or update.cost):
            return
        if not _is_same(self._last_without_document, update):
            self._last_without_document, self._last_workspace = update, workspace
            self._client.protocol.push("status/update", update)


def _is_same(before: StatusUpdate | None, after: StatusUpdate) -> bool:
    return before is not None and msgspec.structs.replace(before, version=after.version) == after


class Warnings(Feature):
    """Sends the warnings about thresholds, caps and full context windows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def on_event(self, event: Event) -> None:
        if event.warning is not None:
            self._client.protocol.push("context/warning", event.warning)
