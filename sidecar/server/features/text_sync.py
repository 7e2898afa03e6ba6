"""Opens, edits and closes documents, which mirror the editor's buffers."""

from __future__ import annotations

from functools import partial

from lsprotocol import types

from sidecar.errors import RequestError
from sidecar.operating_system import release_memory
from sidecar.server.protocol import Feature
from sidecar.tasks import Scheduler
from sidecar.text.document import Position, Range, TextDocument
from sidecar.workspace.services import Services

TRIM_SECONDS = 1.0
"""Delay between closing a large document and freeing its memory."""
_LARGE_CHARACTERS = 250_000


class TextSync(Feature):
    """Applies the client's edits, and publishes an event for each."""

    def __init__(self, services: Services, scheduler: Scheduler) -> None:
        self._services, self._scheduler = services, scheduler
        self.handlers = {
            types.TEXT_DOCUMENT_DID_OPEN: self._open,
            types.TEXT_DOCUMENT_DID_CHANGE: self._change,
            types.TEXT_DOCUMENT_DID_CLOSE: self._close,
        }
        self.malformed_handlers = {
            types.TEXT_DOCUMENT_DID_OPEN: self._mark_unsynced,
            types.TEXT_DOCUMENT_DID_CHANGE: self._mark_unsynced,
        }

    def _open(self, params: types.DidOpenTextDocumentParams) -> None:
        item, services = params.text_document, self._services
        services.documents[item.uri] = TextDocument(
            item.uri, item.text, item.version, services.encoding, str(item.language_id)
        )
        services.document_changed(item.uri)
        self._scheduler.run_now(("root", item.uri), partial(services.link_document, item.uri))

    def _change(self, params: types.DidChangeTextDocumentParams) -> None:
        document = self._services.documents.get(params.text_document.uri)
        if document is None:
            raise RequestError("unknownDocument", "the document is not open in this server")
        try:
            self._apply(document, params)
        except BaseException:
            document.is_synced = False
            raise
        finally:
            self._services.document_changed(document.uri)

    def _apply(self, document: TextDocument, params: types.DidChangeTextDocumentParams) -> None:
        for change in params.content_changes:
            span = None
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = change.range.start, change.range.end
                span = Range(
                    Position(start.line, start.character), Position(end.line, end.character)
                )
            self._services.documents.edit(document, span, change.text)
        document.version = params.text_document.version

    def _close(self, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        document = self._services.documents.get(uri)
        self._services.close_document(uri)
        self._services.document_changed(uri)
        if document is not None and document.characters > _LARGE_CHARACTERS:
            release = partial(self._services.workers.run, release_memory)
            self._scheduler.schedule(("memory",), TRIM_SECONDS, release)

    def _mark_unsynced(self, params: object) -> None:
        """Mark the document that malformed params name, or all documents if they name none."""
        identifier = params.get("textDocument") if isinstance(params, dict) else None
        target = identifier.get("uri") if isinstance(identifier, dict) else None
        for uri, document in self._services.documents.items():
            if uri == target or not isinstance(target, str):
                document.is_synced = False
                self._services.document_changed(uri)
