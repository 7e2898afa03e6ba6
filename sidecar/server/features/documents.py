"""Opens, edits and closes documents, which mirror the editor's buffers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.errors import RequestError
from sidecar.operating_system import release_memory
from sidecar.text.document import TextDocument
from sidecar.text.positions import Position, Range
from sidecar.workspace.workspace import Event

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer

TRIM_SECONDS = 1.0
"""Delay between closing a large document and freeing its memory."""
_LARGE_CHARACTERS = 250_000


def register(server: SidecarServer) -> None:
    services, status = server.services, server.status

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        services.documents[item.uri] = TextDocument(
            item.uri, item.text, item.version, services.encoding, str(item.language_id)
        )
        status.opened(item.uri)
        _announce_edit(server, item.uri)
        find_root_soon(server, item.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        document = services.documents.get(params.text_document.uri)
        if document is None:
            raise RequestError("unknownDocument", "the document is not open in this server")
        try:
            _apply_changes(server, document, params)
        except BaseException:
            document.is_synced = False
            raise
        finally:
            _announce_edit(server, document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        document = services.documents.get(uri)
        services.close_document(uri)
        status.closed(uri)
        server.diagnostics.closed(uri)
        _announce_edit(server, uri)
        if document is not None and document.characters > _LARGE_CHARACTERS:
            release = partial(server.services.workers.run, release_memory)
            server.scheduler.schedule(("memory",), TRIM_SECONDS, release)

    for method in (types.TEXT_DOCUMENT_DID_OPEN, types.TEXT_DOCUMENT_DID_CHANGE):
        server.protocol.malformed_handlers[method] = partial(_mark_unsynced, server)


def find_root_soon(server: SidecarServer, uri: str) -> None:
    """Resolve the links in a document's path if it is outside all roots."""
    services = server.services
    if services.roots.of_document(uri) is services.roots.outside:
        server.scheduler.run_now(("root", uri), partial(_find_root, server, uri))


async def _find_root(server: SidecarServer, uri: str) -> None:
    if await server.services.link_document(uri):
        _announce_edit(server, uri)


def _apply_changes(
    server: SidecarServer, document: TextDocument, params: types.DidChangeTextDocumentParams
) -> None:
    for change in params.content_changes:
        span = None
        if isinstance(change, types.TextDocumentContentChangePartial):
            start, end = change.range.start, change.range.end
            span = Range(Position(start.line, start.character), Position(end.line, end.character))
        server.services.documents.edit(document, span, change.text)
    document.version = params.text_document.version


def _announce_edit(server: SidecarServer, uri: str) -> None:
    services = server.services
    services.counts.document_edited(uri)
    services.publish(Event("document", services.roots.of_document(uri), uri))


def _mark_unsynced(server: SidecarServer, params: object) -> None:
    identifier = params.get("textDocument") if isinstance(params, dict) else None
    target = identifier.get("uri") if isinstance(identifier, dict) else None
    for uri, document in server.services.documents.items():
        if uri == target or not isinstance(target, str):
            document.is_synced = False
            _announce_edit(server, uri)
