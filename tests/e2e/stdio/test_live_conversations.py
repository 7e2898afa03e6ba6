"""Tests that other processes see the counts of a running server's conversations, but no text."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.client import SERVER, StdioClient
from sidecar.cli import main

TEXT = "mauve-otter-9"
COMMAND = [sys.executable, "-P", "-m", "sidecar"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


@pytest.fixture
def client(root: Path) -> Iterator[StdioClient]:
    made = StdioClient(SERVER)
    made.initialize(root)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made.end_streams()


def say(client: StdioClient, session: str, words: int) -> dict[str, Any]:
    """Append a turn, as a chat plugin does, and return the session's usage."""
    turn = {"role": "user", "content": f"{TEXT} " + "word " * words}
    usage: dict[str, Any] = client.request("context/append", {"session": session, "turns": [turn]})
    return usage


def run(root: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--workspace", str(root)])
    assert result.exit_code == 0, result.output
    return result.stdout


def shown(root: Path, session: str | None, tokens: int | None) -> dict[str, Any]:
    """Return the output of `usage` once it shows the session at this size."""
    until = time.monotonic() + 20
    while True:
        usage: dict[str, Any] = json.loads(run(root, "usage", "--json"))
        name = usage["session"] and usage["session"]["id"]
        if (name, usage["tokens"]) == (session, tokens):
            return usage
        assert time.monotonic() < until, f"expected {session} with {tokens} tokens, not {usage}"
        time.sleep(0.02)


def test_a_running_servers_conversation_is_shown_and_no_text_is_stored(
    client: StdioClient, root: Path, tmp_path: Path
) -> None:
    client.request("context/set", {"session": "chat-1", "model": "gpt-4o", "limit": 9_000})
    answer = say(client, "chat-1", 300)
    usage = shown(root, "chat-1", answer["tokens"])
    for field in ("limit", "limitSource", "percent", "method", "model", "turns", "breakdown"):
        assert usage[field] == answer[field]
    assert run(root, "statusline").startswith("gpt-4o · ctx ")
    other = say(client, "chat-2", 20)
    shown(root, "chat-2", other["tokens"])
    rows = [json.loads(line) for line in run(root, "usage", "--all", "--json").splitlines()]
    names = [row["id"] for row in (rows[0] if isinstance(rows[0], list) else rows)]
    assert names == ["chat-2", "chat-1"]
    assert json.loads(run(root, "usage", "--json", "--session", "chat-1"))["turns"] == 1
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stored
    assert not any(TEXT.encode() in path.read_bytes() for path in stored)


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_conversations_disappear_with_their_server(
    client: StdioClient, root: Path, end: str
) -> None:
    answer = say(client, "chat-1", 30)
    shown(root, "chat-1", answer["tokens"])
    if end == "kill":
        client.process.kill()
        client.process.wait()
    else:
        client.close()
    assert shown(root, None, None)["session"] is None


def test_watching_follows_the_conversations_of_a_running_server(
    client: StdioClient, root: Path
) -> None:
    client.request("context/set", {"session": "kept", "model": "gpt-4o", "persist": True})
    sizes = {"chat-1": say(client, "chat-1", 30)["tokens"]}
    shown(root, "chat-1", sizes["chat-1"])
    watching = subprocess.Popen(
        [*COMMAND, "usage", "--watch", "--json", "--workspace", str(root)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert watching.stdout is not None
        for session, words in (("chat-1", 0), ("chat-1", 50), ("kept", 10), ("kept", 500)):
            if words:
                sizes[session] = say(client, session, words)["tokens"]
            usage = json.loads(watching.stdout.readline())
            assert (usage["session"]["id"], usage["tokens"]) == (session, sizes[session])
    finally:
        watching.kill()
        watching.communicate()
