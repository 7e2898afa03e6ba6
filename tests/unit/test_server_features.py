"""Tests that a feature works with its services alone, without a server or other features."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from lsprotocol import types

from sidecar.server.client import Client
from sidecar.server.features.count_requests import CountRequests
from sidecar.server.features.hover import Hover
from sidecar.server.features.status_updates import StatusUpdates, Warnings
from sidecar.server.features.text_sync import TextSync
from sidecar.server.methods import CountParams, TextDocumentIdentifier
from sidecar.server.protocol import Feature
from sidecar.server.stdio import Framer, InvalidFrame
from sidecar.tasks import Scheduler
from sidecar.text.document import TextDocument
from sidecar.workspace.services import Services
from sidecar.workspace.workspace import Event

URI = "file:///ws/notes.md"
TEXT = "# Title\n\nhello world\n\n## Part\n\nhello\n"


class Wire:
    """Collects the messages that a client is sent."""

    def __init__(self, client: Client) -> None:
        self.messages: list[dict[str, Any]] = []
        self._framer = Framer()
        client.protocol.set_writer(self)

    def write(self, data: bytes) -> None:
        for body in self._framer.feed(data):
            assert not isinstance(body, InvalidFrame)
            self.messages.append(json.loads(body))

    def close(self) -> None:
        pass


def open_notes(services: Services) -> None:
    services.documents[URI] = TextDocument(URI, TEXT, 1, "utf-16", "markdown")


async def test_hover_needs_only_documents_and_counts(services: Services) -> None:
    open_notes(services)
    hover = Hover(services).handlers[types.TEXT_DOCUMENT_HOVER]
    identifier = types.TextDocumentIdentifier(URI)
    answers = [
        await hover(types.HoverParams(identifier, types.Position(line, 0))) for line in range(5)
    ]
    assert "Title" in answers[0].contents.value
    assert "gpt-5" in answers[4].contents.value
    assert answers[1:4] == [None, None, None]


async def test_counts_need_only_services(services: Services) -> None:
    open_notes(services)
    params = CountParams(text_document=TextDocumentIdentifier(uri=URI), models=["gpt-4"])
    result = await CountRequests(services).handlers["tokens/count"](params)
    assert [row.model for row in result.models] == ["gpt-4"]
    assert result.version == 1


async def test_documents_affect_the_status_only_through_events(services: Services) -> None:
    client, scheduler = Client(), Scheduler()
    wire, status = Wire(client), StatusUpdates(services, client, scheduler)
    documents, heard = TextSync(services, scheduler), list[Event]()
    open_document = documents.handlers[types.TEXT_DOCUMENT_DID_OPEN]
    open_document(
        types.DidOpenTextDocumentParams(
            types.TextDocumentItem(URI, types.LanguageKind.Markdown, 1, TEXT)
        )
    )
    assert wire.messages == []
    services.listeners += [heard.append, status.on_event]
    services.document_changed(URI)
    async with asyncio.timeout(30):
        while not wire.messages:
            await asyncio.sleep(0.001)
    assert [(event.what, event.uri) for event in heard] == [("document", URI)]
    (update,) = wire.messages
    assert update["method"] == "status/update"
    assert (
        update["params"]["textDocument"]["uri"] == URI
        if "textDocument" in update["params"]
        else True
    )
    scheduler.close()


@pytest.mark.parametrize("method", ["textDocument/didOpen", "custom/notification"])
def test_handler_of_a_notification_cannot_be_async(method: str) -> None:
    async def handle(_: Any) -> None: ...

    feature = Feature()
    feature.handlers = {method: handle, types.TEXT_DOCUMENT_HOVER: handle}
    with pytest.raises(TypeError, match=method):
        Client().protocol.add(feature)
    feature.handlers = {types.TEXT_DOCUMENT_HOVER: handle, method: lambda _: None}
    Client().protocol.add(feature)


def test_events_of_others_send_no_warning() -> None:
    client = Client()
    wire, feature = Wire(client), Warnings(client)
    for event in (Event("learned"), Event("settings"), Event("missed")):
        feature.on_event(event)
    assert wire.messages == []
