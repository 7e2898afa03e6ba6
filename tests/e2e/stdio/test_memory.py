"""Tests on Linux that closing documents frees memory, and that none is reserved in advance."""

from __future__ import annotations

import time

from benchmarks.client import SERVER, StdioClient
from benchmarks.corpus import source_text
from benchmarks.memory import held

PATIENCE = 60  # in seconds


def counted(client: StdioClient, uri: str, text: str) -> None:
    client.open(text, uri)
    client.request("tokens/count", {"textDocument": {"uri": uri}})


def test_closing_long_documents_releases_their_memory() -> None:
    """The server releases almost all memory of four 10 MB documents."""
    text = source_text(10_000_000)
    client = StdioClient(SERVER)
    client.initialize()
    uris = [f"file:///bench/{number}" for number in range(4)]
    for uri in uris:
        counted(client, uri, text)
    opened = held(client).own
    for uri in uris:
        client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
    until = time.monotonic() + PATIENCE
    while (closed := held(client).own) > opened - 35 and time.monotonic() < until:
        time.sleep(0.5)
    client.close()
    assert closed <= opened - 35


def test_memory_grows_with_received_bytes_and_not_with_the_announced_length() -> None:
    client = StdioClient(SERVER)
    client.initialize()
    counted(client, "file:///bench/small", "some words")
    while "as input" not in str(client.receive()):
        pass  # until context windows and prices are loaded
    before = held(client).own
    client.send_raw(b"Content-Length: 200000000\r\n\r\n{")
    time.sleep(0.5)
    client.send_raw(b" ")
    time.sleep(0.5)
    after = held(client).own
    client.process.kill()
    client.process.wait()
    client.end_streams()
    assert after < before + 20
