"""Tests that the server probes endpoints again after failures, and shows their current counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.endpoints.endpoints import DELAYS
from tests.e2e.llama.test_llama_session import session
from tests.protocol.client import Client, edit, until
from tests.unit.endpoints_fake_server import (
    REASONS,
    Asked,
    Canned,
    FakeServer,
    Ollama,
    listing,
    llamacpp,
)

IGNORED = ("context/warning", "textDocument/publishDiagnostics")


def reply(prompt: int, output: int, reason: str = "stop") -> dict[str, Any]:
    """Return a response to `/api/chat`."""
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
        assert before["limitSource"] == "default", "the model's maximum is not what it will get"
        server.running["tiny:latest"] = 4_096
        await client.request("context/response", {"session": "s", "response": reply(30, 4)})
        after = await client.request("context/usage", {"session": "s"})
        assert (after["limit"], after["limitSource"]) == (4_096, "endpoint")
        # The model has been loaded again with `options: {num_ctx: 8192}`.
        server.running["tiny:latest"] = 8_192
        usage = {"prompt_tokens": 5_000, "completion_tokens": 4}
        turns = [{"role": "assistant", "content": "Yes."}, turn]
        after = await client.request(
            "context/append", {"session": "s", "turns": turns, "usage": usage}
        )
        assert after["limit"] == 8_192


async def test_window_is_requested_again_after_a_change_of_model(
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
    (False, listing("tiny"), "endpoints are disabled: set use-endpoint = true"),
    (True, *REASONS[0]),
    (True, *REASONS[2]),
    (True, *REASONS[3]),
    (True, *REASONS[4]),
]


@pytest.mark.parametrize(("use", "answer", "step"), NEXT_STEPS)
async def test_tooltip_explains_why_an_endpoint_does_not_count(
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


async def test_endpoints_window_is_shown_without_a_conversation(
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
    """Return the scheduled retries of unavailable endpoints."""
    return [key for key in client.server.scheduler._jobs if key[0] == "endpoint"]


def shows(mark: str) -> Callable[[Any], bool]:
    """Return a function that checks the document's count in a status.

    If `mark` is "~", the count must be an estimate. Otherwise, it must not be an estimate.
    """
    return lambda one: one["document"] and ("~" in one["document"]["text"]) == (mark == "~")


@pytest.mark.real_delays
async def test_recovered_endpoint_recounts_untouched_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DELAYS, "unreachable", (0.2, 300.0))
    monkeypatch.setattr("sidecar.endpoints.endpoints.PROBE_SECONDS", 60.0)
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
        # The probe sends two strings and two conversations. The other requests count the document
        # and the session.
        assert (asked.count("/tokenize"), len(asked)) == (3, 6), asked
        assert retries(client) == []
        client.ignore("status/update")


async def test_unavailable_endpoint_is_asked_once_per_backoff_for_open_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DELAYS, "unreachable", (0.01, 300.0))
    uri = f"{tmp_path.as_uri()}/a.md"
    async with (
        FakeServer() as server,
        session(server.url, tmp_path, monkeypatch) as client,
    ):
        server.otherwise = GONE
        await client.request("tokens/count", {"text": WORDS})
        assert retries(client) == [], "no open document needs the endpoint"
        probe = len(server.asked)
        client.open(WORDS, uri=uri)
        await until(lambda: len(server.asked) >= 5 * probe)
        assert len(retries(client)) == 1
        client.notify("textDocument/didClose", {"textDocument": {"uri": uri}})
        await until(lambda: not retries(client))


CHAT = "/v1/chat/completions/input_tokens"
TOKENIZE = "/tokenize"


def held(server: FakeServer, path: str = CHAT) -> asyncio.Event:
    """Delay the server's responses at a path until the returned event is set."""
    real, gate = server.routes["POST", path], asyncio.Event()

    async def slow(asked: Asked) -> Canned:
        await gate.wait()
        answer = real(asked) if callable(real) else real
        return answer if isinstance(answer, Canned) else await answer

    server.routes["POST", path] = slow
    return gate


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten retry delays, and disable timeouts."""
    monkeypatch.setitem(DELAYS, "unreachable", (0.2, 300.0))
    monkeypatch.setattr("sidecar.endpoints.endpoints.PROBE_SECONDS", 60.0)
    monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", 60.0)


async def counted_by_the_endpoint(client: Client, name: str = "s") -> None:
    """Wait until the endpoint has counted a session. `context/usage` does not trigger a count."""
    async with asyncio.timeout(60):
        usage: Any = {"method": ""}
        while usage["method"] != "endpoint":
            usage = await client.request("context/usage", {"session": name})
            await asyncio.sleep(0.01)


def append(name: str = "s", text: str = WORDS) -> dict[str, Any]:
    return {"session": name, "turns": [{"role": "user", "content": text}]}


@pytest.mark.usefixtures("patient")
async def test_late_conversation_counts_are_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        counts = client.server.services.counts
        counts.seconds = 60.0
        for name in ("s", "t"):
            usage = await client.request("context/append", append(name))
            assert usage["method"] == "endpoint"
        gate, counts.seconds = held(server), 0.05
        for name in ("s", "t"):  # A slow server is not treated as unavailable.
            usage = await client.request("context/append", append(name, WORDS * 9))
            assert usage["method"] == "estimate"
        assert len(retries(client)) == 1, "each model has one timer"
        counts.seconds = 60.0
        gate.set()
        for name in ("s", "t"):
            await counted_by_the_endpoint(client, name)
        await until(lambda: not retries(client))


@pytest.mark.usefixtures("patient")
async def test_conversation_of_a_cancelled_request_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.server.services.counts.seconds = 60.0
        await client.request("context/append", append())
        gate = held(server)
        asked = server.posts().count(CHAT)
        message = {"jsonrpc": "2.0", "id": "cancelled", "method": "context/append"}
        answer = asyncio.ensure_future(client.raw({**message, "params": append(text=WORDS * 9)}))
        await until(lambda: server.posts().count(CHAT) > asked)
        client.notify("$/cancelRequest", {"id": "cancelled"})
        assert "error" in await answer
        gate.set()
        await counted_by_the_endpoint(client)
        usage = await client.request("context/usage", {"session": "s"})
        assert usage["turns"] == 2


@pytest.mark.usefixtures("patient")
async def test_conversation_fitted_during_a_count_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`context/fit` removes turns while the endpoint is still counting them."""
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.server.services.counts.seconds = 60.0
        for _ in range(8):
            before = await client.request("context/append", append(text=WORDS * 9))
        gate, asked = held(server), server.posts().count(CHAT)
        pending = asyncio.ensure_future(client.request("context/append", append(text=WORDS)))
        await until(lambda: server.posts().count(CHAT) > asked)
        room = {"session": "s", "maxTokens": before["tokens"] // 2, "apply": True}
        await client.request("context/fit", room)
        gate.set()
        await pending
        await counted_by_the_endpoint(client)
        usage = await client.request("context/usage", {"session": "s"})
        assert usage["turns"] < 9
        await until(lambda: not retries(client))
        assert server.posts().count(CHAT) == asked + 2, "one request per change"


@pytest.mark.usefixtures("patient")
async def test_conversation_is_counted_again_after_settings_closed_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.server.services.counts.seconds = 60.0
        await client.request("context/append", append())
        gate, asked = held(server), server.posts().count(CHAT)
        pending = asyncio.ensure_future(client.request("context/append", append(text=WORDS * 9)))
        await until(lambda: server.posts().count(CHAT) > asked)
        configuration = tmp_path / "config.toml"
        configuration.write_text(configuration.read_text().replace('["tiny"]', '["tiny", "b"]'))
        client.notify("workspace/didChangeConfiguration", {"settings": None})
        await pending
        gate.set()
        await counted_by_the_endpoint(client)


@pytest.mark.usefixtures("patient")
async def test_late_endpoint_is_asked_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.server.services.counts.seconds = 60.0
        await client.request("context/append", append())
        gate, client.server.services.counts.seconds = held(server), 0.01
        asked = server.posts().count(CHAT)
        for number in range(5):
            await client.request("context/append", append(text=f"{WORDS} {number}"))
        settings = client.server.services.roots.default.settings
        endpoints = client.server.services.counts.endpoints(settings)
        await until(lambda: (endpoints.retry_delay("tiny", "late") or 0.0) > 0.4)
        assert server.posts().count(CHAT) <= asked + 1, "there is only one pending request"
        gate.set()


async def test_connections_of_outdated_settings_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        counts = client.server.services.counts
        await client.request("tokens/count", {"text": WORDS})
        before = counts.endpoints(client.server.services.roots.default.settings)
        file = tmp_path / "config.toml"
        for name in ("one", "two"):
            models = f'models = ["tiny", "{name}"]'
            file.write_text(re.sub(r"models = .*", models, file.read_text()))
            client.notify("workspace/didChangeConfiguration", {"settings": None})
            await until(partial(declares, client, name))
            await client.request("tokens/count", {"text": f"{WORDS} {name}"})
        await until(lambda: len(counts._endpoints) == 1)
        assert await before.limit("tiny") is None, "the old connection is closed"


@pytest.mark.usefixtures("patient")
async def test_running_fit_sends_nothing_to_a_removed_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.server.services.counts.seconds = 60.0
        params = {"text": "a,b;c,d;e,f;g,h\n" * 200, "maxTokens": 20, "model": "tiny"}
        await client.request("tokens/count", {"text": params["text"]})  # The endpoint counts words.
        gate, asked = held(server, TOKENIZE), server.posts().count(TOKENIZE)
        fitting = asyncio.ensure_future(client.request("tokens/fit", params))
        await until(lambda: server.posts().count(TOKENIZE) > asked)
        (tmp_path / "config.toml").write_text('model = "tiny"\n')
        client.notify("workspace/didChangeConfiguration", {"settings": None})
        await until(lambda: not client.server.services.roots.default.settings.endpoints)
        await until(lambda: not clients(client))
        sent = len(server.posts())
        gate.set()
        assert (await fitting)["method"] != "endpoint"
        assert len(server.posts()) == sent, "a removed endpoint receives no text"
        assert not clients(client)


def clients(client: Client) -> list[Any]:
    """Return the endpoints that text may be sent to."""
    return [one for key, one in client.server.services.counts._endpoints.items() if key[0]]


def declares(client: Client, model: str) -> bool:
    """Return whether the configured endpoint lists a model."""
    [one] = client.server.services.roots.default.settings.endpoints
    return model in one.models


KEYS = 20


async def test_long_document_is_sent_when_typing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the user is typing, the status shows estimates."""
    text = WORDS * 6_000
    uri = f"{tmp_path.as_uri()}/a.md"
    async with (
        llamacpp() as server,
        session(server.url, tmp_path, monkeypatch, ignored=IGNORED) as client,
    ):
        client.open(text, uri=uri)
        await client.take("status/update", shows("exact"))
        before = len(server.posts())
        for key in range(KEYS):
            client.change(edit((0, key), (0, key), "a"), uri=uri)
            await asyncio.sleep(0.05)
        versions = {one["params"]["version"] for one in client.unread}
        status = await client.take(
            "status/update", lambda one: one["version"] == client.version and shows("exact")(one)
        )
        assert status["document"]["method"] == "endpoint"
        assert len(server.posts()) - before <= 2
        assert len(versions) >= 3, "estimates are updated during typing"
        client.ignore("status/update")


async def test_requested_count_waits_for_a_pause_in_typing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the user continues typing, the result is an estimate."""
    uri = f"{tmp_path.as_uri()}/a.md"
    async with llamacpp() as server, session(server.url, tmp_path, monkeypatch) as client:
        client.ignore("status/update")
        client.open(WORDS * 6_000, uri=uri)
        assert (await client.count(uri))["method"] == "endpoint"
        client.change(edit((0, 0), (0, 0), "a"), uri=uri)
        assert (await client.count(uri))["method"] == "endpoint"
        client.change(edit((0, 0), (0, 0), "a"), uri=uri)
        counting = asyncio.ensure_future(client.count(uri))
        await asyncio.sleep(0.05)
        client.change(edit((0, 0), (0, 0), "a"), uri=uri)
        assert (await counting)["method"] != "endpoint"
