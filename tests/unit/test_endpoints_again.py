"""Tests that probe results are refreshed when the server may have changed."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.count import count
from sidecar.config.settings import Endpoint
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import ENDPOINTS_OFF, WINDOW_ONLY, EndpointCount, Miss
from tests.unit.endpoints_fake_server import (
    REASONS,
    Canned,
    FakeServer,
    expect_count,
    expect_miss,
    llamacpp,
)


async def test_reply_larger_than_the_window_refreshes_it() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        assert await endpoints.limit("tiny") == 2048
        server.routes["GET", "/props"] = Canned(
            body={"default_generation_settings": {"n_ctx": 16_384}}
        )
        asked = endpoints.requests
        await endpoints.refresh_window("tiny", 2_000)
        assert (endpoints.requests, endpoints.known_limit("tiny")) == (asked, 2048)
        await endpoints.refresh_window("tiny", 3_000)
        assert endpoints.known_limit("tiny") == 16_384


async def test_unsupported_server_is_retried_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    async with llamacpp() as server:
        routes = dict(server.routes)
        del server.routes["POST", "/tokenize"], server.routes["POST", CHAT]
        endpoints = server.endpoints()
        probes = []
        for second in range(0, 600, 10):
            now = float(second)
            before = endpoints.requests
            expect_miss(await endpoints.count_text("tiny", "hello world"))
            probes += [second] if endpoints.requests > before else []
            assert endpoints.known_limit("tiny") == 2048, "the window stays"
        assert probes == [0, 60, 180, 420]
        server.routes = routes
        now = 900.0
        expect_count(await endpoints.count_text("tiny", "hello world"))


async def test_explicit_probe_ignores_the_backoff() -> None:
    async with llamacpp() as server:
        routes, server.routes = server.routes, {}
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", "hello world"))
        server.routes = routes
        [row] = await endpoints.probe(model="tiny")
        assert (row.text, row.chat, row.reason) == ("supported", "supported", None)


CHAT = "/v1/chat/completions/input_tokens"


@pytest.mark.parametrize("path", ["/tokenize", CHAT])
async def test_server_that_starts_returning_constants_is_detected(path: str) -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()

        async def count(number: int) -> EndpointCount | Miss:
            text = "word " * number
            if path == CHAT:
                return await endpoints.count_chat("tiny", [{"role": "user", "content": text}])
            return await endpoints.count_text("tiny", text)

        expect_count(await count(20))
        answer = {"tokens": list(range(77)), "input_tokens": 77}
        server.routes["POST", path] = Canned(body=answer)
        await count(20)
        found = expect_miss(await count(80), "lying")
        assert "77" in found.reason


async def test_endpoint_window_requests_only_the_window() -> None:
    async with llamacpp() as server:
        declared = [Endpoint(url=server.url)]
        endpoints = Endpoints(declared, False, {}, window=True)
        assert await endpoints.limit("tiny") == 2048
        assert not endpoints.serves("tiny")
        found = await endpoints.count_text("tiny", "hello world")
        assert (server.posts(), found) == ([], Miss(ENDPOINTS_OFF, "off"))
        [row] = endpoints.capabilities()
        assert (row.limit, row.reason) == (2048, WINDOW_ONLY)
        await endpoints.aclose()
        silent = Endpoints(declared, False, {})
        assert await silent.limit("tiny") is None
        [row] = await silent.probe()
        assert (row.reason, silent.requests) == (ENDPOINTS_OFF, 0)


WINDOW_ALONE = 'model = "tiny"\n[tokenize]\nendpoint-window = true\n[[endpoint]]\nurl = "{}"\n'


async def test_endpoint_window_is_the_limit_of_count_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.md").write_text("hello world")
    async with llamacpp() as server:
        (tmp_path / "config.toml").write_text(WINDOW_ALONE.format(server.url))
        monkeypatch.setenv("TOKEN_SIDECAR_CONFIG", str(tmp_path / "config.toml"))
        arguments = [str(tmp_path / "a.md"), "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, count, arguments)
        [file] = json.loads(result.output)["files"]
        assert (file["limit"], file["limitSource"]) == (2_048, "endpoint")
        assert (file["method"], server.posts()) == ("estimate", [])


@pytest.mark.parametrize(("answer", "step"), REASONS)
async def test_each_reason_contains_advice(answer: Canned, step: str) -> None:
    async with FakeServer({("GET", "/v1/models"): answer}) as server:
        endpoints = server.endpoints()
        miss = expect_miss(await endpoints.count_text("tiny", "hello world"))
        assert step in miss.reason
        [row] = endpoints.capabilities()
        assert row.reason == miss.reason
