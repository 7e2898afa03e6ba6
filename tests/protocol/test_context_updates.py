"""Tests that a conversation's token count is updated when settings or documents change."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from sidecar.conversations.changes import Recount
from sidecar.server.features.status_updates import StatusUpdates
from sidecar.workspace.state_folder import State
from tests.protocol.client import URI, Client, until
from tests.protocol.test_same_count import endpoint, root, settled, started
from tests.unit.endpoints_fake_server import FakeServer

__all__ = ["endpoint", "root"]

USER = {"role": "user", "content": "How many tokens is this question?"}
TEXT = "Le renard brun saute par-dessus le chien paresseux; 日本語も少し。\n" * 20
MESSAGES = [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT}]
MODEL, OTHER = "unheard-of", "unheard-too"
SECTION = {"name": "notes", "textDocument": {"uri": URI}}


async def quiet(client: Client) -> None:
    """Wait until the server has no pending work."""
    await settled(client)
    while any(key[0] == "context" for key in client.server.scheduler._jobs):
        await asyncio.sleep(0.01)
    await settled(client)


def shown(client: Client) -> int | None:
    """Return the context's token count, as shown in the status, or None."""
    sent = client.feature(StatusUpdates)._sent[URI]
    assert sent is not None
    return sent.context.tokens if sent.context else None


async def set_estimator(client: Client, name: str, method: str) -> None:
    tokenize = {"tokenize": {"estimator": name}}
    client.notify(
        "workspace/didChangeConfiguration",
        {"settings": {"tokenSidecar": {"model": MODEL} | tokenize}},
    )
    async with asyncio.timeout(60):
        count = {"text": "a", "model": MODEL}
        while (await client.request("tokens/count", count))["tokenizer"] != method:
            await asyncio.sleep(0.01)
    await quiet(client)


async def begun(client: Client) -> None:
    client.ignore("status/update", "context/warning", "textDocument/publishDiagnostics")
    client.open("few words")
    await settled(client)
    await client.request("context/set", {"session": "s", "model": MODEL, "systemPrompt": TEXT})


async def test_conversation_is_recounted_with_a_new_tokenizer(client: Client) -> None:
    await begun(client)
    await client.request("context/append", {"session": "s", "turns": MESSAGES[1:]})
    before = (await client.request("context/usage", {}))["tokens"]
    await set_estimator(client, "chars4", "chars4")
    result = await client.request("tokens/count", {"messages": MESSAGES, "model": MODEL})
    assert result["tokens"] != before
    assert shown(client) == result["tokens"], "the status is updated without a request"
    assert (await client.request("context/usage", {}))["tokens"] == result["tokens"]
    after = await client.request("context/append", {"session": "s", "turns": MESSAGES[1:]})
    more = await client.request("tokens/count", {"messages": MESSAGES + MESSAGES[1:]})
    assert after["tokens"] == more["tokens"]


async def test_reported_usage_is_kept_after_a_change_of_tokenizer(client: Client) -> None:
    """Only text that was added after the usage report is recounted."""
    await begun(client)
    usage = {"prompt_tokens": 5_000, "completion_tokens": 10}
    turns = [*MESSAGES[1:], {"role": "assistant", "content": "Oui."}]
    await client.request("context/append", {"session": "s", "turns": turns, "usage": usage})
    await set_estimator(client, "chars4", "chars4")
    assert (await client.request("context/usage", {}))["tokens"] == 5_010 == shown(client)
    more = await client.request("context/set", {"session": "s", "systemPrompt": TEXT + TEXT})
    alone = await client.request("tokens/count", {"messages": MESSAGES[:1]})
    grown = more["tokens"] - 5_010
    assert abs(grown - alone["tokens"]) < 30, "counted with the current tokenizer"


async def test_new_tokenizer_keeps_reported_usage_of_other_models(
    client: Client,
) -> None:
    """Text that the usage report does not cover is counted with the current tokenizer."""
    await begun(client)
    usage = {"prompt_tokens": 5_000, "completion_tokens": 10}
    turns = [*MESSAGES[1:], {"role": "assistant", "content": "Oui."}]
    await client.request("context/append", {"session": "s", "turns": turns, "usage": usage})
    await client.request("context/set", {"session": "s", "model": OTHER})
    await set_estimator(client, "chars4", "chars4")
    result = await client.request("tokens/count", {"messages": [*MESSAGES, turns[-1]]})
    assert (await client.request("context/usage", {}))["tokens"] == result["tokens"]
    back = await client.request("context/set", {"session": "s", "model": MODEL})
    assert back["tokens"] == 5_010
    grown = await client.request("context/append", {"session": "s", "turns": MESSAGES[1:]})
    one = await client.request("tokens/count", {"text": MESSAGES[1]["content"], "model": MODEL})
    assert abs(grown["tokens"] - 5_010 - one["tokens"]) < 10, "counted with the current tokenizer"


