"""Tests that servers and their models are detected with few requests, and again when they may have
changed.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.cli.count import count
from sidecar.config.settings import Endpoint
from sidecar.endpoints import endpoints as endpoints_module
from sidecar.endpoints import local_servers
from sidecar.endpoints.counting_requests import ListedModel, Server, list_entries
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.http import Connection
from sidecar.endpoints.outcome import ENDPOINTS_OFF, WINDOW_ONLY, EndpointCount, Miss
from tests.unit.endpoints_fake_server import (
    CHAT_PATH,
    REASONS,
    Canned,
    FakeServer,
    expect_count,
    expect_miss,
    listing,
    llamacpp,
    words,
)
from tests.unit.endpoints_server_forms import MODELS, SERVERS, number

HELLO = "hello world, how many tokens are you?"
KINDS = {kind.name: kind for kind in vars(local_servers).values() if isinstance(kind, Server)}
REFERENCE = Path(__file__).parents[2] / "docs/reference/endpoints.md"


def test_every_kind_of_server_has_answers() -> None:
    """llama.cpp needs no recorded answers, because tests/e2e/llama runs the real server."""
    answered = {form.server for form in SERVERS.values()}
    assert answered == KINDS.keys() - {"llamacpp"}, "update fixtures/cases/model_servers.toml"


def test_the_reference_has_a_row_for_every_kind_of_server() -> None:
    section = REFERENCE.read_text("utf-8").split("\n## Servers\n\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()[2:]]
    found = {
        re.sub(r"\W", "", name).lower(): (texts != "no", chats != "no")
        for names, texts, chats, _ in rows
        for name in names.split(",")
    }
    expected = {
        name.replace("-", ""): (bool(kind.text) or kind.text_by_chat, bool(kind.chat))
        for name, kind in KINDS.items()
    }
    expected["lmstudio"] = (True, False)  # LM Studio counts with its SDK, not over HTTP
    assert found == expected, "update the table `Servers` of docs/reference/endpoints.md"


@pytest.mark.parametrize("case", SERVERS)
async def test_every_kind_of_server_is_recognized_and_counts(case: str) -> None:
    form = SERVERS[case]
    name, limit = form.server, form.limit
    text, chat = (
        "supported" if has_count else "unsupported" for has_count in (form.text, form.chat)
    )
    async with form.start() as server:
        if name == "lmstudio":
            server.otherwise = Canned(body={"error": "Unexpected endpoint or method."})
        endpoints = server.endpoints("tiny")
        [row] = await endpoints.probe()
        assert (row.server, row.text, row.chat, row.limit) == (name, text, chat, limit)
        assert len(server.asked) <= 12
        assert await endpoints.limit("tiny") == limit
        assert endpoints.known_limit("tiny") == limit
        before = len(server.asked)
        count = await endpoints.count_text("tiny", HELLO)
        if form.text:
            expected = len(HELLO) // 3
            assert isinstance(count, EndpointCount)
            assert (count.tokens, count.server) == (expected, name)
            assert len(server.asked) - before <= (2 if name == "litellm" else 1)
        else:
            assert isinstance(count, Miss)
            assert len(server.asked) == before
        if name in ("ollama", "lmstudio"):
            assert set(server.posts()) <= {"/api/show"}, "nothing that could load a model"


async def test_first_llamacpp_count_takes_at_most_nine_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock stands still, because the server is probed again when a second has passed."""
    monkeypatch.setattr(endpoints_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert await endpoints.limit("tiny") == 2048
        expect_count(await endpoints.count_chat("tiny", [{"role": "user", "content": "hi"}]))
        assert len(server.asked) <= 9
        before = len(server.asked)
        for size in range(1, 201):
            expect_count(await endpoints.count_text("tiny", "word " * size), words("word " * size))
        assert len(server.asked) == before + 200


@pytest.mark.parametrize("listed", [True, False], ids=["with a list", "without a list"])
async def test_unidentified_server_takes_few_requests(listed: bool) -> None:
    async with llamacpp() as server:
        server.headers.clear()
        server.routes[MODELS] = listing("tiny") if listed else Canned(404)
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert len(server.asked) <= (11 if listed else 8)
        before = len(server.asked)
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert len(server.asked) == before + 1


async def test_concurrent_first_counts_share_one_probe() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        counts = await asyncio.gather(*(endpoints.count_text("tiny", HELLO) for _ in range(20)))
        assert all(isinstance(count, EndpointCount) for count in counts)
        assert [asked.path for asked in server.asked].count("/v1/models") == 1
        assert len(server.asked) <= 7 + 20


async def test_disabled_endpoints_send_no_request() -> None:
    async with llamacpp() as server:
        endpoints = Endpoints([Endpoint(url=server.url)], False, {})
        expect_miss(await endpoints.count_text("tiny", HELLO), "off")
        expect_miss(await endpoints.count_chat("tiny", []))
        assert await endpoints.limit("tiny") is None
        [row] = await endpoints.probe(model="tiny")
        assert (row.text, row.chat, row.checked_at) == ("unknown", "unknown", None)
        assert not endpoints.serves("tiny")
        await endpoints.aclose()
        assert server.asked == []


async def test_text_of_an_undeclared_model_is_not_sent() -> None:
    async with llamacpp("qwen-coder") as server:
        endpoints = server.endpoints("qwen-*", "llama-3")
        for model in ("gpt-5", "my-qwen-coder"):
            expect_miss(await endpoints.count_text(model, HELLO), "undeclared")
        assert server.asked == []
        expect_count(await endpoints.count_text("Qwen-Coder", HELLO))
        assert endpoints.serves("llamacpp/qwen-coder")


async def test_empty_text_is_counted_without_a_request() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", ""), 0)
        assert server.asked == []


async def test_other_model_than_the_loaded_one_is_not_counted() -> None:
    async with llamacpp("Qwen3-4B-Q4_K_M.gguf") as server:
        endpoints = server.endpoints()
        miss = expect_miss(await endpoints.count_text("llama-3-8b", HELLO), "unknown")
        assert "Qwen3-4B" in miss.reason
        assert server.posts() == []
        expect_count(await endpoints.count_text("qwen3-4b", HELLO))


async def test_alias_identifies_a_model() -> None:
    async with llamacpp("/models/x.gguf") as server:
        server.routes[MODELS] = listing("/models/x.gguf", aliases=["tiny", "small"])
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("small", HELLO))
        expect_miss(await endpoints.count_text("large", HELLO))


