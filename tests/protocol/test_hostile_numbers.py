"""Tests that impossible numbers are rejected, but replies with invalid usage are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocol.client import Client

MUCH = 10**18
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.fixture(autouse=True)
def quiet(client: Client) -> None:
    client.ignore("status/update", "context/warning")


def reply(**usage: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "The answer."}
    return {
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        **usage,
    }


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("cost/record", {"model": "m", "usage": {**USAGE, "prompt_tokens": MUCH}}),
        ("cost/record", {"model": "m", "usage": {**USAGE, "prompt_tokens": 10**40}}),
        ("cost/record", {"model": "m", "usage": {**USAGE, "prompt_tokens": 1e308}}),
        ("cost/record", {"model": "m", "usage": {**USAGE, "cost": 1e308}}),
        ("cost/record", {"model": "m", "usage": {**USAGE, "cost": "1e999999"}}),
        ("cost/record", {"model": "m", "usage": {**USAGE, "cost_in_usd_ticks": 1e300}}),
        ("cost/record", {"model": "m", "usage": USAGE, "at": "9999-12-31T23:59:59Z"}),
        ("cost/record", {"model": "m", "usage": USAGE, "at": "1970-01-01T00:00:00Z"}),
        ("cost/record", {"model": "m", "usage": USAGE, "estimatedTokens": MUCH}),
        ("context/append", {"turns": [], "usage": {**USAGE, "prompt_tokens": MUCH}}),
        ("context/append", {"turns": [], "usage": {"totalTokens": MUCH}}),
        ("context/set", {"limit": MUCH}),
        ("context/set", {"reserve": MUCH}),
        ("context/fit", {"session": "s", "maxTokens": MUCH}),
        ("context/preflight", {"maxOutputTokens": MUCH}),
        ("tokens/fit", {"text": "a", "maxTokens": MUCH}),
    ],
)
async def test_impossible_numbers_are_bad_params(
    client: Client, method: str, params: dict[str, Any]
) -> None:
    assert await client.refused(method, params) == {"kind": "badParams", "retryable": False}
    report = await client.request("cost/detail", {})
    assert report["totals"]["calls"] == 0


@pytest.mark.parametrize(
    "usage",
    [
        {**USAGE, "prompt_tokens": MUCH},
        {**USAGE, "prompt_tokens": 10**40},
        {**USAGE, "prompt_tokens": 1e308},
        {**USAGE, "prompt_tokens": -5},
        {**USAGE, "prompt_tokens": 1.5},
        {**USAGE, "completion_tokens": "many"},
        {**USAGE, "cost": 1e308},
        {**USAGE, "server_tool_use": {"web_search_requests": MUCH}},
        "lots",
        [1],
        7,
    ],
)
async def test_reply_with_invalid_usage_is_kept(client: Client, usage: object) -> None:
    params = {"session": "s", "response": reply(usage=usage)}
    answer = await client.request("context/response", params)
    assert answer["content"] == "The answer."
    assert answer["usageRecorded"] is False
    assert answer["usageProblem"]
    report = await client.request("cost/detail", {})
    assert report["totals"]["calls"] == 0
    context = await client.request("context/usage", {"session": "s"})
    assert (context["tokens"] or 0) < 100
    answer = await client.request(
        "context/response", {"session": "s", "response": reply(usage=USAGE)}
    )
    assert (answer["usageRecorded"], answer["usageProblem"]) == (True, None)


@pytest.mark.parametrize(
    "response",
    [
        {"message": {"content": "The answer."}, "done": True, "eval_count": "x"},
        {"type": "message", "content": [{"type": "text", "text": "The answer."}], "usage": 1},
        {"candidates": [{"content": {"parts": [{"text": "The answer."}]}}], "usageMetadata": "x"},
        {"type": "", "content": "The answer.", "stats": "x", "model_instance_id": "m"},
    ],
)
async def test_reply_of_any_vendor_with_invalid_usage_is_kept(
    client: Client, response: dict[str, Any]
) -> None:
    answer = await client.request("context/response", {"response": response})
    assert (answer["content"], answer["usageRecorded"]) == ("The answer.", False)


@pytest.fixture
def no_ledger(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger.db").write_bytes(b"this is no database " * 100)


@pytest.mark.usefixtures("no_ledger")
async def test_reply_is_kept_if_the_ledger_fails(client: Client) -> None:
    params = {"session": "s", "response": reply(usage=USAGE)}
    answer = await client.request("context/response", params)
    assert (answer["content"], answer["usageRecorded"]) == ("The answer.", False)
    assert "ledger" in answer["usageProblem"]
    assert answer["usage"]["promptTokens"] == 10


async def test_reply_without_usage_is_reported(client: Client) -> None:
    answer = await client.request("context/response", {"response": reply()})
    assert (answer["usageRecorded"], answer["usage"]) == (False, None)
    assert answer["usageProblem"] == "the reply reports no usage"


async def test_error_with_impossible_numbers_sets_no_window(client: Client) -> None:
    message = f"prompt is too long: {'9' * 6000} tokens > {'9' * 6000} maximum"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    await client.request("context/set", {"session": "s", "model": "gpt-4o"})
    answer = await client.request("context/response", {"session": "s", "response": error})
    assert answer["exhausted"] == "window"
    context = await client.request("context/usage", {"session": "s"})
    assert context["limit"] == 128_000
