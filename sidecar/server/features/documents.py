"""Documents as the client sends them; our own store, in step with the editor to the character."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from sidecar.server.convert import to_range
from sidecar.text.document import TextDocument
from sidecar.workspace.errors import RequestError

if TYPE_CHECKING:
    from sidecar.server.server import SidecarServer


def register(server: SidecarServer) -> None:
    """Register the handlers."""
    services, status, diagnostics = server.services, server.status, server.diagnostics

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        services.documents[item.uri] = TextDocument(
            item.uri, item.text, item.version, services.encoding, str(item.language_id)
        )
        status.opened(item.uri)
        diagnostics.edited(item.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        uri = params.text_document.uri
        document = services.document(uri)
        try:
            for change in params.content_changes:
                span = getattr(change, "range", None)
                place = to_range(span) if span is not None else None
                server.following.about_to_edit(document, place, change.text)
                document.apply(place, change.text)
        except ValueError as exc:
            raise RequestError("badParams", str(exc)) from None
        finally:
            document.version = params.text_document.version
            status.changed(uri)
            diagnostics.edited(uri)
            server.following.edited(uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        services.closed(uri)
        status.closed(uri)
        diagnostics.closed(uri)