async def test_router_does_not_load_a_model_for_a_count() -> None:
    async with llamacpp() as server:
        states = {"tiny": "loaded", "big": "unloaded", "slow": "loading"}
        data = [{"id": name, "status": {"value": value}} for name, value in states.items()]
        server.routes[MODELS] = Canned(body={"data": data})
        endpoints = server.endpoints()
        for model in ("big", "slow"):
            expect_miss(await endpoints.count_text(model, HELLO), "unknown")
        assert server.posts() == []
        expect_count(await endpoints.count_text("tiny", HELLO))
        posts = [asked for asked in server.asked if asked.method == "POST"]
        assert {asked.query for asked in posts} == {"autoload=false"}
        assert {asked.body["model"] for asked in posts} == {"tiny"}


async def test_model_swapping_proxy_is_not_asked_to_count() -> None:
    async with FakeServer({MODELS: listing("tiny", owned_by="llama-swap")}) as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", HELLO))
        assert server.posts() == []


async def test_localai_does_not_load_a_model_for_a_count() -> None:
    async with SERVERS["localai"].start() as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("other", HELLO), "unknown")
        assert server.posts() == []


async def test_servers_own_list_of_models_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server need not have `/v1/models`."""

    async def loaded(connection: Connection, _: Sequence[ListedModel]) -> list[ListedModel]:
        return list_entries(await connection.get("/api/models"), "models", ListedModel)

    monkeypatch.setattr(local_servers, "KOBOLDCPP", replace(local_servers.KOBOLDCPP, loaded=loaded))
    routes = {
        ("POST", "/api/extra/tokencount"): number("prompt", "value"),
        ("GET", "/api/models"): Canned(body={"models": [{"id": "tiny"}]}),
    }
    async with FakeServer(routes) as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", HELLO))
        miss = expect_miss(await endpoints.count_text("other", HELLO))
        assert miss.reason.startswith("koboldcpp does not have other loaded")


async def test_restart_with_another_model_is_noticed() -> None:
    server = llamacpp("tiny")
    async with server:
        endpoints = Endpoints([Endpoint(url=server.url)], True, {})
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert await endpoints.limit("tiny") == 2048
    server.routes = llamacpp("other").routes
    server.routes["GET", "/props"] = Canned(body={"default_generation_settings": {"n_ctx": 512}})
    async with server:
        miss = await endpoints.count_text("tiny", HELLO)
        assert isinstance(miss, Miss), "never a count of one model by another's tokenizer"
        assert "other" in miss.reason
        expect_count(await endpoints.count_text("other", HELLO))
        assert await endpoints.limit("other") == 512
        await endpoints.aclose()


async def test_restart_with_the_same_model_takes_one_request() -> None:
    server = llamacpp("tiny")
    async with server:
        endpoints = Endpoints([Endpoint(url=server.url)], True, {})
        expect_count(await endpoints.count_text("tiny", HELLO))
    async with server:
        before = len(server.asked)
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert len(server.asked) == before + 2
        await endpoints.aclose()


async def test_second_endpoint_counts_if_the_first_cannot() -> None:
    async with llamacpp("other") as first, llamacpp("tiny") as second:
        declared = [Endpoint(url=first.url), Endpoint(url=f"{second.url}/v1/")]
        endpoints = Endpoints(declared, True, {})
        count = expect_count(await endpoints.count_text("tiny", HELLO))
        assert count.endpoint == second.url
        assert first.posts() == []
        assert len(endpoints.capabilities()) == 2
        assert len(await endpoints.probe(first.url, "tiny")) == 1
        await endpoints.aclose()


async def test_a_known_window_is_not_asked_for_at_another_endpoint() -> None:
    async with llamacpp("tiny") as first, llamacpp("tiny") as second:
        endpoints = Endpoints([Endpoint(url=first.url), Endpoint(url=second.url)], True, {})
        assert endpoints.is_window_due("tiny")
        assert await endpoints.limit("tiny") == 2048
        assert (second.asked, endpoints.is_window_due("tiny")) == ([], False)
        await endpoints.aclose()


async def test_probe_without_a_model_uses_a_listed_one() -> None:
    async with llamacpp("llama-3", "qwen-coder") as server:
        endpoints = server.endpoints("qwen-*")
        [row] = await endpoints.probe()
        assert (row.model, row.text, row.chat, row.limit) == (
            "qwen-coder",
            "supported",
            "supported",
            2048,
        )
    [row] = await server.endpoints("qwen-*").probe()
    assert (row.model, row.text) == ("qwen-*", "unreachable")


async def test_window_stays_known_while_the_server_is_unreachable() -> None:
    async with llamacpp() as server:
        endpoints = Endpoints([Endpoint(url=server.url)], True, {})
        assert await endpoints.limit("tiny") == 2048
    expect_miss(await endpoints.count_text("tiny", HELLO), "unreachable")
    assert endpoints.known_limit("tiny") == 2048
    await endpoints.aclose()


async def test_key_is_sent_only_in_the_header() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints(key="LLAMA_KEY", LLAMA_KEY="s3cret")
        expect_count(await endpoints.count_text("tiny", HELLO))
        assert {asked.headers["authorization"] for asked in server.asked} == {"bearer s3cret"}


@pytest.mark.parametrize("value", [None, "", "s3cret\nx", "s3crét"])
async def test_without_a_usable_key_nothing_is_sent(value: str | None) -> None:
    async with llamacpp() as server:
        environment = {} if value is None else {"LLAMA_KEY": value}
        endpoints = server.endpoints(key="LLAMA_KEY", **environment)
        miss = expect_miss(await endpoints.count_text("tiny", HELLO), "auth")
        assert "LLAMA_KEY" in miss.reason
        assert "s3cr" not in miss.reason
        assert server.asked == []


async def test_nothing_private_is_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="sidecar")
    async with llamacpp() as server:
        url = server.url.replace("://", "://user:passw0rd@")
        endpoints = Endpoints([Endpoint(url=url, api_key_env="K")], True, {"K": "s3cret"})
        expect_count(await endpoints.count_text("tiny", "my private prose"))
        server.otherwise, server.routes = Canned(500), {}
        miss = await endpoints.count_text("tiny", "more private prose")
        await endpoints.aclose()
    shown = f"{caplog.text} {miss} {endpoints.capabilities()}"
    assert "text supported" in shown
    for secret in ("passw0rd", "s3cret", "private"):
        assert secret not in shown


SPECIAL = "text with <|im_end|> in it"


async def test_special_tokens_are_counted_as_text_or_not_sent() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", SPECIAL))
        assert server.asked[-1].body["parse_special"] is False
    async with SERVERS["vllm"].start() as server:
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", SPECIAL))
        assert all(asked.body.get("prompt") != SPECIAL for asked in server.asked if asked.body)
        expect_count(await endpoints.count_text("tiny", HELLO))


async def test_lone_surrogates_and_nulls_are_sent_as_valid_json() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", "a\x00b\ud83d c \ud83d\ude00"))
        assert server.asked[-1].body["content"] == "a\x00b\ufffd c \U0001f600"


async def test_bad_request_does_not_disable_the_endpoint() -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()
        expect_count(await endpoints.count_text("tiny", HELLO))
        chat = server.routes["POST", CHAT_PATH]
        server.routes["POST", CHAT_PATH] = Canned(400, {"error": {}})
        messages = [{"role": "user", "content": "hi"}]
        expect_miss(await endpoints.count_chat("tiny", messages))
        server.routes["POST", CHAT_PATH] = chat
        expect_count(await endpoints.count_chat("tiny", messages))


async def test_url_that_mentions_a_status_does_not_hide_a_fault() -> None:
    async with llamacpp() as server:
        server.routes = {
            (method, f"/HTTP%204{path}"): route for (method, path), route in server.routes.items()
        }
        endpoints = Endpoints([Endpoint(url=f"{server.url}/HTTP 4")], True, {})
        expect_count(await endpoints.count_text("tiny", HELLO))
        server.routes["POST", "/HTTP%204/tokenize"] = Canned(body=b"not JSON")
        expect_miss(await endpoints.count_text("tiny", f"{HELLO}!"))
        asked = len(server.asked)
        expect_miss(await endpoints.count_text("tiny", f"{HELLO}?"))
        assert len(server.asked) == asked, "the fault is remembered"
        await endpoints.aclose()


async def test_messages_are_not_read_on_the_event_loop() -> None:
    readers: set[str] = set()

    class Blocks(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            readers.add(threading.current_thread().name)
            return super().__iter__()

        def __repr__(self) -> str:
            readers.add(threading.current_thread().name)
            return super().__repr__()

    async with llamacpp() as server:
        endpoints = server.endpoints()
        messages = [{"role": "user", "content": Blocks([{"type": "text", "text": HELLO}])}]
        expect_count(await endpoints.count_chat("tiny", messages))
        assert readers
        assert threading.current_thread().name not in readers


async def test_chats_are_counted_by_a_server_without_text_counts() -> None:
    async with llamacpp() as server:
        server.routes["POST", "/tokenize"] = Canned(404)
        endpoints = server.endpoints()
        expect_miss(await endpoints.count_text("tiny", HELLO))
        messages = [{"role": "user", "content": HELLO}]
        expect_count(await endpoints.count_chat("tiny", messages))
        [row] = endpoints.capabilities()
        assert (row.text, row.chat) == ("unsupported", "supported")


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
        del server.routes["POST", "/tokenize"], server.routes["POST", CHAT_PATH]
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


@pytest.mark.parametrize("path", ["/tokenize", CHAT_PATH])
async def test_server_that_starts_returning_constants_is_detected(path: str) -> None:
    async with llamacpp() as server:
        endpoints = server.endpoints()

        async def count(number: int) -> EndpointCount | Miss:
            text = "word " * number
            if path == CHAT_PATH:
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
    gone = Endpoints([Endpoint(url="http://127.0.0.1:9")], False, {}, window=True)
    assert await gone.limit("tiny") is None
    [row] = gone.capabilities()
    assert "start the server" in (row.reason or "")
    await gone.aclose()


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
