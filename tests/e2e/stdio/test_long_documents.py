"""Tests that counts remain exact when a long document is edited during its first count."""

from __future__ import annotations

import random
import subprocess

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import source_text
from sidecar.counting.exact_engines import Reference

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