async def test_returning_model_is_counted_with_the_current_tokenizer(client: Client) -> None:
    await begun(client)
    await client.request("context/append", {"session": "s", "turns": MESSAGES[1:]})
    await client.request("context/set", {"session": "s", "model": "gpt-4"})
    await set_estimator(client, "chars4", "chars4")
    back = await client.request("context/set", {"session": "s", "model": MODEL})
    await quiet(client)
    result = await client.request("tokens/count", {"messages": MESSAGES, "model": MODEL})
    assert back["tokens"] == result["tokens"] == shown(client)


@pytest.mark.parametrize("reported", [False, True])
async def test_plan_can_be_undone_after_a_change_of_tokenizer(
    client: Client, reported: bool
) -> None:
    await begun(client)
    told = {"role": "assistant", "content": "Oui, encore. " * 40}
    turns = [*MESSAGES[1:], told] * 6
    usage = {"prompt_tokens": 5_000, "completion_tokens": 100} if reported else None
    append = {"session": "s", "turns": turns, **({"usage": usage} if usage else {})}
    before = await client.request("context/append", append)
    room = before["tokens"] // 2
    await client.request("context/fit", {"session": "s", "maxTokens": room, "apply": True})
    assert (await client.request("context/usage", {}))["turns"] < len(turns)
    await set_estimator(client, "chars4", "chars4")
    after = await client.request("context/undo", {"session": "s"})
    await quiet(client)
    whole = [*MESSAGES[:1], *turns]
    result = await client.request("tokens/count", {"messages": whole, "model": MODEL})
    assert after["turns"] == len(turns)
    assert after["tokens"] == (5_100 if reported else result["tokens"]) == shown(client)


