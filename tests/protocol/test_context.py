"""Tests that `context/*` and `cost/*` requests work as documented for plugin authors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.server.server import create_server
from sidecar.workspace.sessions import SESSIONS_KEPT
from tests.protocol.client import REPLY, USER, Client, RpcError
from tests.truth import truth

OPENAI = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-4o-2024-08-06",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Not many."},
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 1_000,
        "completion_tokens": 50,
        "total_tokens": 1_050,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
}


async def test_context_is_empty_before_the_first_request(talker: Client) -> None:
    usage = await talker.request("context/usage", {})
    assert usage["tokens"] is None
    assert usage["session"] is None


async def test_a_turn_adds_its_tokens_and_the_breakdown_adds_up(talker: Client) -> None:
    usage = await talker.request(
        "context/set", {"model": "gpt-4o", "systemPrompt": "Be brief.", "session": "s"}
    )
    assert usage["breakdown"]["system"] > truth("Be brief.")
    before = usage["tokens"]
    usage = await talker.request("context/append", {"turns": [USER]})
    assert usage["tokens"] == before + truth(USER["content"]) + 4
    assert sum(usage["breakdown"].values()) == usage["tokens"]
    assert (usage["turns"], usage["session"]["id"], usage["session"]["source"]) == (
        1,
        "s",
        "protocol",
    )
    assert (usage["limit"], usage["limitSource"]) == (128_000, "catalogue")
    assert usage["usable"] == 128_000 - 500
    assert usage["available"] == usage["usable"] - usage["tokens"]


async def test_reported_usage_sets_the_size_and_is_billed_once(talker: Client) -> None:
    await talker.request("context/append", {"turns": [USER], "session": "s"})
    answer = await talker.request(
        "context/response", {"session": "s", "model": "gpt-4o", "response": OPENAI}
    )
    assert (answer["content"], answer["stopReason"], answer["exhausted"]) == (
        "Not many.",
        "stop",
        None,
    )
    assert answer["usage"]["promptTokens"] == 1_000
    usage = await talker.request("context/append", {"turns": [REPLY], "session": "s"})
    assert usage["tokens"] == 1_050, "the usage already includes the reply"
    usage = await talker.request("context/append", {"turns": [USER], "session": "s"})
    assert usage["tokens"] == 1_050 + truth(USER["content"]) + 4
    await talker.request("context/response", {"session": "s", "response": OPENAI})
    report = await talker.request("cost/detail", {})
    assert (report["totals"]["calls"], report["rows"][0]["promptTokens"]) == (1, 1_000)
    assert report["rows"][0]["costUsd"] == pytest.approx((1_000 * 2.5 + 50 * 10) / 1e6)


async def test_threshold_is_reported_once(talker: Client) -> None:
    await talker.request("context/set", {"limit": 400, "reserve": 0, "model": "gpt-4o"})
    turn = {"role": "user", "content": "word " * 70}
    usages = [await talker.request("context/append", {"turns": [turn]}) for _ in range(6)]
    assert [usage["shouldPrune"] for usage in usages] == [False] * 5 + [True]
    kinds = [await talker.take("context/warning") for _ in range(2)]
    assert [warning["kind"] for warning in kinds] == ["budget", "budget"]
    assert "gpt-" in kinds[1]["message"], "the warning suggests models with a larger window"
    assert talker.unread == []


async def test_plan_apply_and_undo(talker: Client) -> None:
    call = {"id": "c1", "name": "ls", "arguments": {}}
    turns = [
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": None, "toolCalls": [call]},
        {"role": "tool", "content": "a very long listing " * 200, "toolCallId": "c1"},
        {"role": "assistant", "content": "done"},
        *[USER, REPLY] * 4,
    ]
    before = await talker.request("context/append", {"turns": turns})
    plan = await talker.request("context/fit", {"maxTokens": 300})
    assert plan["fits"]
    assert plan["tokensBefore"] == before["tokens"]
    assert {gone["index"] for gone in plan["removed"]} >= {1, 2}, (
        "a call is removed together with its result"
    )
    unchanged = await talker.request("context/usage")
    assert unchanged["tokens"] == before["tokens"]
    await talker.request("context/fit", {"planId": plan["planId"], "apply": True})
    assert (await talker.request("context/usage"))["tokens"] == plan["tokensAfter"] <= 300
    undone = await talker.request("context/undo")
    assert undone["tokens"] == before["tokens"]
    assert undone["text"] == f"Undone: the context is back to ~{before['tokens']:,} tokens."
    again = await talker.request("context/undo")
    assert (again["tokens"], again["text"].partition(":")[0]) == (
        before["tokens"],
        "Nothing to undo",
    )


async def test_cut_off_tool_call_is_removed_and_reported(talker: Client) -> None:
    cut = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "stop_reason": "max_tokens",
        "content": [
            {"type": "text", "text": "I will write it."},
            {"type": "tool_use", "id": "t1", "name": "write", "input": {"path": "a"}},
        ],
        "usage": {"input_tokens": 10, "output_tokens": 100},
    }
    tools = [{"name": "write", "input_schema": {"type": "object", "required": ["path", "content"]}}]
    answer = await talker.request("context/response", {"response": cut, "tools": tools})
    assert (answer["content"], answer["toolCalls"]) == ("I will write it.", [])
    assert answer["dropped"][0]["name"] == "write"
    assert answer["exhausted"] == "output"
    told = {(await talker.take("context/warning"))["kind"] for _ in range(2)}
    assert told == {"exhausted", "droppedToolCalls"}


async def test_documents_are_counted_for_the_sessions_model(client: Client) -> None:
    client.open("hello world")
    await client.take("status/update")
    await client.request("context/set", {"model": "gpt-4"})
    shown = await client.take("status/update", lambda u: "gpt-4 " in u["document"]["tooltip"])
    assert "cl100k_base" in shown["document"]["tooltip"]
    assert (await client.count())["model"] == "gpt-4"
    client.ignore("status/update")


async def test_persisted_session_is_restored_with_its_counts(bare: Client) -> None:
    await bare.initialize()
    bare.ignore("status/update")
    await bare.request("context/set", {"session": "s", "persist": True, "model": "gpt-4o"})
    before = await bare.request("context/append", {"session": "s", "turns": [USER, REPLY]})
    other = Client(create_server())
    other.ignore("status/update")
    await other.initialize()
    after = await other.request("context/usage", {"session": "s"})
    assert (after["tokens"], after["turns"]) == (before["tokens"], 2)
    with pytest.raises(RpcError) as caught:
        await other.request("context/fit", {"session": "s", "maxTokens": 10})
    assert caught.value.data == {"kind": "noText", "retryable": False}
    await other.aclose()


async def test_request_must_name_a_workspace_if_several_are_open(bare: Client) -> None:
    folders = [{"uri": f"file:///{n}", "name": n} for n in ("a", "b")]
    await bare.initialize(workspaceFolders=folders)
    bare.ignore("status/update")
    with pytest.raises(RpcError) as caught:
        await bare.request("context/usage", {})
    assert caught.value.data == {"kind": "badParams", "retryable": False}
    assert (await bare.request("context/usage", {"workspace": "/a/inside"}))["tokens"] is None


async def test_concurrent_requests_are_all_answered(talker: Client) -> None:
    jobs = [talker.request("context/append", {"turns": [USER]}) for _ in range(20)]
    usages = await asyncio.gather(*jobs)
    assert sorted(usage["turns"] for usage in usages) == list(range(1, 21))


async def test_endpoints_are_off_by_default(client: Client) -> None:
    assert await client.request("capabilities/list") == []
    assert await client.request("capabilities/probe", {}) == []


async def test_messages_are_counted_with_the_models_chat_format(client: Client) -> None:
    params: dict[str, Any] = {"messages": [USER], "model": "gpt-4o"}
    count = await client.request("tokens/count", params)
    assert count["tokens"] == truth(USER["content"]) + 4 + 3
    assert count["method"] == "calibrated"
    assert count["characters"] == len(USER["content"])


async def test_cancelled_request_leaves_the_conversation_consistent(
    talker: Client,
) -> None:
    turns = [{"role": "user", "content": f"{n} " + "word " * 400} for n in range(600)]
    params = {"turns": turns, "session": "s"}
    answer = talker.answers.setdefault(900, asyncio.get_running_loop().create_future())
    talker.send({"jsonrpc": "2.0", "id": 900, "method": "context/append", "params": params})
    await asyncio.sleep(0)
    talker.notify("$/cancelRequest", {"id": 900})
    assert (await answer)["error"]["code"] == -32800
    usage = await talker.request("context/append", {"turns": [USER], "session": "s"})
    # A cancelled request is applied completely or not at all.
    kept = turns if usage["turns"] > 1 else []
    other = await talker.request("context/append", {"turns": [*kept, USER], "session": "t"})
    assert (usage["tokens"], usage["turns"]) == (other["tokens"], len(kept) + 1)
    talker.ignore("context/warning")


async def test_query_creates_no_session(talker: Client) -> None:
    await talker.request("context/append", {"turns": [USER], "session": "a"})
    await talker.request("context/preflight", {"session": "typo", "text": "hello"})
    assert (await talker.request("context/usage"))["session"]["id"] == "a"


async def test_session_is_deleted_from_disk_when_persist_is_unset(bare: Client) -> None:
    await bare.initialize()
    bare.ignore("status/update")
    await bare.request("context/set", {"session": "s", "persist": True})
    await bare.request("context/append", {"session": "s", "turns": [USER]})
    await bare.request("context/set", {"session": "s", "persist": False})
    other = Client(create_server())
    other.ignore("status/update")
    await other.initialize()
    assert (await other.request("context/usage", {"session": "s"}))["tokens"] is None
    await other.aclose()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("context/usage", {"workspace": "foo"}),
        ("context/usage", {"workspace": "file://[x"}),
        ("context/usage", {"session": "\ud800"}),
        ("context/append", {"turns": [], "usage": {"prompt_tokens": -5}}),
        ("context/append", {"turns": [], "usage": {"prompt_tokens": 1.5}}),
        ("context/append", {"turns": [], "usage": {"nothing": 1}}),
        ("context/response", {"response": {"nothing": 1}}),
        ("context/fit", {"session": "none"}),
        ("context/fit", {"planId": "none"}),
        ("cost/record", {"model": "gpt-5", "usage": {}}),
    ],
)
async def test_bad_params_are_reported(talker: Client, method: str, params: dict[str, Any]) -> None:
    with pytest.raises(RpcError) as caught:
        await talker.request(method, params)
    assert caught.value.data == {"kind": "badParams", "retryable": False}


async def test_open_document_identifies_its_workspace(bare: Client) -> None:
    """A document outside all roots belongs to a separate, unnamed workspace."""
    folders = [{"uri": f"file:///{name}", "name": name} for name in ("one", "two")]
    await bare.initialize(workspaceFolders=folders)
    bare.ignore("status/update")
    outside, inside = "file:///elsewhere/notes.md", "file:///two/notes.md"
    for uri in (outside, inside):
        bare.open("日本語", uri)
    await bare.request("context/set", {"workspace": outside, "model": "gpt-4"})
    counts = [await bare.count(uri) for uri in (outside, inside)]
    assert [count["model"] for count in counts] == ["gpt-4", "gpt-5"]
    assert counts[0]["tokens"] == truth("日本語", "cl100k_base")
    await bare.request("context/append", {"workspace": inside, "session": "s", "turns": [USER]})
    named = [await bare.request("context/usage", {"workspace": f["uri"]}) for f in folders]
    assert [usage["turns"] for usage in named] == [None, 1]
    for workspace in ("file:///elsewhere/closed.md", None):
        with pytest.raises(RpcError) as caught:
            await bare.request("context/usage", {"workspace": workspace})
        assert caught.value.data == {"kind": "badParams", "retryable": False}


async def test_empty_states_name_the_next_step(talker: Client) -> None:
    assert "Start a coding agent" in (await talker.request("context/usage", {}))["text"]
    assert "Start a coding agent" in (await talker.request("cost/detail", {}))["text"]


async def test_assembling_continues_after_the_oldest_session_is_dropped(
    talker: Client,
) -> None:
    for number in range(SESSIONS_KEPT + 1):
        name, turn = f"s{number}", {"role": "user", "content": "x"}
        await talker.request("context/append", {"session": name, "turns": [turn]})
    asked = {"session": "new", "assistant": "You are brief.", "user": "hi"}
    cached = [(await talker.request("context/assemble", asked))["prefixCached"] for _ in range(3)]
    assert cached == [False, True, True]
    sessions = talker.server.services.known_sessions(talker.server.services.roots.default)
    assert sessions is not None
    assert len(list(sessions.conversations)) == SESSIONS_KEPT
    kept = {conversation.id for conversation in sessions.conversations.values()}
    assert not {"s0", "s1"} & kept, "the least recently used sessions are dropped"
    assert set(sessions._states) <= kept, "their states are dropped, too"
