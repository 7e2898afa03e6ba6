"""Tests that huge requests do not block the event loop, and that cancelling them stops their work."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks.client import SERVER, URI, StdioClient

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
