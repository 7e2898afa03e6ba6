"""Tests that `context/*` and `cost/*` requests work as documented for plugin authors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sidecar.counting.calibration import Calibrations, document_key, save_calibrations
from sidecar.counting.estimators import kind_of
from sidecar.counting.tokenizer_choice import Tokenizers
from sidecar.server.server import create_server
from sidecar.workspace.sessions import SESSIONS_KEPT
from sidecar.workspace.views import NO_CONTEXT
from tests.protocol.client import REPLY, URI, USER, Client, edit
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
    await bare.initialize(ignored=("status/update",))
    await bare.request("context/set", {"session": "s", "persist": True, "model": "gpt-4o"})
    before = await bare.request("context/append", {"session": "s", "turns": [USER, REPLY]})
    other = Client(create_server())
    await other.initialize(ignored=("status/update",))
    after = await other.request("context/usage", {"session": "s"})
    assert (after["tokens"], after["turns"]) == (before["tokens"], 2)
    assert await other.refused("context/fit", {"session": "s", "maxTokens": 10}) == {
        "kind": "noText",
        "retryable": False,
    }
    await other.aclose()


async def test_request_must_name_a_workspace_if_several_are_open(bare: Client) -> None:
    folders = [{"uri": f"file:///{n}", "name": n} for n in ("a", "b")]
    await bare.initialize(workspaceFolders=folders, ignored=("status/update",))
    assert await bare.refused("context/usage", {}) == {"kind": "badParams", "retryable": False}
    assert (await bare.request("context/usage", {"workspace": "/a/inside"}))["tokens"] is None


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
    await bare.initialize(ignored=("status/update",))
    await bare.request("context/set", {"session": "s", "persist": True})
    await bare.request("context/append", {"session": "s", "turns": [USER]})
    await bare.request("context/set", {"session": "s", "persist": False})
    other = Client(create_server())
    await other.initialize(ignored=("status/update",))
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
    assert await talker.refused(method, params) == {"kind": "badParams", "retryable": False}


async def test_open_document_identifies_its_workspace(bare: Client) -> None:
    """A document outside all roots belongs to a separate, unnamed workspace."""
    folders = [{"uri": f"file:///{name}", "name": name} for name in ("one", "two")]
    await bare.initialize(workspaceFolders=folders, ignored=("status/update",))
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
        assert await bare.refused("context/usage", {"workspace": workspace}) == {
            "kind": "badParams",
            "retryable": False,
        }


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


async def test_a_section_follows_an_open_document(talker: Client) -> None:
    talker.open("one two three\n")
    section = {"name": "notes", "textDocument": {"uri": URI}}
    usage = await talker.request("context/set", {"sections": [section], "model": "gpt-4o"})
    assert usage["breakdown"]["sections"] == truth("one two three\n")
    talker.change(edit((0, 0), (0, 0), "zero "))
    usage = await talker.request("context/usage", {})
    assert usage["breakdown"]["sections"] == truth("zero one two three\n")
    section["textDocument"] = {"uri": "file:///none"}
    assert await talker.refused("context/set", {"sections": [section]}) == {
        "kind": "unknownDocument",
        "retryable": False,
    }


async def test_assembling_is_cached_and_cleared(talker: Client) -> None:
    params = {"identity": "You are a test.", "logs": "a\nb", "user": "hello", "context": "x\ny"}
    first = await talker.request("context/assemble", params)
    again = await talker.request("context/assemble", params)
    assert (first["prefixCached"], again["prefixCached"]) == (False, True)
    assert (first["prefixHash"], again["contextCached"]) == (again["prefixHash"], True)
    await talker.request("context/reset", {})
    assert (await talker.request("context/assemble", params))["prefixCached"] is False


async def test_a_range_moves_with_its_text(talker: Client) -> None:
    talker.open("first line\nthe section\nlast line\n")
    span = edit((1, 0), (2, 0), "")["range"]
    section = {"name": "part", "textDocument": {"uri": URI}, "range": span}
    usage = await talker.request("context/set", {"sections": [section], "model": "gpt-4o"})
    assert usage["breakdown"]["sections"] == truth("the section\n")
    talker.change(edit((0, 0), (0, 0), "zero\nand more 🙂\n"))
    usage = await talker.request("context/usage")
    assert usage["breakdown"]["sections"] == truth("the section\n")
    talker.change(edit((3, 3), (3, 3), " longer"))
    usage = await talker.request("context/usage")
    assert usage["breakdown"]["sections"] == truth("the longer section\n")


async def test_usage_text_has_a_line_for_each_part(talker: Client) -> None:
    """Each part of the context has one line, even if its label contains a line break."""
    section = {"name": "two\nlines", "text": "some words of a section"}
    begun = {"session": "s", "systemPrompt": "Be brief.", "sections": [section]}
    await talker.request("context/set", begun)
    await talker.request("context/append", {"session": "s", "turns": [USER]})
    assert (await talker.request("context/usage", {"session": "nobody"}))["text"] == NO_CONTEXT
    usage = await talker.request("context/usage", {"session": "s"})
    lines = usage["text"].splitlines()
    summary, breakdown, largest = "\n".join(lines).split("\n\n")
    assert summary.startswith(f"Context     ~{usage['tokens']:,} tokens (")
    assert f"% of {usage['usable']:,} usable" in summary
    assert "Session     1 turn\n" in summary
    groups = {row["label"]: row["children"] for row in usage["rows"] if row["children"]}
    tokens = [part["tokens"] for part in usage["largest"]]
    assert [row["value"] for row in groups["Largest"]] == [f"~{token:,}" for token in tokens]
    filled = [f"~{each:,}" for each in usage["breakdown"].values() if each]
    assert [row["value"] for row in groups["Breakdown"]] == filled
    assert sum(row["share"] for row in groups["Breakdown"]) == pytest.approx(1)
    for text, rows in ((breakdown, groups["Breakdown"]), (largest, groups["Largest"])):
        shown = zip(text.splitlines()[1:], rows, strict=True)
        assert all(row["label"] in line and row["value"] in line for line, row in shown)
    assert any("two lines" in row["label"] for row in groups["Largest"])


async def test_usage_includes_the_last_assembled_request(talker: Client) -> None:
    parts = {"assistant": "Be brief.", "context": "one two three", "logs": "a\nb", "user": "Go."}
    made = await talker.request("context/assemble", {**parts, "focus": "tests"})
    assert (made["schemaVersion"], made["intent"], made["pack"]) == (1, "tests", [])
    usage = await talker.request("context/usage", {})
    assert usage["tokens"] == made["tokens"] > 0
    assert usage["breakdown"]["logs"] == made["sections"][3]["tokens"] > 0
    parts = usage["breakdown"]
    assert sum(parts.values()) == usage["tokens"]


async def test_section_over_its_cap_is_trimmed(
    talker: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    sections = [
        {"name": "plan", "text": "word " * 200, "cap": 20},
        {"name": "logs", "text": "one line"},
    ]
    usage = await talker.request("context/set", {"session": "s", "sections": sections})
    assert usage["breakdown"]["logs"] > 0
    assert usage["breakdown"]["sections"] == 20
    params = {"session": "s", "logs": "x\n" * 90, "maxTokens": 60}
    made = await talker.request("context/assemble", params)
    context = next(section for section in made["sections"] if section["name"] == "context")
    assert (context["trimmed"], made["budgetApplied"]) == (True, 60)
    assert [(one["name"], one["trimmed"]) for one in made["pack"]] == [
        ("plan", True),
        ("logs", False),
    ]
    assert made["pack"][0]["tokens"] <= 20
    assert sum("trim level" in line for line in caplog.messages) == made["trimLevel"] > 0


async def test_preflight_for_another_model_counts_a_section_like_its_document(
    bare: Client, tmp_path: Path
) -> None:
    """The section's estimate is calibrated for the document's kind of text."""
    model, text = "unheard-of", "The quick brown fox jumps over the lazy dog. " * 40
    learned = Calibrations()
    estimator = Tokenizers().for_model(model).name
    learned.update(document_key(model, estimator, kind_of(text)), 1_000, 1_300, 1.0)
    save_calibrations(tmp_path / "state", learned)
    await bare.initialize(ignored=("status/update",))
    bare.open(text)
    section = {"name": "notes", "textDocument": {"uri": URI}}
    await bare.request("context/set", {"sections": [section], "model": "gpt-4o"})
    verdict = await bare.request("context/preflight", {"model": model})
    usage = await bare.request("context/set", {"model": model})
    count = await bare.count()
    assert (count["model"], count["method"]) == (model, "calibrated")
    assert usage["breakdown"]["sections"] == count["tokens"]
    assert verdict["promptTokens"] == usage["tokens"]
