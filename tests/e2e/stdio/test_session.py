"""Tests a whole session in a real process, with the position encodings of Neovim (UTF-8) and VS
Code (UTF-16).
"""

from __future__ import annotations

import asyncio
from typing import Any

from lsprotocol import types

from tests.e2e.stdio.conftest import RecordingClient
from tests.truth import truth

URI = "file:///ws/notes.md"
WIDTHS = {"utf-8": len("日本🙂".encode()), "utf-16": 4, "utf-32": 3}


async def status_of(client: RecordingClient, version: int) -> Any:
    async with asyncio.timeout(60):
        while True:
            for status in client.statuses:
                if status.version == version:
                    return status
            await asyncio.sleep(0.01)


async def count(client: RecordingClient) -> Any:
    request = client.protocol.send_request_async("tokens/count", {"textDocument": {"uri": URI}})
    return await asyncio.wait_for(request, 20)


async def test_typing_is_followed_exactly(lsp: RecordingClient) -> None:
    text = "日本🙂 text\r\nsecond line\n"
    item = types.TextDocumentItem(URI, "markdown", 1, text)
    lsp.text_document_did_open(types.DidOpenTextDocumentParams(item))
    assert (await status_of(lsp, 1)).document.tokens == truth(text)

    width = WIDTHS[lsp.encoding]
    for version, letter in enumerate("hello", start=2):
        place = types.Position(0, width)
        change = types.TextDocumentContentChangePartial(types.Range(place, place), letter)
        identifier = types.VersionedTextDocumentIdentifier(version, URI)
        lsp.text_document_did_change(types.DidChangeTextDocumentParams(identifier, [change]))
    expected = "日本🙂olleh text\r\nsecond line\n"
    assert (await status_of(lsp, 6)).document.tokens == truth(expected)
    result = await count(lsp)
    assert (result.tokens, result.version, result.method) == (truth(expected), 6, "exact")
