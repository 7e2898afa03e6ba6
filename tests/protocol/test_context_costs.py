"""Tests that calls are recorded and reported, by any process, and that caps are enforced."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.paths import state_dir
from sidecar.config.settings import Price
from sidecar.cost import repricing
from sidecar.cost.book import CostBook
from sidecar.cost.context_costs import SpendingSums
from sidecar.cost.ledger_events import Buckets, LedgerEvent
from sidecar.project import file_watcher
from sidecar.server.features import costs
from sidecar.server.features.costs import CostSums
from sidecar.server.server import create_server
from sidecar.workspace.spending import Spending
from sidecar.workspace.workspace import Event
from tests.protocol.client import REPLY, USER, Client, RpcError, until
from tests.truth import truth


async def test_preflight_returns_the_cost_and_enforces_caps(bare: Client, tmp_path: Path) -> None:
    config = tmp_path / "user-config.toml"  # tests/conftest.py makes this the user's settings file
    config.write_text("[cost]\nhard-cap-usd = 0.001\n")
    await bare.initialize(root=tmp_path.as_uri(), ignored=("status/update",))
    asked = {"text": "hello " * 2_000, "model": "gpt-4o"}
    verdict = await bare.request("context/preflight", asked)
    assert verdict["verdict"] == "refuse"
    assert [reason["kind"] for reason in verdict["reasons"]] == ["hardCap"]
    assert verdict["estimatedCostUsd"] == pytest.approx(verdict["promptTokens"] * 2.5e-6)
    assert (await bare.take("context/warning"))["kind"] == "cap"
    assert (await bare.request("context/preflight", {"text": "hi"}))["verdict"] == "ok"


async def test_call_recorded_twice_counts_once(talker: Client) -> None:
    usage = {"prompt_tokens": 179, "completion_tokens": 8}
    record = {
        "model": "anthropic/claude-haiku-4.5",
        "usage": usage,
        "estimatedTokens": 150,
        "requestId": "r1",
    }
    first = await talker.request("cost/record", record)
    again = await talker.request("cost/record", record)
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    report = await talker.request("cost/detail", {})
    assert report["rows"][0]["text"] == (
        "anthropic/claude-haiku-4.5 main 1 calls, 179 ~est=150 / 8 tokens, $0.000219"
    )
    assert await talker.refused("cost/detail", {"since": "not a day"}) == {
        "kind": "badParams",
        "retryable": False,
    }


async def test_status_shows_context_and_cost(client: Client) -> None:
    client.open("hello world")
    await client.take("status/update")
    await client.request("context/append", {"turns": [USER]})
    shown = await client.take("status/update", lambda u: u["context"] is not None)
    assert "ctx" in shown["text"]
    assert shown["text"].startswith("2 tokens")
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 8}
    await client.request("cost/record", {"model": "gpt-4o", "usage": usage})
    shown = await client.take("status/update", lambda u: u["cost"] is not None)
    assert "$2.50" in shown["text"]
    client.ignore("status/update")


@pytest.mark.parametrize("method", ["context/response", "cost/record"])
async def test_billed_reply_is_recorded_although_the_request_is_cancelled(
    bare: Client, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    recorded, finish = threading.Event(), threading.Event()
    sums = Spending._spent_or_none

    def slow(self: Spending, session: str, *, every: bool = False) -> SpendingSums | None:
        recorded.set()
        finish.wait(60)
        return sums(self, session, every=every)

    await bare.initialize(ignored=("context/warning",))
    bare.open("hello world")
    await bare.take("status/update")
    monkeypatch.setattr(Spending, "_spent_or_none", slow)
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 8, "total_tokens": 1_000_008}
    message = {"index": 0, "finish_reason": "stop", "message": REPLY}
    response = {"object": "chat.completion", "model": "gpt-4o", "choices": [message]}
    params = {
        "context/response": {"session": "s", "response": {**response, "usage": usage}},
        "cost/record": {"session": "s", "usage": usage},
    }[method]
    asked = {"jsonrpc": "2.0", "id": "c", "method": method, "params": {"model": "gpt-4o", **params}}
    answer = asyncio.ensure_future(bare.raw(asked))
    await asyncio.to_thread(recorded.wait, 60)
    bare.notify("$/cancelRequest", {"id": "c"})
    await bare.request("cost/detail", {})  # Wait until the ledger has been read.
    finish.set()
    assert "result" in await answer
    shown = await bare.take("status/update", lambda u: u["cost"] is not None)
    assert "$2.50" in shown["text"]
    if method == "context/response":
        result = await bare.request("context/usage", {"session": "s"})
        assert result["tokens"] == 1_000_008
    assert (await bare.request("cost/detail", {}))["totals"]["calls"] == 1
    bare.ignore("status/update")


async def test_billed_reply_is_answered_during_shutdown(
    bare: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, finish = threading.Event(), threading.Event()
    sums = Spending._spent_or_none

    def slow(self: Spending, session: str, *, every: bool = False) -> SpendingSums | None:
        recorded.set()
        finish.wait(60)
        return sums(self, session, every=every)

    await bare.initialize(ignored=("status/update",))
    monkeypatch.setattr(Spending, "_spent_or_none", slow)
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 8}
    params = {"model": "gpt-4o", "session": "s", "usage": usage}
    asked = {"jsonrpc": "2.0", "id": "c", "method": "cost/record", "params": params}
    answer = asyncio.ensure_future(bare.raw(asked))
    await asyncio.to_thread(recorded.wait, 60)
    await bare.request("shutdown")
    finish.set()
    assert "result" in await answer


async def test_distant_cap_does_not_change_the_severity(bare: Client, tmp_path: Path) -> None:
    (tmp_path / "user-config.toml").write_text("[cost]\nsoft-cap-usd = 3\nhard-cap-usd = 5\n")
    await bare.initialize(root=tmp_path.as_uri())
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    await bare.request("cost/record", {"model": "gpt-4o", "usage": usage})
    shown = await bare.take("status/update", lambda u: u["cost"] is not None)
    assert (shown["cost"]["severity"], shown["severity"]) == ("ok", "ok")
    for spent in ("warning", "error"):
        await bare.request("cost/record", {"model": "gpt-4o", "usage": usage})
        shown = await bare.take("status/update")
        assert shown["cost"]["severity"] == spent, shown["cost"]["text"]
        message = (await bare.take("context/warning"))["message"]
        assert message in shown["cost"]["tooltip"]


async def test_changed_caps_and_prices_apply_to_past_calls_at_once(
    bare: Client, tmp_path: Path
) -> None:
    config = tmp_path / "user-config.toml"
    config.write_text("")
    await bare.initialize(root=tmp_path.as_uri())
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    for model in ("gpt-4o", "house-1"):
        await bare.request("cost/record", {"session": "s", "model": model, "usage": usage})
    await bare.take("status/update", lambda u: u["cost"] and u["cost"]["text"] == "≥$2.50 today")
    await bare.request("context/append", {"session": "s", "turns": [USER]})
    config.write_text("[cost]\nsoft-cap-usd = 2\n")
    await bare.take("status/update", lambda u: u["cost"]["severity"] == "warning")
    config.write_text("[cost]\nsession-hard-cap-usd = 2\n")
    await bare.take("status/update", lambda u: u["cost"]["severity"] == "error")
    price = '[[price]]\nmodels = ["house-1"]\ninput = 1.0\noutput = 1.0\n'
    config.write_text(f"[cost]\nsession-hard-cap-usd = 2\n{price}")
    shown = await bare.take("status/update", lambda u: u["cost"]["text"] == "$3.50 today")
    assert shown["severity"] == "error"
    config.write_text(price)
    after = "$3.50 today", "ok"
    await bare.take("status/update", lambda u: (u["cost"]["text"], u["severity"]) == after)
    bare.ignore("status/update")
    messages = [(await bare.take("context/warning"))["message"] for _ in range(2)]
    assert messages == [
        "≥$2.50 spent today exceeds the soft cap of $2.00.",
        "≥$2.50 spent in this session exceeds the hard cap of $2.00.",
    ]


@pytest.mark.parametrize("priced_before", [0, 6])
async def test_report_says_that_calls_are_being_priced_again(
    bare: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priced_before: int
) -> None:
    """The server continues the work of a process that has stopped."""
    monkeypatch.setattr(repricing, "BATCH", 3)
    text = '[[price]]\nmodels = ["house-*"]\ninput = 2.0\noutput = 0.0\n'
    (tmp_path / "user-config.toml").write_text(text)
    own = Price(models=("house-*",), input=Decimal(2), output=Decimal(0))
    unpriced, priced = CostBook(state_dir()), CostBook(state_dir(), (own,))
    call = LedgerEvent(
        at=datetime.now(UTC),
        model="house-1",
        provider="house",
        buckets=Buckets(input=1_000_000),
        workspace=tmp_path.as_uri(),
    )
    unpriced.ledger.record_many([call] * 12)
    stop = threading.Event()
    repricing.price_calls(unpriced.ledger, stop)

    def stop_halfway(share: float) -> None:
        if share >= 0.4:
            stop.set()

    if priced_before:
        repricing.price_calls(priced.ledger, stop, progress=stop_halfway)
    may_go_on = threading.Event()
    price_calls = repricing.price_calls

    def wait_first(*arguments: Any, **options: Any) -> bool:
        if priced_before:
            may_go_on.wait(30)
        return price_calls(*arguments, **options)

    monkeypatch.setattr(repricing, "price_calls", wait_first)
    await bare.initialize(root=tmp_path.as_uri())
    if priced_before:
        found = await bare.request("cost/detail", {})
        assert repricing.NOTE in found["note"]
        assert found["totals"]["costUsd"] == 2 * priced_before
        may_go_on.set()
    await bare.take("status/update", lambda u: u["cost"] and u["cost"]["text"] == "$24.00 today")
    found = await bare.request("cost/detail", {})
    assert (found["note"], found["totals"]["costUsd"]) == ("", 24)
    bare.ignore("status/update")
    for book in (unpriced, priced):
        book.close()


async def test_recorded_call_gets_the_sessions_estimate(talker: Client) -> None:
    turns = [{"role": "user", "content": "word " * 150}]
    usage = await talker.request("context/append", {"session": "s", "turns": turns})
    reply = [{"role": "assistant", "content": "Yes."}]
    await talker.request("context/append", {"session": "s", "turns": reply})
    call = {"session": "s", "model": "gpt-4o", "usage": {"input_tokens": 999, "output_tokens": 2}}
    await talker.request("cost/record", call)
    found = await talker.request("cost/detail", {})
    assert found["rows"][0]["estimatedTokens"] == usage["tokens"]
    assert f"~est={usage['tokens']}" in found["rows"][0]["note"]


async def test_models_in_use_and_current_models_come_first(talker: Client) -> None:
    usage = {"input_tokens": 9, "output_tokens": 2}
    await talker.request("cost/record", {"model": "claude-haiku-4-5", "usage": usage})
    rows = await talker.request("models/list", {"choices": True})
    names = [row["id"] for row in rows]
    assert names[:2] == ["gpt-5", "claude-haiku-4-5"]
    assert len(names) == len(set(names))
    assert all((row["contextWindow"] or 0) >= 100_000 for row in rows[:20])
    assert "ada" not in names[:50]


@pytest.mark.parametrize(("thought", "shown"), [(0, 0), (300, 0), (-5, -5)])
async def test_bare_total_sets_the_size_and_is_not_billed(
    talker: Client, thought: int, shown: int
) -> None:
    """If a reported total exceeds our count, the rest counts as reasoning and is not resent."""
    await talker.request("context/set", {"session": "s", "model": "gpt-4o", "systemPrompt": "Hi."})
    await talker.request("context/append", {"session": "s", "turns": [USER]})
    counted = (await talker.request("context/append", {"session": "s", "turns": [REPLY]}))["tokens"]
    usage = {"totalTokens": counted + thought}
    result = await talker.request("context/append", {"session": "s", "turns": [], "usage": usage})
    assert result["tokens"] == counted + shown
    more = await talker.request("context/append", {"session": "s", "turns": [USER]})
    assert more["tokens"] == counted + shown + truth(USER["content"]) + 4
    assert (await talker.request("cost/detail", {}))["totals"]["calls"] == 0


async def test_invalid_total_is_refused(talker: Client) -> None:
    for total in (-1, 1.5, True, "9"):
        with pytest.raises(RpcError, match="totalTokens"):
            await talker.request(
                "context/append", {"session": "s", "turns": [], "usage": {"totalTokens": total}}
            )


async def test_bare_total_is_accepted_before_any_reply(talker: Client) -> None:
    for turns in ([], [{"role": "user", "content": "hello"}]):
        params = {"session": f"{len(turns)}", "turns": turns, "usage": {"totalTokens": 100}}
        assert (await talker.request("context/append", params))["turns"] == len(turns)


async def test_first_call_in_a_new_state_folder_is_shown_without_a_poll(
    bare: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher used to check for a missing ledger only every two seconds."""
    monkeypatch.setattr(file_watcher, "TICK_SECONDS", 1_000.0)
    await bare.initialize()
    await bare.server.services.load_prices()
    followed = bare.feature(CostSums)._followed._followed
    while (
        "ledger" not in followed
        or not followed["ledger"][1]._stamps
        or (bare.server.scheduler.is_due(("ledger",)))
    ):
        # The delay between the watcher's first report and the resulting job is shorter than this.
        await asyncio.sleep(0.5)
    other = Client(create_server())
    await other.initialize(ignored=("status/update",))
    call = {"model": "gpt-4o", "usage": {"prompt_tokens": 400_000, "completion_tokens": 0}}
    await other.request("cost/record", call)
    await bare.take(
        "status/update", lambda status: bool(status["cost"] and status["cost"]["costUsd"])
    )
    bare.ignore("status/update")
    await other.aclose()


async def test_all_sessions_are_added_up_although_the_ledger_changes_meanwhile(
    bare: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.initialize(ignored=("status/update",))
    await bare.server.services.load_prices()
    sums, begin, runs = bare.feature(CostSums), asyncio.Event(), list[bool]()

    async def add_up(_workspace: object, *, every: bool = False) -> None:
        runs.append(every)
        await begin.wait()

    monkeypatch.setattr(sums, "_add_up", add_up)
    monkeypatch.setattr(costs, "_has_changed", lambda _: True)
    sums.on_event(Event("calls"))
    await until(lambda: bool(runs))
    sums.on_event(Event("settings"))
    await sums._read_changed_ledger()
    runs.clear()
    begin.set()
    await until(lambda: bool(runs))
    assert all(runs)