async def test_hidden_sessions_are_recounted_with_a_new_tokenizer(client: Client) -> None:
    """The session list and the estimates in the ledger use the new tokenizer."""
    await begun(client)
    await client.request("context/append", {"session": "s", "turns": MESSAGES[1:]})
    await client.request("context/append", {"session": "other", "turns": [USER]})
    await set_estimator(client, "chars4", "chars4")
    result = await client.request("tokens/count", {"messages": MESSAGES, "model": MODEL})
    await client.request(
        "cost/record",
        {"session": "s", "model": MODEL, "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
    )
    rows = {row["id"]: row["tokens"] for row in await client.request("context/sessions", {})}
    assert rows["s"] == result["tokens"]
    assert recorded_estimates() == [result["tokens"]]


def recorded_estimates() -> list[int]:
    """Return the estimated token count of each call in the ledger."""
    with contextlib.closing(sqlite3.connect(State().folder / "ledger.db")) as ledger:
        return [tokens for [tokens] in ledger.execute("SELECT estimated FROM event")]


async def test_assembled_request_is_counted_with_the_new_tokenizer(client: Client) -> None:
    await begun(client)
    await client.request("context/set", {"session": "s", "sections": [{"name": "n", "text": TEXT}]})
    request = {"session": "s", "user": TEXT, "logs": TEXT}
    await client.request("context/assemble", request)
    await set_estimator(client, "chars4", "chars4")
    made = await client.request("context/assemble", request)
    for part in made["sections"]:
        result = await client.request("tokens/count", {"text": part["text"], "model": MODEL})
        assert part["tokens"] == result["tokens"], part["name"]


class HeldChange:
    """Holds the worker that applies the next change, until the test continues."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.reached, self.gate, self._real = asyncio.Event(), asyncio.Event(), loop.run_in_executor
        monkeypatch.setattr(loop, "run_in_executor", self._run)

    def _run(self, pool: Any, work: Any, *args: Any) -> Any:
        name = getattr(getattr(work, "func", None), "__name__", "")
        if name == "apply_to_draft" and not self.reached.is_set():
            return asyncio.ensure_future(self._run_later(pool, work))
        return self._real(pool, work, *args)

    async def _run_later(self, pool: Any, work: Any) -> Any:
        self.reached.set()
        await self.gate.wait()
        return await self._real(pool, work)


async def test_edit_during_a_count_is_included(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(client)
    await client.request("context/set", {"session": "s", "sections": [SECTION]})
    held = HeldChange(monkeypatch)
    append = {"session": "s", "turns": [{"role": "user", "content": "Why?"}]}
    pending = asyncio.ensure_future(client.request("context/append", append))
    await held.reached.wait()
    client.change({"text": "many more words " * 500})
    await client.count()
    held.gate.set()
    answer = await pending
    await quiet(client)
    section = (await client.count())["tokens"]
    assert answer["breakdown"]["sections"] >= section
    assert shown(client) == answer["tokens"]
    assert (await client.request("context/usage", {}))["tokens"] == answer["tokens"]


@pytest.mark.parametrize("session", ["s", "new"])
async def test_tokenizer_changed_during_a_count_recounts_the_result(
    client: Client, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """The recount waits for the running change, and includes its turns."""
    await begun(client)
    turns = MESSAGES[1:] * 3
    held = HeldChange(monkeypatch)
    pending = asyncio.ensure_future(
        client.request("context/append", {"session": session, "turns": turns})
    )
    await held.reached.wait()
    tokenize = {"model": MODEL, "tokenize": {"estimator": "chars4"}}
    client.notify("workspace/didChangeConfiguration", {"settings": {"tokenSidecar": tokenize}})
    await until(
        lambda: client.server.services.roots.default.settings.tokenize.estimator == "chars4"
    )
    await asyncio.sleep(0.1)  # the recount has been scheduled
    held.gate.set()
    await pending
    await quiet(client)
    messages = [*MESSAGES[:1], *turns] if session == "s" else turns
    result = await client.request("tokens/count", {"messages": messages, "model": MODEL})
    usage = await client.request("context/usage", {"session": session})
    assert (usage["turns"], usage["tokens"]) == (len(turns), result["tokens"])
    assert shown(client) == result["tokens"]


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_SIDECAR_STATE", str(tmp_path / "state"))


async def test_newest_conversations_are_written_last(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write is delayed by a slow disk."""
    await begun(client)
    await client.request("context/set", {"session": "s", "persist": True})
    real, first, gate = State.save_sessions, [True], threading.Event()

    def slow(*args: Any) -> None:
        if first.pop():
            gate.wait(60)
        first.append(False)
        real(*args)

    monkeypatch.setattr(State, "save_sessions", slow)
    append = {"session": "s", "turns": MESSAGES[1:]}
    asked = [asyncio.ensure_future(client.request("context/append", append)) for _ in range(3)]
    while (await client.request("context/usage", {}))["turns"] != 3:
        await asyncio.sleep(0.01)
    gate.set()
    await asyncio.gather(*asked)
    services = client.server.services
    (saved,) = services.state.sessions(services.roots.default.uri or "")
    assert len(saved.turns) == 3


async def test_crossing_a_threshold_warns_once(root: Path, endpoint: FakeServer) -> None:
    """Several requests are waiting for the endpoint when the threshold is crossed."""
    client = await started(root)
    await client.request("context/set", {"session": "s", "limit": 2_000})
    await client.request("context/append", {"session": "s", "turns": [USER]})
    client._ignored.discard("context/warning")
    much = {"session": "s", "turns": [{"role": "user", "content": "word " * 3_000}]}
    more = {"session": "s", "turns": [USER]}
    await asyncio.gather(
        *[client.request("context/append", turns) for turns in (much, *[more] * 5)]
    )
    await settled(client)
    warned = [message for message in client.unread if message["method"] == "context/warning"]
    client.ignore("context/warning")
    assert len(warned) == 1
    await client.aclose()


@pytest.mark.parametrize("asks_endpoint", [False, True])
async def test_recount_of_a_dropped_conversation_creates_none(
    talker: Client, *, asks_endpoint: bool
) -> None:
    services = talker.server.services
    conversations = services.conversations(services.roots.default)
    await conversations.apply(Recount(session="dropped", asks_endpoint=asks_endpoint))
    assert [*conversations.sessions.conversations] == []
    assert (await talker.request("context/usage", {}))["tokens"] is None
