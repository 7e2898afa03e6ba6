"""Tests that a session's requests take effect in the order they are sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sidecar.messages.replies import read_reply
from sidecar.server import server as server_module
from sidecar.workspace.conversations import Conversations
from sidecar.workspace.state_folder import State
from tests.protocol.client import Client
from tests.truth import truth

PROMPT, OUTPUT = 1_000, 50
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
RESULT = "Sunny in Lisbon, with a light wind from the sea."


class Hold:
    """Blocks a function on a worker thread until the test releases it."""

    def __init__(self) -> None:
        self._gate = threading.Event()
        self.release = self._gate.set
        self.calls = 0

    def first(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its first call blocks."""

        def held(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                assert self._gate.wait(60)
            return work(*arguments)

        return held

    def all(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that all calls block."""

        def held(*arguments: Any) -> Any:
            assert self._gate.wait(60)
            return work(*arguments)

        return held


@pytest.fixture
def hold() -> Iterator[Hold]:
    made = Hold()
    yield made
    made.release()


async def round_trips(client: Client) -> None:
    """Wait until all work that is not blocked has been done."""
    for _ in range(5):
        await client.request("context/usage", {"session": "another"})


def stream() -> list[dict[str, Any]]:
    """Return a streamed reply whose usage is at the end."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-4o"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    usage = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "total_tokens": PROMPT + OUTPUT}
    said = [chunk({"content": "word "}) for _ in range(9)]
    called = chunk({"tool_calls": [{"index": 0, **CALL}]}, "tool_calls")
    return [*said, called, head | {"choices": [], "usage": usage}]


async def test_turns_after_a_reply_are_not_part_of_its_prompt(
    talker: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin may send a tool's result before our server has responded to the reply."""
    question = {"role": "user", "content": "What is the weather?"}
    await talker.request("context/set", {"session": "s", "model": "gpt-4o"})
    await talker.request("context/append", {"session": "s", "turns": [question]})
    turns = [
        {"role": "assistant", "content": "", "toolCalls": [CALL]},
        {"role": "tool", "content": RESULT, "toolCallId": "c1"},
    ]
    monkeypatch.setattr("sidecar.conversations.changes.read_reply", hold.first(read_reply))
    replied, appended = (
        asyncio.ensure_future(talker.request(method, {"session": "s", **params}))
        for method, params in (
            ("context/response", {"response": stream()}),
            ("context/append", {"turns": turns}),
        )
    )
    await round_trips(talker)
    assert not appended.done(), "the earlier request is still running"
    hold.release()
    _, usage = await asyncio.gather(replied, appended)
    assert usage["tokens"] >= PROMPT + OUTPUT + truth(RESULT)
    again = await talker.request("context/usage", {"session": "s"})
    assert again["tokens"] == usage["tokens"]


async def test_first_requests_take_effect_in_order(
    talker: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests arrive while the code that handles them is being loaded."""
    monkeypatch.setattr(
        server_module, "import_context_feature", hold.first(server_module.import_context_feature)
    )
    question = {"role": "user", "content": "What is the weather?"}
    append = {"session": "s", "turns": [question], "model": "gpt-4o"}
    both = asyncio.gather(
        talker.request("context/append", append),
        talker.request("context/response", {"session": "s", "response": stream()}),
    )
    for _ in range(5):
        await talker.request("models/list", {"query": "gpt-4o"})
    hold.release()
    appended, _ = await both
    usage = await talker.request("context/usage", {"session": "s"})
    assert (appended["turns"], usage["tokens"]) == (1, PROMPT + OUTPUT)


@pytest.mark.parametrize("step", ["loading the code", "restoring the conversations"])
async def test_many_first_requests_take_effect_in_order(
    step: str, bare: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests arrive before a step of the start ends, and in each iteration of the loop after."""
    bare.ignore("status/update")
    owner: Any
    blocked: Any
    if step == "loading the code":
        owner, method = server_module.ContextOnDemand, "_load"
        blocked, function = server_module, "import_context_feature"
    else:
        owner, method = Conversations, "_restore"
        blocked, function = State, "sessions"
    monkeypatch.setattr(blocked, function, hold.all(getattr(blocked, function)))
    work, is_done = getattr(owner, method), asyncio.Event()

    async def watched(self: Any) -> Any:
        result = await work(self)
        is_done.set()
        return result

    monkeypatch.setattr(owner, method, watched)
    await bare.initialize()
    pending = list[asyncio.Future[Any]]()

    def append() -> None:
        turn = {"role": "user", "content": f"question {len(pending)}"}
        params = {"session": "s", "turns": [turn], "model": "gpt-4o"}
        message = {"jsonrpc": "2.0", "id": 900 + len(pending), "method": "context/append"}
        answer = asyncio.get_running_loop().create_future()
        pending.append(bare.answers.setdefault(message["id"], answer))
        bare.send({**message, "params": params})

    for _ in range(5):
        append()
    for _ in range(5):
        await bare.request("models/list", {"query": "gpt-4o"})
    assert not is_done.is_set()
    hold.release()
    await asyncio.wait_for(is_done.wait(), 60)
    for _ in range(20):
        append()
        await asyncio.sleep(0)
    answers = await asyncio.gather(*pending)
    assert [answer["result"]["turns"] for answer in answers] == [*range(1, 26)]


async def test_cancelled_first_request_does_not_affect_the_others(
    client: Client, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        server_module, "import_context_feature", hold.first(server_module.import_context_feature)
    )
    given_up = client.answers.setdefault(900, asyncio.get_running_loop().create_future())
    client.send({"jsonrpc": "2.0", "id": 900, "method": "context/usage", "params": {}})
    other = asyncio.ensure_future(client.request("context/usage", {}))
    await asyncio.sleep(0)
    client.notify("$/cancelRequest", {"id": 900})
    assert (await given_up)["error"]["code"] == -32800
    hold.release()
    assert (await other)["tokens"] is None


async def test_session_is_reset_while_it_is_being_created(talker: Client) -> None:
    """Messages after the reset are kept, even if the reset has not been confirmed yet."""
    long, short = ({"role": "user", "content": "word " * count} for count in (50_000, 5))
    _, usage, after = await asyncio.gather(
        talker.request("context/append", {"session": "s", "turns": [long]}),
        talker.request("context/reset", {"session": "s"}),
        talker.request("context/append", {"session": "s", "turns": [short]}),
    )
    again = await talker.request("context/usage", {"session": "s"})
    assert (usage["turns"], after["turns"], again["turns"]) == (0, 1, 1)
    assert again["tokens"] < 50


async def test_preflight_includes_pending_turns(client: Client) -> None:
    """A plugin may attach a file and immediately check whether the prompt fits."""
    client.ignore("status/update", "context/warning")
    text = "word " * 150_000
    turn = {"role": "user", "content": text}
    _, verdict = await asyncio.gather(
        client.request("context/append", {"session": "s", "model": "gpt-4o", "turns": [turn]}),
        client.request("context/preflight", {"session": "s", "model": "gpt-4o", "text": "hello"}),
    )
    assert verdict["promptTokens"] > truth(text)
    assert verdict["verdict"] == "refuse"
