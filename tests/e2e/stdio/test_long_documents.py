"""A long document is counted by two processes, and edited while that goes on: numbers stay exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.client import SERVER, URI, StdioClient
from benchmarks.corpus import source_text
from sidecar.counting.engines.reference import Reference
from sidecar.workspace.second_process import LONG_CHARACTERS

PATIENCE = 60  # seconds
SIZE = 2 * LONG_CHARACTERS


def opened(text: str) -> StdioClient:
    client = StdioClient(SERVER, stderr=subprocess.DEVNULL)
    client.initialize()
    client.open(text)
    return client


def tokens(client: StdioClient) -> tuple[int, int]:
    count = client.request("tokens/count", {"textDocument": {"uri": URI}})
    assert count["method"] == "exact"
    return count["tokens"], count["version"]


def test_edits_while_it_is_counted_are_in_the_number() -> None:
    rng = random.Random(7)
    # A character is one unit of the encoding, and lines end in one way: positions are plain.
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


def test_several_long_documents_at_once() -> None:
    client, text = opened(source_text(SIZE)), source_text(SIZE + 1_000)
    uris = [f"file:///bench/{number}" for number in range(3)]
    for uri in uris:
        client.open(text, uri)
    asked = [client.post("tokens/count", {"textDocument": {"uri": uri}}) for uri in uris]
    full = Reference("o200k_base").count(text)
    assert [client.wait(number)["tokens"] for number in asked] == [full] * 3
    client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_no_process_outlives_the_server(end: str) -> None:
    client = opened(source_text(SIZE))
    until = time.monotonic() + PATIENCE
    while not (helpers := children(client.process.pid)):
        assert time.monotonic() < until
        time.sleep(0.05)
    if end == "exit":
        client.close()
        assert client.process.returncode == 0
    else:
        os.kill(client.process.pid, signal.SIGKILL)
        client.process.wait()
        client.end_streams()
    while any(lives(pid) for pid in helpers):
        assert time.monotonic() < until
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
