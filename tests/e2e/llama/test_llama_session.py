"""Tests a session's counts with a real llama.cpp, and how many requests they need."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.endpoints.endpoints import DELAYS
from sidecar.server.server import create_server
from tests.e2e.llama.counting_proxy import CountingProxy
from tests.e2e.llama.own import chat_tokens, text_tokens
from tests.protocol.client import Client
from tests.unit.endpoints_fake_server import FakeServer

IGNORED = ("status/update", "context/warning", "textDocument/publishDiagnostics")
TEXTS = [
    "def f(x: int) -> int:\n    return x + 1\n",
    '{"key": [1, 2, {"nested": null}]}',
    "Ein Satz, and another one, with some more words in it.",
    "日本語のテキスト 中文 한국어 😀",
]


@asynccontextmanager
async def session(
    url: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    use_endpoint: bool = True,
    more: str = "",
    ignored: tuple[str, ...] = IGNORED,
) -> AsyncIterator[Client]:
    """Start a server with this endpoint for the model `tiny`, and yield a client."""
    file = folder / "config.toml"
    switch = "true" if use_endpoint else "false"
    file.write_text(
        f'model = "tiny"\n[tokenize]\nuse-endpoint = {switch}\n{more}'
        f'[[endpoint]]\nurl = "{url}/v1"\nmodels = ["tiny"]\n'
    )
    monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(file))
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(folder / "state"))
    server = create_server()
    client = Client(server)
    client.ignore(*ignored)
    await client.initialize(root=folder.as_uri())
    yield client
    await server.services.aclose()
    server.close()


async def test_a_thousand_counts_through_the_server(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        CountingProxy(llama_url) as proxy,
        session(proxy.url, tmp_path, monkeypatch) as client,
    ):
        first = await client.request("tokens/count", {"text": "hello world"})
        assert (first["tokens"], first["method"], first["errorPercent"]) == (2, "endpoint", 0)
        assert (first["limit"], proxy.requests <= 8) == (4096, True)
        before = proxy.requests
        for number in range(1_000):
            text = f"{number} {TEXTS[number % len(TEXTS)]}"
            count = await client.request("tokens/count", {"text": text})
            assert count["method"] == "endpoint", count
            if number % 100 == 0:
                assert count["tokens"] == text_tokens(llama_url, text)
        assert proxy.requests - before == 1_000


async def test_disabled_endpoints_get_no_request_in_a_whole_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FakeServer() as fake,
        session(fake.url, tmp_path, monkeypatch, use_endpoint=False) as client,
    ):
        client.open("hello world\n", uri=f"{tmp_path.as_uri()}/a.md")
        for params in ({"text": "hello world"}, {"messages": [{"role": "user", "content": "x"}]}):
            count = await client.request("tokens/count", params)
            assert count["method"] == "estimate"
        await client.request("context/append", {"turns": [{"role": "user", "content": "x"}]})
        await client.request("capabilities/list", {})
        await client.request("capabilities/probe", {})
        await client.request("capabilities/probe", {"model": "tiny"})
        assert fake.asked == []


async def test_after_a_404_the_default_estimate_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeServer() as fake, session(fake.url, tmp_path, monkeypatch) as client:
        for _ in range(3):
            count = await client.request("tokens/count", {"text": "hello world"})
            assert (count["tokens"], count["method"]) == (2, "estimate")
        asked = len(fake.asked)
        empty = await client.request("tokens/count", {"text": ""})
        assert (empty["tokens"], empty["method"]) == (0, "exact")
        assert len(fake.asked) == asked


async def test_the_context_of_200_turns_equals_the_servers_count_at_every_turn(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(7)
    async with (
        CountingProxy(llama_url) as proxy,
        session(proxy.url, tmp_path, monkeypatch) as client,
    ):
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
        await client.request("context/set", {"session": "s", "systemPrompt": "Be brief."})
        pruned_at, over_at = None, None
        for number in range(200):
            role = "assistant" if number % 2 else "user"
            text = " ".join(source.choices(TEXTS, k=source.randint(1, 2)))
            turn = {"role": role, "content": text}
            messages.append(turn)
            before = proxy.requests
            usage = await client.request("context/append", {"session": "s", "turns": [turn]})
            asked = proxy.requests - before
            own = chat_tokens(llama_url, messages)
            assert (usage["tokens"], usage["method"]) == (own, "endpoint"), number
            assert usage["limitSource"] == "endpoint"
            assert asked == 1 or number == 0, number
            if usage["shouldPrune"] and pruned_at is None:
                pruned_at = number
            if own > usage["usable"] * 0.95 and over_at is None:
                over_at = number
        assert pruned_at == over_at is not None


async def test_capabilities_are_reported_over_the_protocol(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(llama_url, tmp_path, monkeypatch) as client:
        [before] = await client.request("capabilities/list", {})
        assert (before["text"], before["checkedAt"]) == ("unknown", None)
        [row] = await client.request("capabilities/probe", {})
        assert row["checkedAt"]
        assert {key: row[key] for key in ("model", "server", "text", "chat", "limit")} == {
            "model": "tiny",
            "server": "llamacpp",
            "text": "supported",
            "chat": "supported",
            "limit": 4096,
        }
        assert await client.request("capabilities/list", {}) == [row]


async def test_abandoned_counts_are_not_sent_to_a_slow_server(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", 60.0)
    async with (
        CountingProxy(llama_url) as proxy,
        session(proxy.url, tmp_path, monkeypatch) as client,
    ):
        counts = client.server.services.counts
        counts.seconds = 60.0
        await client.request("tokens/count", {"text": "hello world"})
        before, counts.seconds = proxy.requests, 0.05
        proxy.flows.clear()
        texts = [{"text": f"{number} {TEXTS[0]}"} for number in range(20)]
        asking = [client.request("tokens/count", text) for text in texts]
        assert {one["method"] for one in await asyncio.gather(*asking)} == {"estimate"}
        counts.seconds = 60.0
        proxy.flows.set()
        result = await client.request("tokens/count", {"text": TEXTS[2]})
        assert (result["tokens"], result["method"]) == (
            text_tokens(llama_url, TEXTS[2]),
            "endpoint",
        )
        assert proxy.requests - before <= 2, "the pending request and this one"


async def test_a_conversation_that_a_slow_server_missed_is_counted_soon(
    llama_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DELAYS, "unreachable", (0.2, 300.0))
    monkeypatch.setattr("sidecar.endpoints.http.REQUEST_SECONDS", 60.0)
    async with (
        CountingProxy(llama_url) as proxy,
        session(proxy.url, tmp_path, monkeypatch) as client,
    ):
        counts = client.server.services.counts
        counts.seconds = 60.0
        messages = [{"role": "user", "content": text} for text in TEXTS[:2]]
        for turn in messages:
            usage = await client.request("context/append", {"session": "s", "turns": [turn]})
            if turn is messages[0]:
                assert usage["method"] == "endpoint"
                counts.seconds = 0.05
                proxy.flows.clear()
        assert usage["method"] == "estimate"
        counts.seconds = 60.0
        proxy.flows.set()
        async with asyncio.timeout(60):
            while usage["method"] != "endpoint":
                await asyncio.sleep(0.01)
                usage = await client.request("context/usage", {"session": "s"})
        assert usage["tokens"] == chat_tokens(llama_url, messages)
