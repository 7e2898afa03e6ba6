"""Measures the server's memory: idle, after documents of 10 MB were closed, and with many small
documents.

Resident memory includes pages of shared libraries, which the system can drop. `own` is memory that
is not shared with other processes, as Linux reports it. The peer is a process that only imports
pygls and loads the same vocabulary with tiktoken.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.client import SERVER, StdioClient
from benchmarks.corpus import SIZES, source_text
from benchmarks.page import MEGABYTES, figure

BIG, MANY = 3, 1_000
SETTLED_SECONDS = 5.0
"""Time in which the server loads windows and prices, and releases closed documents."""


class Held(NamedTuple):
    """Resident and unshared memory, in megabytes."""

    resident: float
    own: float

    def __str__(self) -> str:
        return f"{self.resident:6.1f} MB resident, {self.own:6.1f} MB own"


_BARE = """
import sys
from benchmarks.corpus import source_text
from pygls.lsp.server import LanguageServer
from sidecar.counting.exact_engines import Reference
server = LanguageServer("bare", "0")
text = source_text(int(sys.argv[1])) if sys.argv[1:] else "some words"
Reference("o200k_base").count(text)
print("ready", flush=True)
input()
"""


def bare(size: int = 0) -> Held:
    """Return the memory of pygls and tiktoken after counting a document of this size."""
    command = [sys.executable, "-P", "-c", _BARE, *([str(size)] if size else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = held_by(process.pid)
        process.communicate(b"\n")
    return found


def held(client: StdioClient) -> Held:
    """Return the current memory of a server."""
    return held_by(client.process.pid)


def held_by(pid: int) -> Held:
    """Return the current memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines}
    return Held(sizes["Rss"], sizes["Private_Dirty"] + sizes["Private_Clean"])


def run() -> None:
    """Print each figure."""
    client = StdioClient(SERVER)
    client.initialize()
    _counted(client, "file:///bench/first", "some words")
    time.sleep(SETTLED_SECONDS)
    idle = held(client)
    text = source_text(10_000_000)
    for number in range(BIG):
        _counted(client, f"file:///bench/big{number}", text)
    big = held(client)
    for number in range(BIG):
        identifier = {"uri": f"file:///bench/big{number}"}
        client.notify("textDocument/didClose", {"textDocument": identifier})
    time.sleep(SETTLED_SECONDS)
    closed = held(client)
    for number in range(MANY):
        part = text[number * 10_000 :][:10_000]
        _counted(client, f"file:///bench/small{number}", part)
    many = held(client)
    count = {"text": "some words", "model": "gpt-4"}
    client.request("tokens/count", count)
    time.sleep(SETTLED_SECONDS)
    another = held(client)
    client.close()
    print("\nMemory of the server with o200k_base")
    print(f"  pygls and tiktoken alone      {bare()}")
    print(f"  idle                          {idle}")
    print(f"  {BIG} documents of 10 MB          {big}")
    print(f"  after they were closed        {closed}: {closed.own / idle.own:.2f}x of idle")
    print(f"  {MANY:,} documents of 10 KB       {many}: +{many.own - closed.own:.1f} MB")
    print(f"  with cl100k_base too          {another}: +{another.own - many.own:.1f} MB")
    _draw()


def _draw() -> None:
    """Draw the memory of a server with one counted document, by size."""
    drawn = figure("Memory (own) with one document", "characters of the document", MEGABYTES)
    for size in SIZES.values():
        client = StdioClient(SERVER)
        client.initialize()
        _counted(client, "file:///bench/one", source_text(size))
        time.sleep(SETTLED_SECONDS)
        drawn.add("token-sidecar", size, held(client).own)
        client.close()
        drawn.add("pygls and tiktoken alone", size, bare(size).own)


def _counted(client: StdioClient, uri: str, text: str) -> None:
    client.open(text, uri)
    client.request("tokens/count", {"textDocument": {"uri": uri}})
