"""Tests the vendors' count endpoints, which are recognized by host and never probed with POST."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.endpoints import endpoints as endpoints_module
from sidecar.endpoints.clouds import Cloud, clouds, find_cloud
from sidecar.endpoints.http import root_of
from sidecar.endpoints.outcome import EndpointCount
from tests.cases import read_rows
from tests.unit.endpoints_fake_server import (
    Asked,
    Canned,
    FakeServer,
    Route,
    expect_count,
    words,
)

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather?"}
CALL = {
    "role": "assistant",
    "content": "Let me see.",
    "toolCalls": [{"id": "c1", "name": "weather", "arguments": {"city": "Bonn"}}],
}
RESULT = {"role": "tool", "toolCallId": "c1", "content": "Rain"}
CHAT: list[dict[str, Any]] = [SYSTEM, USER, CALL, RESULT]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": "weather", "description": "Tells", "input_schema": SCHEMA}]


def cloud(name: str) -> Cloud:
    return next(each for each in clouds() if each.server.name == name)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes `find_cloud` recognize every host as the named vendor's."""

    def as_cloud(name: str) -> None:
        monkeypatch.setattr(endpoints_module, "find_cloud", lambda _: cloud(name))

    return as_cloud


def text_of(field: str, answer: str, wrap: Any = int) -> Route:
    def route(asked: Asked) -> Canned:
        return Canned(body={answer: wrap(words(asked.body[field]))})

    return route


def token_ids(count: int) -> list[int]:
    return list(range(count))


def anthropic_count(asked: Asked) -> Canned:
    size = sum(len(str(message["content"])) for message in asked.body["messages"])
    return Canned(body={"input_tokens": size})


VENDORS: dict[str, tuple[dict[tuple[str, str], Route], tuple[str, int | None, bool, bool]]] = {
    "anthropic": (
        {
            ("GET", "/v1/models/m-1"): Canned(body={"id": "m-1", "max_input_tokens": 200000}),
            ("POST", "/v1/messages/count_tokens"): anthropic_count,
        },
        ("x-api-key", 200000, True, True),
    ),
    "openai": (
        {
            ("GET", "/v1/models/m-1"): Canned(body={"id": "m-1"}),
            ("POST", "/v1/responses/input_tokens"): lambda asked: Canned(
                body={"input_tokens": len(str(asked.body["input"]))}
            ),
        },
        ("authorization", None, True, True),
    ),
    "google": (
        {
            ("GET", "/v1beta/models/m-1"): Canned(body={"inputTokenLimit": 1048576}),
            ("POST", "/v1beta/models/m-1:countTokens"): Canned(body={"totalTokens": 9}),
        },
        ("x-goog-api-key", 1048576, True, True),
    ),
    "cohere": (
        {
            ("GET", "/v1/models/m-1"): Canned(body={"name": "m-1", "context_length": 128000.0}),
            ("POST", "/v1/tokenize"): text_of("text", "tokens", token_ids),
        },
        ("authorization", 128000, True, False),
    ),
    "xai": (
        {
            ("GET", "/v1/models/m-1"): Canned(body={"id": "m-1"}),
            ("POST", "/v1/tokenize-text"): text_of(
                "text", "token_ids", lambda n: [{"token_id": i} for i in range(n)]
            ),
        },
        ("authorization", None, True, False),
    ),
    "mistral": (
        {("GET", "/v1/models/m-1"): Canned(body={"id": "m-1", "max_context_length": 131072})},
        ("authorization", 131072, False, False),
    ),
    "openrouter": ({}, ("authorization", None, False, False)),
    "aws": ({}, ("authorization", None, False, False)),
}


@pytest.mark.parametrize("name", VENDORS)
async def test_each_vendor_is_probed_with_one_get_request(name: str, pretend: Any) -> None:
    routes, (header, limit, can_text, can_chat) = VENDORS[name]
    pretend(name)
    async with FakeServer(routes) as server:
        endpoints = server.endpoints("m-1", key="K", K="s3cret")
        [row] = await endpoints.probe()
        assert server.posts() == []
        assert len(server.asked) <= 1
        assert all("s3cret" in asked.headers[header] for asked in server.asked)
        assert (row.text == "supported", row.chat == "supported") == (can_text, can_chat)
        assert row.limit == limit
        text = await endpoints.count_text("m-1", "hello hello hello hello hello")
        assert isinstance(text, EndpointCount) is can_text
        chat = await endpoints.count_chat("m-1", CHAT, TOOLS)
        assert isinstance(chat, EndpointCount) is can_chat


