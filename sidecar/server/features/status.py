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
from sidecar.workspace.status import StatusUpdate, document_severity, document_status
from sidecar.workspace.verdicts import relative_name, tightest

if TYPE_CHECKING:
    from sidecar.counting.count import Count
    from sidecar.server.server import SidecarServer

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

    def opened(self, uri: str) -> None:
        """A document was opened (again): its status is due at once."""
        self.closed(uri)
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
        """Forget a document and give up its counting."""
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

    def _refresh(self, uri: str) -> None:
        entry = self._entries[uri]
        entry.timer = None
        workspace = self._services.roots.of_document(uri)
        document = self._services.document(uri)
        count = self._services.count_document_now(document, workspace)
        if count is not None:
            self._send(uri, count)
            return
        if entry.sent is None and document.characters > INLINE_CHARACTERS:
            self._send(uri, self._services.guess_document(document, workspace))
        if entry.counting is None:
            entry.counting = asyncio.ensure_future(self._count(uri, entry))

    async def _count(self, uri: str, entry: _Entry) -> None:
        """Count off the loop; what is sent is the count of the version then current."""
        services = self._services
        try:
            workspace = services.roots.of_document(uri)
            document = services.document(uri)
            count = await services.count_document(document, None, workspace)
        except Stopped:
            return
        except Exception as exc:  # nobody awaits this task
            log_defect(exc)
            return
        finally:
            entry.counting = None
        if self._entries.get(uri) is entry:
            self._send(uri, count)

    def _send(self, uri: str, count: Count) -> None:
        entry = self._entries[uri]
        workspace = self._services.roots.of_document(uri)
        rules = workspace.rules.of(relative_name(workspace, uri)) if workspace.rules else []
        shown = document_status(count, tightest(rules), workspace.settings.status.show)
        update = StatusUpdate(
            workspace=workspace.uri,
            uri=uri,
            version=self._services.document(uri).version,
            text="" if workspace.settings.status.hide else shown.text,
            severity=document_severity(count.tokens, shown.budget),
            document=shown,
        )
        if entry.sent is not None and _same(entry.sent, update):
            return
        entry.sent = update
        self._server.protocol.push("status/update", update)


def _same(before: StatusUpdate, after: StatusUpdate) -> bool:
    return msgspec.structs.replace(before, version=after.version) == after
