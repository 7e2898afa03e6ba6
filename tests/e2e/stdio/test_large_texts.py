"""Tests that long documents and huge requests are counted, block nothing and free memory."""

from __future__ import annotations

import random
import subprocess
import time
from typing import Any

import pytest

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import source_text
from benchmarks.memory import held
from sidecar.counting.exact_engines import Reference

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


SIZE = 2_000_000


def opened(text: str) -> StdioClient:
    client = StdioClient(SERVER, stderr=subprocess.DEVNULL)
    client.initialize()
    client.open(text)
    return client


def tokens(client: StdioClient) -> tuple[int, int]:
    count = client.request("tokens/count", {"textDocument": {"uri": URI}})
    assert count["method"] == "exact"
    return count["tokens"], count["version"]


def test_edits_during_the_first_count_are_counted() -> None:
    rng = random.Random(7)
    # with one code unit per character and uniform line endings, positions are simple
    text = source_text(SIZE).encode("ascii", "replace").decode().replace("\r", "")
    client = opened(text)
    for version in range(2, 42):
        at, new = rng.randrange(len(text)), rng.choice(("x", " // ", "\n", "字", ""))
        line = text.count("\n", 0, at)
        start = text.rfind("\n", 0, at) + 1
        end = min(at + rng.randrange(3), len(text))
        end = end if "\n" not in text[at:end] else at
        places = [{"line": line, "character": offset - start} for offset in (at, end)]
        change = {"range": {"start": places[0], "end": places[1]}, "text": new}
        identifier = {"uri": URI, "version": version}
        params = {"textDocument": identifier, "contentChanges": [change]}
        client.notify("textDocument/didChange", params)
        text = text[:at] + new + text[end:]
        if version % 20 == 1:
            assert tokens(client) == (Reference("o200k_base").count(text), version)
    client.close()
    assert client.process.returncode == 0


def test_several_long_documents_are_counted_at_once() -> None:
    client, text = opened(source_text(SIZE)), source_text(SIZE + 1_000)
    uris = [f"file:///bench/{number}" for number in range(3)]
    for uri in uris:
        client.open(text, uri)
    asked = [client.post("tokens/count", {"textDocument": {"uri": uri}}) for uri in uris]
    full = Reference("o200k_base").count(text)
    assert [client.wait(number)["tokens"] for number in asked] == [full] * 3
    client.close()


WORDS = "lorem ipsum dolor "
SPAN = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 1}}
TURN = {"role": "user", "content": "hi"}
HUGE: dict[str, tuple[str, dict[str, Any]]] = {
    "turns": ("context/append", {"turns": [TURN] * 50_000}),
    "messages": ("tokens/count", {"messages": [TURN] * 50_000}),
    "sections": (
        "context/set",
        {"sections": [{"name": f"s{number}", "text": "hi"} for number in range(50_000)]},
    ),
    "models": ("tokens/count", {"text": "hi", "models": [f"m{n}" for n in range(10_000)]}),
    "ranges": ("tokens/count", {"textDocument": {"uri": URI}, "ranges": [SPAN] * 20_000}),
    "text": ("tokens/count", {"text": WORDS * 1_000_000}),
    "fit": ("tokens/fit", {"text": WORDS * 1_000_000, "maxTokens": 100}),
}


def test_cancelled_huge_requests_are_answered_and_block_nothing() -> None:
    """The server answers the next requests, and exits without finishing the cancelled work."""
    client = StdioClient(SERVER, stderr=subprocess.DEVNULL)
    client.initialize()
    client.open("abc def\n" * 1_000)
    client.request("tokens/count", {"textDocument": {"uri": URI}})
    for kind in HUGE:
        number = client.post(*HUGE[kind])
        client.notify("$/cancelRequest", {"id": number})
        with pytest.raises(RuntimeError, match="-32800"):
            client.wait(number)
        assert client.request("tokens/count", {"text": "hello world"})["tokens"] == 2, kind
    client.close()
    assert client.process.returncode == 0