@pytest.mark.parametrize("name", ["anthropic", "openai", "google", "cohere"])
async def test_missing_or_wrong_key(name: str, pretend: Any) -> None:
    pretend(name)
    async with FakeServer() as server:
        endpoints = server.endpoints("m-1", key="K")
        [row] = await endpoints.probe()
        assert (row.text, row.chat, server.asked) == ("auth", "auth", [])
        server.otherwise = Canned(401, {"error": {"message": "invalid x-api-key"}})
        endpoints = server.endpoints("m-1", key="K", K="wrong")
        [row] = await endpoints.probe()
        assert (row.text, row.chat, server.posts()) == ("auth", "auth", [])


async def test_anthropic_text_count_excludes_the_message_overhead(pretend: Any) -> None:
    pretend("anthropic")
    routes = dict(VENDORS["anthropic"][0])
    routes["POST", "/v1/messages/count_tokens"] = lambda asked: Canned(
        body={"input_tokens": 7 + len(asked.body["messages"][0]["content"][0]["text"])}
    )
    async with FakeServer(routes) as server:
        endpoints = server.endpoints("m-1", key="K", K="k")
        for text in ("hello", "hello world", "a"):
            expect_count(await endpoints.count_text("m-1", text), len(text))
        assert len(server.posts()) == 4, "one a text, and one for what a message costs"


async def test_anthropic_request(pretend: Any) -> None:
    pretend("anthropic")
    async with FakeServer(VENDORS["anthropic"][0]) as server:
        endpoints = server.endpoints("m-1", key="K", K="k")
        await endpoints.count_chat("m-1[1m]", CHAT, TOOLS)
        asked = server.asked[-1]
        assert asked.headers["anthropic-version"] == "2023-06-01"
        use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "Rain"}
        assert asked.body == {
            "model": "m-1",
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, use]},
                {"role": "user", "content": [result]},
            ],
            "tools": [{"name": "weather", "description": "Tells", "input_schema": SCHEMA}],
        }


async def test_openai_request(pretend: Any) -> None:
    pretend("openai")
    async with FakeServer(VENDORS["openai"][0]) as server:
        endpoints = server.endpoints("m-1", key="K", K="k")
        await endpoints.count_chat("m-1", CHAT, TOOLS)
        city = '{"city":"Bonn"}'
        assert server.asked[-1].body["input"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": city},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
        ]
        assert server.asked[-1].body["tools"][0]["parameters"] == SCHEMA


async def test_gemini_request(pretend: Any) -> None:
    pretend("google")
    async with FakeServer(VENDORS["google"][0]) as server:
        endpoints = server.endpoints("m-1", key="K", K="k")
        await endpoints.count_chat("m-1", CHAT, TOOLS)
        request = server.asked[-1].body["generateContentRequest"]
        assert request["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
        assert [content["role"] for content in request["contents"]] == ["user", "model", "user"]
        assert request["contents"][1]["parts"][1] == {
            "functionCall": {"name": "weather", "args": {"city": "Bonn"}}
        }
        assert request["tools"][0]["functionDeclarations"][0]["name"] == "weather"


@pytest.mark.parametrize(("host", "name"), read_rows("endpoints", "hosts", "host", "name"))
def test_hosts_are_compared_by_whole_domain_names(host: str, name: str | None) -> None:
    found = find_cloud(host)
    assert (found.server.name if found else None) == name


@pytest.mark.parametrize(("url", "suffixes", "root"), read_rows("endpoints", "roots"))
def test_root_of_a_url(url: str, suffixes: tuple[str, ...], root: str) -> None:
    assert root_of(url, suffixes) == root


MODELS_THAT_ARE_PATHS = (
    *("..", ".", "../../admin", "x/../../admin", "/admin", "//admin.example/x", "x?key=1"),
    *("x#admin", "%2e%2e/admin", "..\\admin", "x/./admin", "models/../admin", "x:generateContent"),
    *("x\r\nhost: admin", "x y", ""),
)


@pytest.mark.parametrize("name", VENDORS)
async def test_model_name_cannot_change_the_request_path(name: str, pretend: Any) -> None:
    """Requests go only to the vendor's count endpoint or to paths below its model list."""
    pretend(name)
    routes = VENDORS[name][0]
    counts = {path.rpartition("m-1")[2] for method, path in routes if method == "POST"}
    below = (cloud(name).show or "").removesuffix("{model}")
    async with FakeServer(routes) as server:
        server.otherwise = Canned(body={})
        for model in MODELS_THAT_ARE_PATHS:
            endpoints = server.endpoints("*", key="K", K="s3cret")
            await endpoints.count_text(model, "hello")
            await endpoints.count_chat(model, [USER], [])
    for asked in server.asked:
        parts = asked.path.removeprefix(below).split("/")
        known = asked.path in counts or asked.path.endswith(":countTokens")
        assert known if asked.method == "POST" else asked.path.startswith(below), asked
        assert asked.path in counts or not {"", ".", ".."} & set(parts), asked
        assert (asked.query, asked.headers["host"]) == ("", server.url[7:])
        assert "#" not in asked.path
