"""What was once found out about a model server is asked again, and shown, by our server."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.llama.test_llama_session import session
from tests.unit.endpoints_fake_server import REASONS, Canned, FakeServer, Ollama, listing, llamacpp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.protocol.client import Client

IGNORED = ("context/warning", "textDocument/publishDiagnostics")


def reply(prompt: int, output: int, reason: str = "stop") -> dict[str, Any]:
    """What `/api/chat` answers."""
    return {
        "model": "tiny",
        "created_at": "2026-11-22T00:00:00Z",
        "message": {"role": "assistant", "content": "Yes."},
        "done": True,
        "done_reason": reason,
        "prompt_eval_count": prompt,
        "eval_count": output,
    }


async def test_the_window_follows_what_ollama_has_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Ollama()
    async with server, session(server.url, tmp_path, monkeypatch) as client:
        turn = {"role": "user", "content": "Hello?"}
        before = await client.request("context/append", {"session": "s", "turns": [turn]})
        assert (before["limit"], before["limitSource"]) == (131_072, "endpoint")
        server.running["tiny:latest"] = 4_096
        await client.request("context/response", {"session": "s", "response": reply(30, 4)})
        after = await client.request("context/usage", {"session": "s"})
        assert (after["limit"], after["limitSource"]) == (4_096, "endpoint")
        server.running["tiny:latest"] = 8_192  # loaded again, by `options: {num_ctx: 8192}`
        usage = {"prompt_tokens": 5_000, "completion_tokens": 4}
        turns = [{"role": "assistant", "content": "Yes."}, turn]
        after = await client.request(
            "context/append", {"session": "s", "turns": turns, "usage": usage}
        )
        assert after["limit"] == 8_192


async def test_the_window_is_asked_again_on_a_model_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Ollama()
    async with server, session(server.url, tmp_path, monkeypatch) as client:
        turn = {"role": "user", "content": "Hello?"}
        await client.request("context/append", {"session": "s", "turns": [turn]})
        await client.request("context/set", {"session": "s", "model": "gpt-5"})
        server.running["tiny:latest"] = 2_048
        after = await client.request("context/set", {"session": "s", "model": "tiny"})
        assert after["limit"] == 2_048


NEXT_STEPS: list[tuple[bool, Any, str]] = [
    (False, listing("tiny"), "endpoints are off: set use-endpoint = true"),
    (True, *REASONS[0]),
    (True, *REASONS[2]),
    (True, *REASONS[3]),
    (True, *REASONS[4]),
]


@pytest.mark.parametrize(("use", "answer", "step"), NEXT_STEPS)
async def test_the_tooltip_says_why_a_server_does_not_count(
    use: bool, answer: Canned, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(status: Any) -> bool:
        tooltip = (status["document"] or {}).get("tooltip", "")
        return step in re.sub(r"\\(.)", r"\1", tooltip)

    async with (
        FakeServer({("GET", "/v1/models"): answer}) as server,
        session(server.url, tmp_path, monkeypatch, use, ignored=()) as client,
    ):
        client.open("hello world\n", uri=f"{tmp_path.as_uri()}/a.md")
        await client.take("status/update", says)
        client.ignore("status/update")


async def test_the_window_alone_shows_for_a_document_without_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        llamacpp() as server,
        session(server.url, tmp_path, monkeypatch, False, "endpoint-window = true\n", ()) as client,
    ):
        client.open("hello world\n", uri=f"{tmp_path.as_uri()}/a.md")
        status = await client.take("status/update", lambda it: it["document"])
        assert "2,048 tokens" in status["document"]["tooltip"]
        count = await client.request("tokens/count", {"text": "hello world"})
        found = count["limit"], count["limitSource"], count["method"]
        assert found == (2_048, "endpoint", "estimate")
        asked = len(server.asked)
        await client.request("tokens/count", {"text": "hello again"})
        assert (server.posts(), len(server.asked)) == ([], asked)


GONE = Canned(502, {"detail": "nobody is there"})
WORDS = "hello world, and some more of it\n"


def retries(client: Client) -> list[Any]:
    """The timers of model servers that are away."""
    return [key for key in client.server.scheduler._jobs if key[0] == "endpoint"]


def shows(mark: str) -> Callable[[Any], bool]:
    """Whether a status shows a document with `~`, or without."""
    return lambda one: one["document"] and ("~" in one["document"]["text"]) == (mark == "~")


async def until(state: Callable[[], bool]) -> None:
    """Wait for a state, with patience."""
    async with asyncio.timeout(60):
        while not state():
            await asyncio.sleep(0.01)


async def test_a_server_that_comes_back_counts_what_nobody_touches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.endpoints.endpoint.FIRST_BACKOFF", 0.2)
    monkeypatch.setattr("sidecar.endpoints.endpoint.PROBE_SECONDS", 60.0)
    monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", 60.0)
    ready = llamacpp()
    async with (
        FakeServer() as server,
        session(server.url, tmp_path, monkeypatch, ignored=IGNORED) as client,
    ):
        server.otherwise = GONE
        client.server.services.counts.seconds = 60.0
        client.open(WORDS, uri=f"{tmp_path.as_uri()}/a.md")
        await client.take("status/update", shows("~"))
        append = {"session": "s", "turns": [{"role": "user", "content": WORDS}]}
        usage = await client.request("context/append", append)
        assert (usage["method"], server.posts()) == ("estimate", [])
        server.headers, server.routes = ready.headers, ready.routes
        await client.take("status/update", shows("exact"))
        await until(lambda: len(server.posts()) >= 6)
        usage = await client.request("context/usage", {"session": "s"})
        while usage["method"] != "endpoint":
            usage = await client.request("context/usage", {"session": "s"})
        asked = server.posts()
        # Two texts and two chats of the probe, the document, and the conversation.
        assert (asked.count("/tokenize"), len(asked)) == (3, 6), asked
        assert retries(client) == []
        client.ignore("status/update")


async def test_a_server_that_stays_away_is_asked_once_a_back_off_and_only_for_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.endpoints.endpoint.FIRST_BACKOFF", 0.01)
    uri = f"{tmp_path.as_uri()}/a.md"
    async with (
        FakeServer() as server,
        session(server.url, tmp_path, monkeypatch) as client,
    ):
        server.otherwise = GONE
        await client.request("tokens/count", {"text": WORDS})
        assert retries(client) == [], "nothing open waits for it"
        probe = len(server.asked)
        client.open(WORDS, uri=uri)
        await until(lambda: len(server.asked) >= 5 * probe)
        assert len(retries(client)) == 1
        client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        await until(lambda: not retries(client))
