"""Tests counts, limits and requests with a real llama.cpp and real vocabularies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.config.settings import Endpoint
from sidecar.endpoints.endpoints import Endpoints
from sidecar.endpoints.outcome import EndpointCount, Miss
from sidecar.messages.replies import read_reply
from tests.e2e.llama.own import post, post_for_text, text_tokens
from tests.e2e.llama.server import llama, port_of
from tests.e2e.llama.vocabularies import NAMES

TEXTS = [
    "hello world",
    "def f(x: int) -> int:\n    return x + 1\n",
    "héllo wörld, naïve café",
    "日本語のテキスト 中文 한국어 😀👍🏽",
    "a  b   c\t\td\n\n\n e\r\nf",
    "it's we're I'll they'd 1234567890 3.14159",
    "<|im_start|>system\n<s>[INST]<|endoftext|>",
    '{"key": [1, 2, {"nested": null}], "escaped": "\\"\\n"}',
    " ",
    "\n\n\n\n",
    "\x00\x01\x7f",
    "x" * 5_000,
    "word " * 10_000,
]
CHATS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([{"role": "user", "content": "Say hi"}], []),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi"}], []),
    (
        [{"role": "user", "content": "Weather?"}],
        [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Tells the weather",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                },
            }
        ],
    ),
    (
        [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Bonn"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain"},
        ],
        [],
    ),
    ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}], []),
]


def ours(url: str, **environment: str) -> Endpoints:
    key = "LLAMA_API_KEY" if environment else None
    return Endpoints([Endpoint(url=url, api_key_env=key)], True, environment)


@pytest.mark.parametrize("vocabulary", NAMES)
async def test_counts_equal_the_servers_own(models: dict[str, Path], vocabulary: str) -> None:
    with llama(models[vocabulary]) as url:
        endpoints = ours(f"{url}/v1")
        for text in TEXTS:
            count = await endpoints.count_text("tiny", text, 10)
            assert isinstance(count, EndpointCount), (text[:40], count)
            assert count.tokens == text_tokens(url, text)
            assert count.tokens == 2 or text != "hello world"
        for messages, tools in CHATS:
            count = await endpoints.count_chat("tiny", messages, tools, 10)
            body = {"messages": messages, "tools": tools} if tools else {"messages": messages}
            own = post(f"{url}/v1/chat/completions/input_tokens", body)
            assert isinstance(count, EndpointCount), count
            assert count.tokens == own["input_tokens"]
        await endpoints.aclose()


async def test_counts_take_one_request_each_after_the_first_use(
    llama_url: str,
) -> None:
    endpoints = ours(llama_url)
    assert isinstance(await endpoints.count_text("tiny", "hello world", 10), EndpointCount)
    assert await endpoints.limit("tiny") == 4096, "the window of one slot"
    chat = await endpoints.count_chat("tiny", [{"role": "user", "content": "hi"}], None, 10)
    assert isinstance(chat, EndpointCount)
    assert endpoints.requests <= 9
    before = endpoints.requests
    for number in range(250):
        count = await endpoints.count_text("tiny", f"line {number}\n" * (number % 7 + 1), 10)
        assert isinstance(count, EndpointCount), count
    assert endpoints.requests - before == 250
    await endpoints.aclose()


async def test_the_count_of_a_chat_equals_the_usage_of_its_reply(llama_url: str) -> None:
    endpoints = ours(llama_url)
    for messages, tools in CHATS[:4]:
        count = await endpoints.count_chat("tiny", messages, tools, 10)
        body = {"messages": messages, "max_tokens": 4, "tools": tools or None}
        reply = read_reply(post(f"{llama_url}/v1/chat/completions", body))
        assert isinstance(count, EndpointCount)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == count.tokens
        assert (reply.stop_reason, reply.exhausted) == ("length", "output")
        assert reply.usage.output_tokens == 4
    await endpoints.aclose()


async def test_a_tool_call_without_a_result_is_counted_with_an_empty_result(llama_url: str) -> None:
    endpoints = ours(llama_url)
    messages = CHATS[3][0]
    count = await endpoints.count_chat("tiny", messages[:2], None, 10)
    empty = [*messages[:2], {**messages[2], "content": ""}]
    expected = await endpoints.count_chat("tiny", empty, None, 10)
    assert isinstance(count, EndpointCount)
    assert isinstance(expected, EndpointCount)
    assert count.tokens == expected.tokens
    await endpoints.aclose()


async def test_a_prompt_that_does_not_fit_is_an_exact_calibration_sample(llama_url: str) -> None:
    messages = [{"role": "user", "content": "word " * 6_000}]
    body = {"messages": messages, "max_tokens": 1}
    endpoints = ours(llama_url)
    count = await endpoints.count_chat("tiny", messages, None, 10)
    reply = read_reply(post(f"{llama_url}/v1/chat/completions", body))
    assert isinstance(count, EndpointCount)
    assert reply.overflow is not None
    assert (reply.exhausted, reply.overflow.limit) == ("window", 4096)
    assert reply.overflow.prompt_tokens == count.tokens
    await endpoints.aclose()


async def test_streamed_events_are_read_like_the_whole_reply(llama_url: str) -> None:
    body = {"messages": CHATS[1][0], "max_tokens": 8, "temperature": 0, "seed": 1}
    whole = read_reply(post(f"{llama_url}/v1/chat/completions", body))
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    reply = read_reply(post_for_text(f"{llama_url}/v1/chat/completions", streamed))
    assert reply.content == whole.content
    assert (reply.stop_reason, reply.exhausted) == (whole.stop_reason, whole.exhausted)
    assert reply.usage is not None
    assert whole.usage is not None
    assert reply.usage.prompt_tokens == whole.usage.prompt_tokens
    assert reply.usage.output_tokens == whole.usage.output_tokens == 8


async def test_a_model_switch_is_probed_again(models: dict[str, Path]) -> None:
    with llama(models["gpt-2"], "--alias", "first", "--context", "2048") as url:
        endpoints = ours(url)
        count = await endpoints.count_text("first", "日本語のテキスト", 10)
        assert isinstance(count, EndpointCount)
        assert await endpoints.limit("first") == 2048
        port = port_of(url)
    with llama(models["qwen2"], "--alias", "second", "--context", "1024", port=port) as url:
        miss = await endpoints.count_text("first", "日本語のテキスト", 10)
        assert isinstance(miss, Miss), "another model's tokenizer is never used"
        assert "second" in miss.reason
        switched = await endpoints.count_text("second", "日本語のテキスト", 10)
        assert isinstance(switched, EndpointCount)
        assert switched.tokens < count.tokens
        assert await endpoints.limit("second") == 1024
        await endpoints.aclose()


async def test_another_model_under_the_same_name_is_noticed(models: dict[str, Path]) -> None:
    text = "日本語のテキスト"
    with llama(models["gpt-2"]) as url:
        endpoints = ours(url)
        before = await endpoints.count_text("tiny", text, 10)
        port = port_of(url)
    with llama(models["qwen2"], "--context", "1024", port=port) as url:
        after = await endpoints.count_text("tiny", text, 10)
        own = post(f"{url}/tokenize", {"content": text})["tokens"]
        assert isinstance(before, EndpointCount)
        assert isinstance(after, EndpointCount)
        assert after.tokens == len(own) < before.tokens
        assert await endpoints.limit("tiny") == 1024
        await endpoints.aclose()


async def test_a_key_is_needed_and_used(models: dict[str, Path]) -> None:
    with llama(models["gpt-2"], "--key", "s3cret") as url:
        for environment in ({}, {"LLAMA_API_KEY": "wrong"}):
            endpoints = ours(url, **environment)
            miss = await endpoints.count_text("tiny", "hello world", 10)
            assert isinstance(miss, Miss)
            assert miss.kind == "auth"
            await endpoints.aclose()
        endpoints = ours(url, LLAMA_API_KEY="s3cret")
        assert isinstance(await endpoints.count_text("tiny", "hello world", 10), EndpointCount)
        await endpoints.aclose()


async def test_a_model_that_is_not_loaded_is_not_counted(llama_url: str) -> None:
    endpoints = ours(llama_url)
    miss = await endpoints.count_text("gpt-5", "hello world", 10)
    assert isinstance(miss, Miss)
    assert miss.kind == "unknown"
    assert endpoints.requests == 1
    await endpoints.aclose()


async def test_a_sleeping_model_is_left_asleep(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.endpoints.endpoints.AWAKE_SECONDS", 0.0)
    with llama(models["gpt-2"], "--sleep-after", "1") as url:
        asking, known = ours(url), ours(url)
        await count_awake(known, url)
        await wait_until_asleep(url)
        for endpoints in (asking, known):
            for miss in (
                await endpoints.count_text("tiny", "hello world again", 10),
                await endpoints.count_chat("tiny", [{"role": "user", "content": "hi"}], None, 10),
            ):
                assert isinstance(miss, Miss)
                assert "tiny is asleep: send it a prompt to wake it" in miss.reason
            assert endpoints.known_limit("tiny") == 8192
            await endpoints.probe()
        assert await is_asleep(url)
        await count_awake(asking, url)
        for endpoints in (asking, known):
            await endpoints.aclose()


async def count_awake(endpoints: Endpoints, url: str) -> None:
    """Wake the model, and let it count. It may fall asleep again before the count."""
    count: EndpointCount | Miss | None = None
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while not isinstance(count, EndpointCount):
            await client.post(f"{url}/tokenize", json={"content": "wake up"})
            await endpoints.probe()
            count = await endpoints.count_text("tiny", "hello world", 10)


async def wait_until_asleep(url: str) -> None:
    for _ in range(200):
        if await is_asleep(url):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("llama.cpp does not fall asleep")


async def is_asleep(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        return bool((await client.get(f"{url}/props")).json()["is_sleeping"])
